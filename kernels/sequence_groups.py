"""A step's sequences in groups that plain torch can attend to in one call each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

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


def group_sequences(
    block_tables: Sequence[Sequence[int]],
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_size: int,
    device: torch.device,
) -> tuple[SequenceGroup, ...]:
    """Group the sequences of a step; arguments as :meth:`headrace.kernels.AttentionLayout.build`."""
    calls = _calls(query_lens, context_lens, block_size)
    decodes = sorted((call for call in calls if call.query_len == 1), key=_blocks)
    members = _split_by_length(decodes)
    members += [[call] for call in calls if call.query_len > 1]
    return tuple(_group(group, block_tables, block_size, device) for group in members)


def _group(
    group: list[_Call], block_tables: Sequence[Sequence[int]], block_size: int, device: torch.device
) -> SequenceGroup:
    width, query_len = max(call.blocks for call in group), group[0].query_len
    blocks: list[int] = []
    for call in group:
        blocks += block_tables[call.sequence][: call.blocks]
        blocks += [0] * (width - call.blocks)
    bulk = BulkIndex()
    rows = bulk.put([row for call in group for row in range(call.row, call.row + query_len)])
    positions = bulk.put([p for call in group for p in range(call.context_len - query_len, call.context_len)])
    ids = bulk.put(blocks)
    index = bulk.to(device)
    query_positions = index[positions].view(len(group), query_len)
    key_positions = torch.arange(width * block_size, device=device)
    unwritten = key_positions > query_positions[:, -1:]
    return SequenceGroup(
        query_rows=index[rows],
        block_ids=index[ids].view(len(group), width),
        query_positions=query_positions,
        key_positions=key_positions,
        visible=key_positions <= query_positions[:, None, :, None],
        unwritten=unwritten.flatten().nonzero().flatten(),
    )


class _Call(NamedTuple):
    """Query tokens that stand together, and what they may see at most."""

    sequence: int
    row: int
    """Of the flat query, where they begin."""
    query_len: int
    context_len: int
    blocks: int


def _calls(query_lens: Sequence[int], context_lens: Sequence[int], block_size: int) -> list[_Call]:
    """What has to be attended to, the tokens of short chunks one by one."""
    calls: list[_Call] = []
    row = 0
    for sequence, (query_len, context_len) in enumerate(zip(query_lens, context_lens, strict=True)):
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
