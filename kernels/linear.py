"""Matrix products: rows times a weight, in the weight's own dtype."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import linear, pad

from .cpu_library import LANES, cpu_library


class Linear(Protocol):
    """A weight ``[outputs, inputs]``, perhaps a bias, and how rows are multiplied with them."""

    def __call__(self, x: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """``[rows, inputs]``, contiguous, to ``[rows, outputs]``, in x's dtype or, where ``wide``, in float32."""

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows of the weight, int64 ``[n]`` to ``[n, inputs]``: a head that is tied is also the embedding."""


class PlainLinear:
    """The product of torch."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """See :class:`Linear`."""
        product = linear(x, self._weight, self._bias)
        return product.float() if wide else product

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """See :class:`Linear`."""
        return self._weight[indices]


class PackedLinear:
    """The product of the C kernels, on a weight that is packed for them.

    An output is one float32 sum in one order, so a row's answer does not depend on the rows beside it, and no product
    reorders its weight first, as torch's does.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._outputs, self._inputs = weight.shape
        self._dtype = weight.dtype
        self._weight = pack_panels(weight, 4 // weight.element_size())
        self._bias = None if bias is None else pad_panels(bias.float())
        self._library = cpu_library(weight)

    def __call__(self, x: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """See :class:`Linear`."""
        check_rows(x, self._inputs, self._dtype)
        output = torch.empty((len(x), self._outputs), dtype=torch.float32 if wide else x.dtype)
        self._library.multiply(
            x.data_ptr(),
            self._weight.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            output.data_ptr(),
            len(x),
            self._inputs,
            self._outputs,
            wide,
        )
        return output

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """See :class:`Linear`."""
        return self._weight[indices // LANES, :, indices % LANES].flatten(1)


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The fastest product there is for a weight, by its device and dtype, on this processor."""
    library = cpu_library(weight)
    if library is not None and library.can_multiply() and weight.shape[1] % (4 // weight.element_size()) == 0:
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


def check_rows(x: torch.Tensor, inputs: int, dtype: torch.dtype) -> None:
    """Refuse what the C kernels, which see only where x begins, would read as something else.

    Raises:
        ValueError: naming what x is and what it must be.
    """
    if x.dtype is not dtype or x.shape[1:] != (inputs,) or not x.is_contiguous():
        layout = "contiguous" if x.is_contiguous() else "strided"
        raise ValueError(f"x is {layout} {x.dtype} {list(x.shape)}; it must be contiguous {dtype} [rows, {inputs}]")


def pack_panels(weight: torch.Tensor, inputs_a_step: int) -> torch.Tensor:
    """Lay a weight out in panels of 16 outputs: ``[panels, steps, 16, inputs a step]``.

    Args:
        weight: ``[outputs, inputs]``; outputs are filled up to whole panels with zeros.
        inputs_a_step: how many inputs of an output stand together; a divisor of the inputs.
    """
    outputs, inputs = weight.shape
    filled = pad(weight, (0, 0, 0, -outputs % LANES))
    return filled.view(-1, LANES, inputs // inputs_a_step, inputs_a_step).transpose(1, 2).contiguous()


def pad_panels(values: torch.Tensor) -> torch.Tensor:
    """One value an output, filled up to whole panels with zeros."""
    return pad(values, (0, -len(values) % LANES))
