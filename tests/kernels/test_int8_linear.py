"""Quantized products: what rounding costs, and that the rest is exact."""

from __future__ import annotations

import pytest
import torch
from headrace.kernels import describe_kernels, make_int8_linear
from headrace.kernels.int8_linear import Int8Linear, PackedInt8Linear, quantize_rows

from .test_linear import DTYPES, ROWS, rows_of, weight_of

SHAPES = ((16, 16), (48, 17), (64, 96), (128, 50), (576, 80))
"""Inputs and outputs."""


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_quantized_number_is_off_by_half_a_step_at_most(dtype: torch.dtype) -> None:
    x = rows_of(5, 48, dtype)
    quantized, scales = quantize_rows(x)
    assert quantized.abs().amax(-1).eq(127).all()
    off = (quantized * scales[:, None] - x).abs().amax(-1)
    assert (off <= scales * 0.5001).all()


def test_rows_of_zeros_and_broken_rows() -> None:
    x = torch.ones(4, 16)
    x[0] = 0
    x[1, 2], x[2, 5] = float("nan"), float("-inf")
    quantized, scales = quantize_rows(x)
    assert scales[0] == 0
    assert quantized[0].eq(0).all()
    assert scales[1].isnan()
    assert scales[2].isnan()
    assert scales[3].isfinite()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_products_are_the_integers_times_their_scales(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    weight, bias = weight_of(outputs, inputs, dtype), weight_of(1, outputs, dtype, seed=3)[0]
    quantized_weight, weight_scales = quantize_rows(weight)
    for rows in ROWS:
        x = rows_of(rows, inputs, dtype)
        quantized, scales = quantize_rows(x)
        exact = (quantized.double() @ quantized_weight.double().T) * scales[:, None].double() * weight_scales.double()
        for linear in (make_int8_linear(weight, bias), Int8Linear(weight, bias)):
            answer = linear(x, wide=True)
            assert answer.dtype is torch.float32
            torch.testing.assert_close(answer.double(), exact + bias.double(), atol=1e-4, rtol=1e-5)
            assert linear(x).dtype is dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_row_alone_is_the_row_in_any_batch(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    linear = make_int8_linear(weight_of(outputs, inputs, dtype))
    x = rows_of(ROWS[-1], inputs, dtype)
    whole = linear(x, wide=True)
    for rows in ROWS[:-1]:
        assert torch.equal(linear(x[:rows].contiguous(), wide=True), whole[:rows]), rows


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_broken_row_stays_broken_and_breaks_no_other(broken: float) -> None:
    linear = make_int8_linear(weight_of(50, 64, torch.bfloat16))
    x = rows_of(19, 64, torch.bfloat16)
    whole = linear(x)
    x[17, 3] = broken
    answer = linear(x)
    assert answer[17].isnan().all()
    others = [row for row in range(19) if row != 17]
    assert torch.equal(answer[others], whole[others])


def test_rows_of_the_weight_are_its_rounded_ones() -> None:
    weight = weight_of(50, 64, torch.bfloat16)
    quantized, scales = quantize_rows(weight)
    indices = torch.tensor([49, 0, 16])
    for linear in (make_int8_linear(weight), Int8Linear(weight)):
        assert torch.equal(linear.rows(indices), (quantized * scales[:, None])[indices])


def test_the_compiled_product_takes_what_fits_it() -> None:
    """Odd widths are torch's."""
    assert isinstance(make_int8_linear(weight_of(16, 40, torch.float32)), Int8Linear)
    compiled = "can_multiply_int8" in describe_kernels(torch.float32)
    assert isinstance(make_int8_linear(weight_of(16, 48, torch.float32)), PackedInt8Linear if compiled else Int8Linear)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_huge_numbers_is_finite(dtype: torch.dtype) -> None:
    """Their sum is not."""
    weight = torch.eye(16, 48, dtype=dtype)
    x = torch.full((2, 48), 3e38, dtype=dtype)
    for linear in (make_int8_linear(weight), Int8Linear(weight)):
        torch.testing.assert_close(linear(x, wide=True), x[:, :16].float(), rtol=1e-6, atol=0)
