"""Random paged caches and batches for the attention tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from headrace.kernels import AttentionBatch, AttentionLayout, BulkIndex, paged_attention, reference, store_kv
from headrace.kernels.grouped_attention import grouped_attention

NAN = float("nan")
Attention = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class PagedCase:
    """One step over a cache in which every slot that no sequence owns is NaN, block 0 included."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_tables: list[list[int]]
    query_lens: Sequence[int]
    context_lens: Sequence[int]
    batch: AttentionBatch

    def run(
        self, sliding_window: int | None = None, soft_cap: float | None = None, attention: Attention = paged_attention
    ) -> torch.Tensor:
        """The kernel's answer."""
        return attention(
            self.query,
            self.key_cache,
            self.value_cache,
            self.batch,
            scale=self.query.shape[-1] ** -0.5,
            sliding_window=sliding_window,
            soft_cap=soft_cap,
        )

    def expected(self, sliding_window: int | None = None, soft_cap: float | None = None) -> torch.Tensor:
        """The plain twin's answer."""
        return reference.paged_attention(
            self.query,
            self.key_cache,
            self.value_cache,
            block_tables=self.block_tables,
            query_lens=self.query_lens,
            context_lens=self.context_lens,
            scale=self.query.shape[-1] ** -0.5,
            sliding_window=sliding_window,
            soft_cap=soft_cap,
        )

    def check(self, sliding_window: int | None = None, soft_cap: float | None = None) -> None:
        """Compare them in float32: the kernel for this processor and plain torch with the twin."""
        expected = self.expected(sliding_window, soft_cap)
        for attention in (paged_attention, grouped_attention):
            answer = self.run(sliding_window, soft_cap, attention)
            torch.testing.assert_close(answer, expected, atol=2e-5, rtol=1e-4)


def attention_batch(
    block_tables: Sequence[Sequence[int]], query_lens: Sequence[int], context_lens: Sequence[int], block_size: int
) -> AttentionBatch:
    """A step's attention, with slots that do not matter."""
    bulk = BulkIndex()
    layout = AttentionLayout.build(
        bulk,
        slots=[0] * sum(query_lens),
        block_tables=block_tables,
        query_lens=query_lens,
        context_lens=context_lens,
        block_size=block_size,
    )
    return layout.on_device(bulk.to(torch.device("cpu")))


def paged_case(
    sequences: Sequence[tuple[int, int]],
    *,
    heads: int = 6,
    kv_heads: int = 2,
    head_dim: int = 16,
    block_size: int = 4,
    layers: int = 2,
    seed: int = 0,
) -> PagedCase:
    """A step of ``(query_len, context_len)`` sequences over a shuffled cache that is strided like the engine's.

    Block 0 belongs to nobody, so padding reads NaN.
    """
    generator = torch.Generator().manual_seed(seed)
    query_lens = [query_len for query_len, _ in sequences]
    context_lens = [context_len for _, context_len in sequences]
    blocks_used = [-(-context_len // block_size) for context_len in context_lens]
    num_blocks = sum(blocks_used) + 3
    free = (torch.randperm(num_blocks - 1, generator=generator) + 1).tolist()
    block_tables = [[free.pop() for _ in range(count)] for count in blocks_used]

    data = torch.full((num_blocks, layers, 2, block_size, kv_heads, head_dim), NAN)
    key_cache, value_cache = data[:, layers - 1, 0], data[:, layers - 1, 1]
    slots = [
        table[position // block_size] * block_size + position % block_size
        for table, context_len in zip(block_tables, context_lens, strict=True)
        for position in range(context_len)
    ]
    keys, values = torch.randn((2, len(slots), kv_heads, head_dim), generator=generator)
    store_kv(keys, values, key_cache, value_cache, torch.tensor(slots))

    batch = attention_batch(block_tables, query_lens, context_lens, block_size)
    query = torch.randn((sum(query_lens), heads, head_dim), generator=generator)
    return PagedCase(query, key_cache, value_cache, block_tables, query_lens, context_lens, batch)
