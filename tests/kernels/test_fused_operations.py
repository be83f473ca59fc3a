"""Norms, gated activations and rotation against float64, over widths that do and do not fill a vector."""

from __future__ import annotations

import math

import pytest
import torch
from headrace.kernels import Activation, HeadNorms, gated_activation, rms_norm, rotate_and_store

from .test_linear import DTYPES, rows_of, weight_of

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7}
"""Relative: in bfloat16 a rounding or two."""


def check_close(answer: torch.Tensor, exact: torch.Tensor, made_of: float = 1) -> None:
    """Compare within the roundings of the answer's dtype; they grow with the numbers that it is made of."""
    tolerance = TOLERANCE[answer.dtype] * max(1.0, made_of)
    torch.testing.assert_close(answer.double(), exact, atol=tolerance, rtol=tolerance)


def exact_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """The definition."""
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 48), (5, 30), (130, 576)])
def test_norms_with_and_without_a_residual(rows: int, width: int, dtype: torch.dtype) -> None:
    x, residual = rows_of(rows, width, dtype), weight_of(rows, width, dtype, seed=2)
    weight = weight_of(1, width, torch.float32, seed=4)[0]
    before = x.clone()
    check_close(rms_norm(x, weight, 0.01), exact_norm(x, weight, 0.01))
    total = x + residual
    answer = rms_norm(x, weight, 0.01, residual)
    assert torch.equal(residual, total), "the residual is not the sum"
    assert torch.equal(x, before)
    check_close(answer, exact_norm(total, weight, 0.01))


def test_a_row_of_zeros_has_a_norm() -> None:
    assert rms_norm(torch.zeros(2, 16), torch.ones(16), 1e-6).eq(0).all()


def exact_activation(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """The definitions."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    if activation == "silu":
        return gate / (1 + torch.exp(-gate)) * up
    return gate / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * up


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 48), (5, 30), (67, 256)])
def test_gated_activations(rows: int, width: int, dtype: torch.dtype, activation: Activation) -> None:
    gate_up = rows_of(rows, 2 * width, dtype) * 3
    gate_up[0, 0], gate_up[0, 1], gate_up[0, 2] = 100.0, -100.0, 0.0
    check_close(gated_activation(gate_up, activation), exact_activation(gate_up, activation))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_stays_in_its_place(dtype: torch.dtype, activation: Activation) -> None:
    gate_up = rows_of(3, 64, dtype)
    gate_up[1, 5], gate_up[2, 32 + 7] = float("nan"), float("nan")
    assert gated_activation(gate_up, activation).isnan().nonzero().tolist() == [[1, 5], [2, 7]]


def exact_rotation(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """The definition; ``[tokens, heads, head_dim]``."""
    half = cosines.shape[1]
    exact = heads.double()
    first, second, rest = exact[..., :half], exact[..., half : 2 * half], exact[..., 2 * half :]
    cosines, sines = cosines[:, None].double(), sines[:, None].double()
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines, rest], -1)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "half"), [(64, 32), (8, 4), (32, 8), (80, 40)])
def test_rotation_and_the_way_into_the_cache(head_dim: int, half: int, dtype: torch.dtype, normed: bool) -> None:
    heads, kv_heads, tokens, block_size = 6, 2, 5, 4
    qkv = rows_of(tokens * (heads + 2 * kv_heads), head_dim, dtype).view(tokens, -1, head_dim)
    before = qkv.clone()
    queries, keys, values = before[:, :heads], before[:, heads : heads + kv_heads], before[:, heads + kv_heads :]
    angles = torch.arange(tokens * half).view(tokens, half) * 0.37
    cosines, sines = angles.cos(), angles.sin()
    weights = torch.rand((2, head_dim), generator=torch.Generator().manual_seed(1)) + 0.5
    norms = HeadNorms(weights[0], weights[1], 0.01) if normed else None
    data = torch.full((4, 3, 2, block_size, kv_heads, head_dim), -7.0, dtype=dtype)
    slots = torch.tensor([13, -1, 4, 0, 7])
    answer = rotate_and_store(qkv, cosines, sines, data[:, 1, 0], data[:, 1, 1], slots, norms)
    if norms is not None:
        queries = exact_norm(queries, norms.query, norms.epsilon)
        keys = exact_norm(keys, norms.key, norms.epsilon)
    largest = float(torch.cat([queries, keys], dim=1).abs().max())
    check_close(answer, exact_rotation(queries, cosines, sines), largest)
    turned = exact_rotation(keys, cosines, sines)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            check_close(data[slot // block_size, 1, 0, slot % block_size], turned[token], largest)
            assert torch.equal(data[slot // block_size, 1, 1, slot % block_size], values[token])
    assert (data != -7).any(-1).sum() == 2 * 4 * kv_heads, "something was written elsewhere"
