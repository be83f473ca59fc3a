"""Attention over a paged cache in plain torch, for every device: blocks are gathered, then attended to by group."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from .attention_batch import AttentionBatch
from .sequence_groups import SequenceGroup


def grouped_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """What :func:`headrace.kernels.paged_attention` does, with the same arguments."""
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for group in batch.groups:
        keys = _gather(key_cache, group)
        values = _gather(value_cache, group)
        visible = group.visible
        if sliding_window is not None:
            first_seen = group.query_positions[:, None, :, None] - sliding_window + 1
            visible = visible & (group.key_positions >= first_seen)
        rows = query[group.query_rows]
        output[group.query_rows] = _attend(rows, keys, values, visible, scale, soft_cap)
    return output


def _gather(cache: torch.Tensor, group: SequenceGroup) -> torch.Tensor:
    """Copy the group's blocks out of the cache, slots past a context zeroed.

    A slot that nobody wrote may hold anything, and neither a mask of minus infinity on its logit nor a weight
    of zero on its value stops a NaN.

    Returns:
        ``[sequences, kv_heads, keys, head_dim]``.
    """
    sequences, blocks = group.block_ids.shape
    _, block_size, kv_heads, head_dim = cache.shape
    gathered = cache.index_select(0, group.block_ids.flatten())
    gathered.view(-1, kv_heads, head_dim).index_fill_(0, group.unwritten, 0)
    return gathered.view(sequences, blocks * block_size, kv_heads, head_dim).transpose(1, 2)


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    soft_cap: float | None,
) -> torch.Tensor:
    """Attend for one group.

    Args:
        query: ``[sequences * query_len, heads, head_dim]``.
        keys, values: ``[sequences, kv_heads, keys, head_dim]``.
        visible: bool ``[sequences, 1, query_len, keys]``.

    Returns:
        ``[sequences * query_len, heads, head_dim]``.
    """
    rows, heads, head_dim = query.shape
    sequences, kv_heads = keys.shape[:2]
    shared, query_len = heads // kv_heads, rows // sequences
    if query_len == 1:
        # The query heads that share a KV head become rows of one product, so no key is repeated in memory.
        query = query.view(sequences, kv_heads, shared, head_dim)
    else:
        query = query.view(sequences, query_len, heads, head_dim).transpose(1, 2)
        keys, values = keys.repeat_interleave(shared, dim=1), values.repeat_interleave(shared, dim=1)
    if soft_cap is None:
        attended = scaled_dot_product_attention(query, keys, values, attn_mask=visible, scale=scale)
    else:
        attended = _soft_capped_attention(query, keys, values, visible, scale, soft_cap)
    if query_len > 1:
        attended = attended.transpose(1, 2)
    return attended.reshape(rows, heads, head_dim)


def _soft_capped_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    soft_cap: float,
) -> torch.Tensor:
    """Softmax attention over capped logits, in float32; shapes ``[sequences, heads, rows or keys, head_dim]``."""
    logits = torch.matmul(query.float(), keys.float().transpose(2, 3)) * scale
    logits = soft_cap * torch.tanh(logits / soft_cap)
    weights = logits.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.matmul(weights, values.float()).to(query.dtype)
