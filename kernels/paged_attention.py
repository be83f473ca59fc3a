"""Attention over a paged KV cache, for prefill chunks and decodes in one flat batch."""

from __future__ import annotations

import torch

from .attention_batch import AttentionBatch
from .cpu_library import LANES, cpu_library
from .grouped_attention import grouped_attention

_MOST_HEAD_DIM, _MOST_SHARED = 256, 32


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """Causal attention of each query token over its own sequence's cached keys and values.

    This step's keys and values must have been stored already (:func:`headrace.kernels.store_kv`).

    Args:
        query: ``[tokens, heads, head_dim]``, any float dtype.
        key_cache, value_cache: ``[blocks, block_size, kv_heads, head_dim]``, any strides with the last one 1.
        batch: the step's sequences.
        scale: factor on the logits, usually ``head_dim ** -0.5``.
        sliding_window: a token sees itself and the ``sliding_window - 1`` tokens before it.
        soft_cap: logits become ``soft_cap * tanh(logits / soft_cap)`` (Gemma 2).

    Returns:
        ``[tokens, heads, head_dim]`` in the query's dtype.
    """
    heads, head_dim = query.shape[1:]
    _, block_size, kv_heads, _ = key_cache.shape
    library = cpu_library(query)
    fits = head_dim % LANES == 0 and head_dim <= _MOST_HEAD_DIM and heads // kv_heads <= _MOST_SHARED
    if library is None or not fits or key_cache.dtype != query.dtype:
        return grouped_attention(
            query, key_cache, value_cache, batch, scale=scale, sliding_window=sliding_window, soft_cap=soft_cap
        )
    if query.stride(2) != 1 or query.stride(1) != head_dim:
        query = query.contiguous()
    output = torch.empty(query.shape, dtype=query.dtype)
    library.paged_attention(
        query.data_ptr(),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        output.data_ptr(),
        batch.query_starts.data_ptr(),
        batch.context_lens.data_ptr(),
        batch.table_starts.data_ptr(),
        batch.block_ids.data_ptr(),
        len(batch.context_lens),
        heads,
        kv_heads,
        head_dim,
        block_size,
        key_cache.stride(0),
        key_cache.stride(1),
        query.stride(0),
        sliding_window or 0,
        scale,
        soft_cap or 0.0,
    )
    return output
