"""Scattering keys and values into a strided cache."""

from __future__ import annotations

import torch
from headrace.kernels import store_kv


def strided_cache() -> torch.Tensor:
    """``[blocks, layers, 2, block_size, kv_heads, head_dim]`` filled with -7."""
    return torch.full((3, 2, 2, 4, 2, 8), -7.0)


def test_each_token_lands_in_its_slot_and_nowhere_else() -> None:
    data = strided_cache()
    key, value = torch.rand(2, 3, 2, 8)
    store_kv(key, value, data[:, 1, 0], data[:, 1, 1], torch.tensor([5, 0, 11]))
    for row, (block, offset) in enumerate([(1, 1), (0, 0), (2, 3)]):
        assert torch.equal(data[block, 1, 0, offset], key[row])
        assert torch.equal(data[block, 1, 1, offset], value[row])
    assert (data != -7).sum() == key.numel() + value.numel()


def test_a_negative_slot_writes_nothing() -> None:
    data = strided_cache()
    key, value = torch.rand(2, 3, 2, 8)
    store_kv(key, value, data[:, 0, 0], data[:, 0, 1], torch.tensor([-1, 6, -1]))
    assert (data[-1] == -7).all(), "the last block was overwritten"
    assert torch.equal(data[1, 0, 0, 2], key[1])
    assert torch.equal(data[1, 0, 1, 2], value[1])
    assert (data != -7).sum() == 2 * 2 * 8


def test_padding_alone_writes_nothing() -> None:
    data = strided_cache()
    key, value = torch.rand(2, 2, 2, 8)
    store_kv(key, value, data[:, 0, 0], data[:, 0, 1], torch.tensor([-1, -1]))
    assert (data == -7).all()
