"""Between a layer's QKV product and its attention: norms of heads, rotation, and the way into the paged cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .cpu_library import cpu_library
from .store_kv import store_kv


@dataclass(frozen=True)
class HeadNorms:
    """Norms over each query's and each key's head (Qwen3, Gemma 3)."""

    query: torch.Tensor
    """Weights, float32 ``[head_dim]``."""
    key: torch.Tensor
    """Likewise."""
    epsilon: float


def rotate_and_store(
    qkv: torch.Tensor,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    norms: HeadNorms | None = None,
) -> torch.Tensor:
    """Norm and rotate a step's queries and keys, in place, and store its keys and values.

    Rotation is that of RoFormer (Su et al. 2021) in GPT-NeoX' order: element i turns with element ``i + half``.

    Args:
        qkv: ``[tokens, heads + 2 * kv_heads, head_dim]``, contiguous: queries, then keys, then values.
        cosines, sines: float32 ``[tokens, half]``; elements of a head from ``2 * half`` on are not rotated.
        key_cache, value_cache: ``[blocks, block_size, kv_heads, head_dim]``, each token's heads contiguous.
        slot_mapping: int64 ``[tokens]``, as :func:`headrace.kernels.store_kv`.
        norms: of heads, before they are rotated.

    Returns:
        The queries, ``[tokens, heads, head_dim]``, a view.
    """
    tokens, rows, head_dim = qkv.shape
    _, block_size, kv_heads, _ = key_cache.shape
    heads, half = rows - 2 * kv_heads, cosines.shape[1]
    library = cpu_library(qkv)
    if library is not None and key_cache.dtype == qkv.dtype:
        library.rotate_and_store(
            qkv.data_ptr(),
            cosines.data_ptr(),
            sines.data_ptr(),
            None if norms is None else norms.query.data_ptr(),
            None if norms is None else norms.key.data_ptr(),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            slot_mapping.data_ptr(),
            tokens,
            heads,
            kv_heads,
            head_dim,
            half,
            block_size,
            key_cache.stride(0),
            key_cache.stride(1),
            0.0 if norms is None else norms.epsilon,
        )
        return qkv[:, :heads]
    queries, keys, values = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
    if norms is not None:
        _norm_heads(queries, norms.query, norms.epsilon)
        _norm_heads(keys, norms.key, norms.epsilon)
    _rotate(qkv[:, : heads + kv_heads], cosines[:, None], sines[:, None])
    store_kv(keys, values, key_cache, value_cache, slot_mapping)
    return queries


def _norm_heads(heads: torch.Tensor, weight: torch.Tensor, epsilon: float) -> None:
    exact = heads.float()
    heads.copy_(exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + epsilon) * weight)


def _rotate(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> None:
    half = cosines.shape[-1]
    first, second = heads[..., :half].float(), heads[..., half : 2 * half].float()
    turned = first * cosines - second * sines
    heads[..., half : 2 * half] = second * cosines + first * sines
    heads[..., :half] = turned
