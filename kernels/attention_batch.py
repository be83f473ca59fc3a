"""What attention needs to know of a step.

The batch is flat: the query tokens of all sequences stand one after another, and ``query_starts``
says where each sequence begins (Kwon et al. 2023, "Efficient Memory Management for Large Language Model
Serving with PagedAttention"; the flat layout is that of FlashAttention's variable-length interface).

    sequence            A (decode)   B (prefill chunk of 3)   C (decode)
    query               a            b0 b1 b2                 c
    query_starts        0            1                        4          5
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from .bulk_index import BulkIndex
from .sequence_groups import SequenceGroup, group_sequences


@dataclass(frozen=True)
class _Sequences:
    """A step's sequences, on the host."""

    block_tables: Sequence[Sequence[int]]
    query_lens: Sequence[int]
    context_lens: Sequence[int]
    block_size: int


@dataclass(frozen=True)
class AttentionBatch:
    """What attention needs to know of a step; built once a step and shared by all layers. Tensors are int64."""

    slot_mapping: torch.Tensor
    """Cache slot of each flat token (``block * block_size + offset``), ``[tokens]``; -1 writes nothing."""
    query_starts: torch.Tensor
    """Where each sequence's query tokens begin, and where the last one's end, ``[sequences + 1]``."""
    context_lens: torch.Tensor
    """Tokens of each sequence in the cache, this step's included, ``[sequences]``."""
    table_starts: torch.Tensor
    """Where each sequence's blocks begin in ``block_ids``, ``[sequences]``."""
    block_ids: torch.Tensor
    """Blocks of all sequences, one sequence after another."""
    _sequences: _Sequences

    @cached_property
    def groups(self) -> tuple[SequenceGroup, ...]:
        """The same for plain torch."""
        told = self._sequences
        return group_sequences(
            told.block_tables, told.query_lens, told.context_lens, told.block_size, self.slot_mapping.device
        )


@dataclass(frozen=True)
class AttentionLayout:
    """A step's attention on the host, before its integers are on the device."""

    slot_mapping: slice
    query_starts: slice
    context_lens: slice
    table_starts: slice
    block_ids: slice
    sequences: _Sequences

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
        """Put the integers of a step's sequences into ``bulk``.

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
        for query_len, context_len in zip(query_lens, context_lens, strict=True):
            if not 1 <= query_len <= context_len:
                raise ValueError(f"a sequence has {query_len} query tokens and {context_len} context tokens")
        table_lens = [len(table) for table in block_tables]
        return cls(
            bulk.put(slots),
            bulk.put([0, *itertools.accumulate(query_lens)]),
            bulk.put(context_lens),
            bulk.put([0, *itertools.accumulate(table_lens[:-1])]),
            bulk.put([block for table in block_tables for block in table]),
            _Sequences(block_tables, query_lens, context_lens, block_size),
        )

    def on_device(self, index: torch.Tensor) -> AttentionBatch:
        """The same with tensors: views of the bulk index, on the cache's device."""
        return AttentionBatch(
            index[self.slot_mapping],
            index[self.query_starts],
            index[self.context_lens],
            index[self.table_starts],
            index[self.block_ids],
            self.sequences,
        )
