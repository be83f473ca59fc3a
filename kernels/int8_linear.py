"""Matrix products in int8: weights with a scale for each output, rows of x with one for each row.

Both are symmetric and rounded to nearest; rows are quantized as they come (Dettmers et al. 2022, "LLM.int8()", without
its outliers; Yao et al. 2022, "ZeroQuant", token-wise). Sums are exact in int32.
"""

from __future__ import annotations

import torch

from .cpu_library import LANES, cpu_library
from .linear import Linear, check_rows, pack_panels, pad_panels

_MOST = 127


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize each row for itself.

    Args:
        x: ``[rows, inputs]``, any float dtype.

    Returns:
        int8 ``[rows, inputs]`` and float32 scales ``[rows]``, by which they are to be multiplied. A row with a NaN or
        an infinity has a scale that is NaN; a row of zeros has 0.
    """
    exact = x.float()
    largest = exact.abs().amax(-1)
    most = torch.full_like(largest, _MOST)  # a number over a tensor would be its reciprocal times the number
    factors = torch.where(largest > 0, most / largest, torch.zeros_like(largest))
    # In float64, where the product is exact: the C kernel rounds it but once, too.
    scaled = (exact.double() * factors[:, None].double()).nan_to_num(0, 0, 0).round()
    finite = exact.isfinite().all(-1)
    return scaled.to(torch.int8), torch.where(finite, largest / _MOST, torch.full_like(largest, torch.nan))


class Int8Linear:
    """A quantized weight, and torch's product of int8 matrices."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight, self._scales = quantize_rows(weight)
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """See :class:`headrace.kernels.Linear`."""
        quantized, scales = quantize_rows(x)
        product = torch._int_mm(quantized, self._weight.t()).float() * (scales[:, None] * self._scales)
        if self._bias is not None:
            product += self._bias
        return product if wide else product.to(x.dtype)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """See :class:`headrace.kernels.Linear`; float32."""
        return self._weight[indices] * self._scales[indices, None]


class PackedInt8Linear:
    """A quantized weight, packed for the C kernels."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._outputs, self._inputs = weight.shape
        self._dtype = weight.dtype
        quantized, scales = quantize_rows(weight)
        # Kept plus 128: the processor multiplies unsigned bytes with signed ones.
        self._weight = pack_panels(quantized.view(torch.uint8) ^ 128, 4)
        self._scales = pad_panels(scales)
        self._bias = None if bias is None else pad_panels(bias.float())
        self._library = cpu_library(weight)

    def __call__(self, x: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """See :class:`headrace.kernels.Linear`."""
        check_rows(x, self._inputs, self._dtype)
        rows = len(x)
        quantized = torch.empty(x.shape, dtype=torch.int8)
        scales, sums = torch.empty(rows), torch.empty(rows, dtype=torch.int32)
        output = torch.empty((rows, self._outputs), dtype=torch.float32 if wide else x.dtype)
        self._library.quantize_rows(
            x.data_ptr(), quantized.data_ptr(), scales.data_ptr(), sums.data_ptr(), rows, self._inputs
        )
        self._library.multiply_int8(
            quantized.data_ptr(),
            scales.data_ptr(),
            sums.data_ptr(),
            self._weight.data_ptr(),
            self._scales.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            output.data_ptr(),
            rows,
            self._inputs,
            self._outputs,
            wide,
        )
        return output

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """See :class:`headrace.kernels.Linear`; float32."""
        panels = self._weight[indices // LANES, :, indices % LANES].flatten(1)
        return (panels.float() - 128) * self._scales[indices, None]


def make_int8_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The fastest int8 product there is on this processor; the weight's dtype is that of the rows to come."""
    library = cpu_library(weight)
    if library is not None and library.can_multiply_int8() and weight.shape[1] % LANES == 0:
        return PackedInt8Linear(weight, bias)
    return Int8Linear(weight, bias)
