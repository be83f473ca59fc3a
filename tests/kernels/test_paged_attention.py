"""Paged attention against its plain twin; every slot that nobody wrote is NaN in all of these."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from headrace.kernels.cpu_library import cpu_library

from .paged import NAN, PagedCase, attention_batch, paged_case

# Prefill chunks and decodes mixed, with contexts that end before, at and after the edge of a block of 4.
MIXED = [(1, 1), (3, 3), (1, 4), (4, 4), (1, 5), (5, 5), (2, 9), (1, 8), (8, 16), (9, 9), (12, 12), (11, 29), (1, 17)]


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 160, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (6, 1), (12, 2), (14, 2), (8, 8)])
def test_d15_head_sizes_and_groups(head_dim: int, heads: int, kv_heads: int) -> None:
    paged_case(MIXED, heads=heads, kv_heads=kv_heads, head_dim=head_dim).check()


@pytest.mark.parametrize("block_size", [1, 3, 16, 32])
def test_block_sizes(block_size: int) -> None:
    edges = [block_size - 1, block_size, block_size + 1, 2 * block_size, 2 * block_size + 1]
    decodes = [(1, context_len) for context_len in edges if context_len]
    chunks = [(min(most, context_len), context_len) for context_len in edges if context_len for most in (3, 9)]
    paged_case(decodes + chunks, block_size=block_size).check()


def test_short_chunks_are_computed_among_the_decodes() -> None:
    case = paged_case([(1, 9), (8, 12), (9, 12), (2, 10)])
    assert [tuple(group.query_positions.shape) for group in case.batch.groups] == [(11, 1), (1, 9)]
    case.check()


@pytest.mark.parametrize("window", [1, 2, 4, 5, 8, 100])
def test_d17_sliding_window(window: int) -> None:
    paged_case(MIXED).check(sliding_window=window)


@pytest.mark.parametrize("window", [None, 5])
def test_soft_cap(window: int | None) -> None:
    case = paged_case(MIXED)
    case.check(soft_cap=0.7, sliding_window=window)
    assert not torch.allclose(case.run(soft_cap=0.7), case.run(), atol=1e-2), "the cap did nothing"


@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("poison", [NAN, float("inf"), -float("inf")])
def test_unwritten_slots_do_not_leak(poison: float, soft_cap: float | None) -> None:
    case = paged_case([(1, 2), (1, 7), (3, 6), (9, 10)])
    assert case.batch.groups[0].block_ids.eq(0).any(), "no row is padded with block 0"
    for cache in (case.key_cache, case.value_cache):
        assert cache[0].isnan().all()
        cache.masked_fill_(cache.isnan(), poison)
    assert case.run(soft_cap=soft_cap).isfinite().all()
    case.check(soft_cap=soft_cap)


def test_block_placement_does_not_matter() -> None:
    answers = [paged_case(MIXED, seed=1).run()]
    case = paged_case(MIXED, seed=1)
    moved = torch.randperm(case.key_cache.shape[0], generator=torch.Generator().manual_seed(5))
    # Block b moves to place[b]; the tables follow it.
    place = moved.argsort()
    tables = [[int(place[block]) for block in table] for table in case.block_tables]
    assert tables != case.block_tables
    batch = attention_batch(tables, case.query_lens, case.context_lens, 4)
    case = replace(case, key_cache=case.key_cache[moved], value_cache=case.value_cache[moved], batch=batch)
    answers.append(case.run())
    torch.testing.assert_close(answers[0], answers[1], atol=0, rtol=0)


def test_decodes_of_unlike_lengths_are_split_into_groups() -> None:
    case = paged_case([(1, 3), (1, 400), (1, 40), (1, 5), (1, 60), (1, 390)])
    shapes = [tuple(group.block_ids.shape) for group in case.batch.groups]
    assert shapes == [(2, 2), (1, 10), (1, 15), (2, 100)]
    case.check()


def test_a_prefill_chunk_of_one_token_is_like_a_decode() -> None:
    paged_case([(1, 1), (1, 33), (4, 33)]).check()


LONG = [(1, 201), (70, 300), (1, 65), (2, 64), (1, 128), (130, 130), (9, 9)]
"""Contexts that end before, at and after the edge of the compiled kernel's tiles of 64 tokens."""


@pytest.mark.parametrize("window", [None, 5, 64, 100])
@pytest.mark.parametrize("head_dim", [16, 64, 80])
def test_long_contexts(head_dim: int, window: int | None) -> None:
    paged_case(LONG, head_dim=head_dim, block_size=16).check(sliding_window=window)
    paged_case(LONG, head_dim=head_dim, heads=8, kv_heads=1).check(sliding_window=window, soft_cap=2.0)


def low_case(sequences: list[tuple[int, int]], head_dim: int) -> PagedCase:
    """A case in bfloat16."""
    case = paged_case(sequences, head_dim=head_dim)
    return replace(
        case,
        query=case.query.bfloat16(),
        key_cache=case.key_cache.bfloat16(),
        value_cache=case.value_cache.bfloat16(),
    )


@pytest.mark.parametrize(("window", "soft_cap"), [(None, None), (70, None), (None, 2.0)])
@pytest.mark.parametrize("head_dim", [16, 48, 64, 80, 256])
def test_low_precision_stays_close(head_dim: int, window: int | None, soft_cap: float | None) -> None:
    case = low_case([*MIXED, *LONG], head_dim)
    answer = case.run(window, soft_cap)
    assert answer.dtype is torch.bfloat16
    torch.testing.assert_close(answer.float(), case.expected(window, soft_cap), atol=2e-2, rtol=2e-2)


def test_queries_may_be_a_part_of_a_wider_product() -> None:
    """As those are that lie between keys and values."""
    case = paged_case(MIXED)
    beside = torch.full_like(case.query, NAN)
    replace(case, query=torch.cat([case.query, beside], dim=1)[:, : case.query.shape[1]]).check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 70])
def test_an_answer_depends_neither_on_chunks_nor_on_neighbours(window: int | None, dtype: torch.dtype) -> None:
    if cpu_library(torch.empty(0, dtype=dtype)) is None:
        pytest.skip("torch's own attention promises no such thing")
    whole = paged_case([(300, 300), (1, 90)], head_dim=64)
    whole = replace(whole, query=whole.query.to(dtype), key_cache=whole.key_cache.to(dtype))
    whole = replace(whole, value_cache=whole.value_cache.to(dtype))
    expected, table = whole.run(window), whole.block_tables[0]
    for query_len, context_len in [(300, 300), (1, 300), (7, 64), (1, 65), (101, 220)]:
        rows = slice(context_len - query_len, context_len)
        part = replace(whole, query=whole.query[rows], batch=attention_batch([table], [query_len], [context_len], 4))
        assert torch.equal(part.run(window), expected[rows]), (query_len, context_len)


@pytest.mark.parametrize(("query_len", "context_len"), [(0, 3), (4, 3)])
def test_impossible_lengths_are_refused(query_len: int, context_len: int) -> None:
    with pytest.raises(ValueError, match=f"{query_len} query tokens and {context_len} context tokens"):
        attention_batch([[1]], [query_len], [context_len], 4)


def test_a_step_without_sequences_has_no_answers() -> None:
    case = paged_case([(1, 5)])
    empty = replace(case, query=case.query[:0], batch=attention_batch([], [], [], 4))
    assert empty.run().shape == (0, 6, 16)
