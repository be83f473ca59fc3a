"""Matrix products against float64, over row counts, widths and dtypes that do and do not fill vectors and tiles."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from headrace.kernels import Linear, make_int8_linear, make_linear
from headrace.kernels.int8_linear import Int8Linear
from headrace.kernels.linear import PackedLinear, PlainLinear

ROWS = (1, 2, 3, 7, 8, 16, 17, 33, 130, 257)
SHAPES = ((16, 1), (30, 15), (48, 16), (64, 17), (64, 96), (96, 50), (576, 80))
"""Inputs and outputs."""
DTYPES = (torch.float32, torch.bfloat16)


def weight_of(outputs: int, inputs: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """A random weight."""
    return torch.randn((outputs, inputs), generator=torch.Generator().manual_seed(seed)).to(dtype)


def rows_of(rows: int, inputs: int, dtype: torch.dtype) -> torch.Tensor:
    """Random rows."""
    return weight_of(rows, inputs, dtype, seed=7)


def check_product(linear: Linear, weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> None:
    """Compare with float64: a float32 sum's error is far under a rounding of the result to bfloat16."""
    x = rows_of(rows, weight.shape[1], weight.dtype)
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    wide, narrow = linear(x, wide=True), linear(x)
    assert wide.dtype is torch.float32
    assert narrow.dtype is weight.dtype
    most = float(exact.abs().max())
    sums = most * 2e-6
    low = most * 2**-8 if weight.dtype is torch.bfloat16 else sums
    # torch rounds before it widens
    torch.testing.assert_close(wide.double(), exact, atol=low if isinstance(linear, PlainLinear) else sums, rtol=0)
    torch.testing.assert_close(
        narrow.double(), exact, atol=most * (2**-8 if weight.dtype is torch.bfloat16 else 2e-6), rtol=0
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_products_are_those_of_float64(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    weight = weight_of(outputs, inputs, dtype)
    bias = weight_of(1, outputs, dtype, seed=3)[0]
    for rows, with_bias in itertools.product(ROWS, (False, True)):
        used = bias if with_bias else None
        check_product(make_linear(weight, used), weight, used, rows)
        check_product(PlainLinear(weight, used), weight, used, rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_row_alone_is_the_row_in_any_batch(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    linear = make_linear(weight_of(outputs, inputs, dtype))
    if not isinstance(linear, PackedLinear):
        pytest.skip("torch's own product promises no such thing")
    x = rows_of(ROWS[-1], inputs, dtype)
    whole = linear(x, wide=True)
    for rows in ROWS[:-1]:
        assert torch.equal(linear(x[:rows].contiguous(), wide=True), whole[:rows]), rows
        assert torch.equal(linear(x[-rows:].contiguous(), wide=True), whole[-rows:]), rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_rows_of_the_weight_come_back_exactly(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    weight = weight_of(outputs, inputs, dtype)
    indices = torch.tensor([outputs - 1, 0, outputs // 2, 0])
    assert torch.equal(make_linear(weight).rows(indices), weight[indices])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_broken_row_breaks_no_other(broken: float, dtype: torch.dtype) -> None:
    linear = make_linear(weight_of(50, 64, dtype))
    x = rows_of(19, 64, dtype)
    whole = linear(x)
    x[17, 3] = broken
    answer = linear(x)
    assert not answer[17].isfinite().any()
    others = [row for row in range(19) if row != 17]
    assert torch.equal(answer[others], whole[others])


@pytest.mark.parametrize("make", [make_linear, make_int8_linear])
def test_rows_that_a_compiled_product_would_misread_are_refused(make: Callable[[torch.Tensor], Linear]) -> None:
    linear = make(weight_of(50, 64, torch.float32))
    if isinstance(linear, PlainLinear | Int8Linear):
        pytest.skip("torch sees what x is")
    for x in (rows_of(3, 64, torch.bfloat16), rows_of(3, 128, torch.float32)[:, ::2], rows_of(3, 48, torch.float32)):
        with pytest.raises(ValueError, match=r"x is .*; it must be contiguous torch.float32 \[rows, 64\]"):
            linear(x)
