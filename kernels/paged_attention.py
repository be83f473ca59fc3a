"""Attention over a paged KV cache, for prefill chunks and decodes in one flat batch.

The batch is flat: the query tokens of all sequences stand one after another, and ``query_start_loc``
says where each sequence begins (Kwon et al. 2023, "Efficient Memory Management for Large Language Model
Serving with PagedAttention"; the flat layout is that of FlashAttention's variable-length interface).

    sequence            A (decode)   B (prefill chunk of 3)   C (decode)
    query               a            b0 b1 b2                 c
    query_start_loc     0            1                        4          5

This file holds the torch implementation. It runs on any device; it is meant for CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from .bulk_index import BulkIndex

_SHORT_CHUNK = 8
"""Query tokens, such as those that a grammar forced, that cost less among the decodes than in a call of their own."""


@dataclass(frozen=True)
class SequenceGroup:
    """Sequences that are attended to in one call because they are about equally long.

    Either any number of decodes (one query token each; the tokens of a short chunk are as many decodes) or exactly one
    prefill chunk.
    """

    query_rows: torch.Tensor
    """Rows of the flat query, int64 ``[sequences * query_len]``."""
    block_ids: torch.Tensor
    """Blocks to read, int64 ``[sequences, blocks]``; short rows are padded with block 0."""
    query_positions: torch.Tensor
    """Position of each query token in its sequence, int64 ``[sequences, query_len]``."""
    key_positions: torch.Tensor
    """``arange(blocks * block_size)``, int64."""
    visible: torch.Tensor
    """Whether a query token sees a gathered slot, causally; bool ``[sequences, 1, query_len, keys]``."""
    unwritten: torch.Tensor
    """Flat ``sequence * keys + slot`` of gathered slots past the context, int64 ``[n]``."""


@dataclass(frozen=True)
class _GroupLayout:
    """A group's integers, as slices of the step's bulk index."""

    sequences: int
    query_len: int
    query_rows: slice
    block_ids: slice
    query_positions: slice


@dataclass(frozen=True)
class AttentionLayout:
    """A step's attention on the host, before its integers are on the device."""

    slot_mapping: slice
    groups: tuple[_GroupLayout, ...]
    block_size: int

    @classmethod
    def build(
        cls,
        bulk: BulkIndex,
        *,
        slots: Sequence[int],
        block_tables: Sequence[Sequence[int]],
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        block_size: int,
    ) -> AttentionLayout:
        """Group the sequences of a step and put their integers into ``bulk``.

        Args:
            bulk: the step's integers.
            slots: cache slot of each flat token, ``block * block_size + offset``; a negative one writes nothing.
            block_tables: blocks of each sequence, in order.
            query_lens: query tokens of each sequence in this step, at least 1.
            context_lens: tokens of each sequence in the cache once this step's are stored.
            block_size: tokens a block.

        Raises:
            ValueError: where a sequence has no query token, or fewer context than query tokens.
        """
        calls = _calls(query_lens, context_lens, block_size)
        decodes = sorted((call for call in calls if call.query_len == 1), key=_blocks)
        members = _split_by_length(decodes)
        members += [[call] for call in calls if call.query_len > 1]
        groups = []
        for group in members:
            width, query_len = max(call.blocks for call in group), group[0].query_len
            rows = [row for call in group for row in range(call.row, call.row + query_len)]
            blocks: list[int] = []
            for call in group:
                blocks += block_tables[call.sequence][: call.blocks]
                blocks += [0] * (width - call.blocks)
            positions = [p for call in group for p in range(call.context_len - query_len, call.context_len)]
            groups.append(_GroupLayout(len(group), query_len, bulk.put(rows), bulk.put(blocks), bulk.put(positions)))
        return cls(bulk.put(slots), tuple(groups), block_size)

    def on_device(self, index: torch.Tensor) -> AttentionBatch:
        """The same with tensors: views of the bulk index, int64, on the cache's device."""
        return AttentionBatch(index[self.slot_mapping], tuple(self._group(group, index) for group in self.groups))

    def _group(self, group: _GroupLayout, index: torch.Tensor) -> SequenceGroup:
        block_ids = index[group.block_ids].view(group.sequences, -1)
        query_positions = index[group.query_positions].view(group.sequences, group.query_len)
        key_positions = torch.arange(block_ids.shape[1] * self.block_size, device=index.device)
        unwritten = key_positions > query_positions[:, -1:]
        return SequenceGroup(
            query_rows=index[group.query_rows],
            block_ids=block_ids,
            query_positions=query_positions,
            key_positions=key_positions,
            visible=key_positions <= query_positions[:, None, :, None],
            unwritten=unwritten.flatten().nonzero().flatten(),
        )


@dataclass(frozen=True)
class AttentionBatch:
    """What attention needs to know of a step; built once a step and shared by all layers."""

    slot_mapping: torch.Tensor
    """Cache slot of each flat token (``block * block_size + offset``), int64 ``[tokens]``; -1 writes nothing."""
    groups: tuple[SequenceGroup, ...]


class _Call(NamedTuple):
    """Query tokens that stand together, and what they may see at most."""

    sequence: int
    row: int
    """Of the flat query, where they begin."""
    query_len: int
    context_len: int
    blocks: int


def _calls(query_lens: Sequence[int], context_lens: Sequence[int], block_size: int) -> list[_Call]:
    """What has to be attended to, the tokens of short chunks one by one.

    Raises:
        ValueError: where a sequence has no query token, or fewer context than query tokens.
    """
    calls: list[_Call] = []
    row = 0
    for sequence, (query_len, context_len) in enumerate(zip(query_lens, context_lens, strict=True)):
        if not 1 <= query_len <= context_len:
            raise ValueError(f"a sequence has {query_len} query tokens and {context_len} context tokens")
        step = 1 if query_len <= _SHORT_CHUNK else query_len
        for end in range(step, query_len + 1, step):
            seen = context_len - query_len + end
            calls.append(_Call(sequence, row + end - step, step, seen, -(-seen // block_size)))
        row += query_len
    return calls


def _blocks(call: _Call) -> int:
    return call.blocks


def _split_by_length(ordered: list[_Call]) -> list[list[_Call]]:
    """Split decodes, shortest first, so that none is padded by more than a quarter of its length and a block.

    Padding is gathered and multiplied like the rest, and costs more than another group does.
    """
    groups: list[list[_Call]] = []
    for call in ordered:
        if groups and call.blocks <= 1.25 * groups[-1][0].blocks + 1:
            groups[-1].append(call)
        else:
            groups.append([call])
    return groups


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
    output = torch.empty_like(query)
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
