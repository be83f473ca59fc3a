"""Shared beginnings: right hits, no wrong ones, and none that cost a token."""

from __future__ import annotations

import pytest
from headrace.engine.block_pool import BlockPool
from headrace.engine.prefix_cache import PrefixCache, blake2b_digest, namespace_root
from headrace.engine.request import Request

from .schedulers import names, request, run_out, scheduler, shape, work

BLOCK = 4


def shared(name: str, prompt: list[int], max_tokens: int = 1, **changes: object) -> Request:
    return request(name, 0, max_tokens, prompt_token_ids=prompt, prefix_cache=True, **changes)


def cached_after(first: Request, second: Request) -> int | None:
    """Prompt tokens that the second request finds, when the first has run out before it."""
    subject = scheduler(block_size=BLOCK, budget=64)
    for each in (first, second):
        subject.add(each)
        run_out(subject)
    return second.num_cached_tokens


@pytest.mark.parametrize(("length", "cached"), [(7, 4), (8, 4), (9, 8), (12, 8), (13, 12)])
def test_d3_at_least_one_token_is_computed(length: int, cached: int) -> None:
    prompt = list(range(length))
    assert cached_after(shared("a", prompt), shared("b", prompt)) == cached


@pytest.mark.parametrize("far", [1, 256, 65_536])
def test_d3_one_other_id_is_another_prefix(far: int) -> None:
    prompt, other = [65] * 12, [65, 65, 65, 65, 65, 65 + far, *[65] * 6]
    assert cached_after(shared("a", prompt), shared("b", other)) == 4
    assert cached_after(shared("a", prompt), shared("b", [65 + far, *prompt[1:]])) == 0


def test_d3_namespaces_never_meet() -> None:
    roots = [
        namespace_root("m"),
        namespace_root("m", adapter="x"),
        namespace_root("m", tenant="x"),
        namespace_root("m", salt="x"),
        namespace_root("m", adapter="x", salt="x"),
        namespace_root("mx"),
        namespace_root("m", tenant="ab", salt="c"),
        namespace_root("m", tenant="a", salt="bc"),
    ]
    assert len(set(roots)) == len(roots)
    prompt = list(range(12))
    assert cached_after(shared("a", prompt, cache_root=roots[2]), shared("b", prompt, cache_root=roots[3])) == 0
    assert cached_after(shared("a", prompt, cache_root=roots[2]), shared("b", prompt, cache_root=roots[2])) == 8


def test_who_does_not_share_neither_finds_nor_is_found() -> None:
    prompt = list(range(12))
    assert cached_after(shared("a", prompt), request("b", 0, 1, prompt_token_ids=prompt)) == 0
    assert cached_after(request("a", 0, 1, prompt_token_ids=prompt), shared("b", prompt)) == 0


def test_d3_after_the_first_block_is_gone_its_successors_are_no_hit() -> None:
    subject = scheduler(blocks=6, block_size=BLOCK, budget=64)
    first, again = shared("first", list(range(17))), shared("again", list(range(17)))
    subject.add(first)
    run_out(subject)
    cache, pool = subject.cache, subject.pool
    assert cache.cached_blocks(again, 16) == 4
    head = cache.match(again, 16)[0]
    pool.discard(head.block)
    cache._drop(head)
    assert cache.match(again, 16) == []
    # Computed again, the head is a new history: the old successors do not fit on to it and are replaced.
    subject.add(again)
    run_out(subject)
    third = shared("third", list(range(17)))
    assert [entry.parent for entry in cache.match(third, 16)][1:] == cache.match(third, 16)[:-1]
    assert len(cache.match(third, 16)) == 4
    cache.check_integrity()


def test_forced_collisions_are_misses() -> None:
    subject = scheduler(block_size=BLOCK, budget=64, digest=lambda _parent, _tokens: b"same")
    prompts = [[n] * 9 for n in range(5)]
    for index, prompt in enumerate(prompts):
        each = shared(str(index), prompt)
        subject.add(each)
        run_out(subject)
        assert each.num_cached_tokens == 0
    assert subject.cache.collisions >= 4
    assert len(subject.cache) == 1


def test_a_block_with_other_parents_is_another_block() -> None:
    """A hash over a block alone would take ``b`` for the continuation of ``a``."""
    by_block = scheduler(block_size=BLOCK, budget=64, digest=lambda _parent, tokens: blake2b_digest(b"", tokens))
    by_block.add(shared("a", [1] * 4 + [2] * 4 + [0]))
    run_out(by_block)
    second = shared("b", [3] * 4 + [2] * 4 + [0])
    by_block.add(second)
    run_out(by_block)
    third = shared("c", [1] * 4 + [2] * 4 + [5])
    by_block.add(third)
    run_out(by_block)
    assert second.num_cached_tokens == 0
    assert third.num_cached_tokens == 4, "the second block now belongs to another history"
    assert by_block.cache.collisions >= 1


def test_running_requests_share_blocks_and_the_oldest_unused_go_first() -> None:
    subject = scheduler(blocks=8, block_size=BLOCK, budget=64)
    prompt = list(range(8))
    one, two = shared("one", [*prompt, 50], max_tokens=6), shared("two", [*prompt, 60], max_tokens=6)
    subject.add(one)
    work(subject)
    subject.add(two)
    assert shape(work(subject)) == [("one", 9, 1, True), ("two", 8, 1, True)]
    assert one.block_table[:2] == two.block_table[:2]
    assert subject.pool.references(one.block_table[0]) == 2
    run_out(subject)
    assert subject.pool.num_free == 8
    subject.add(request("big", 28, 1))  # takes 7 of 8 blocks: all but the one that was used last
    run_out(subject)
    assert subject.cache.cached_blocks(shared("late", [*prompt, 70]), 8) in (0, 1)
    assert len(subject.cache) <= 1


def test_output_is_shared_too() -> None:
    subject = scheduler(block_size=BLOCK, budget=64)
    first = shared("turn 1", [1, 2, 3], max_tokens=6)
    subject.add(first)
    run_out(subject)
    second = shared("turn 2", [1, 2, 3, *first.output_token_ids, 7, 8])
    subject.add(second)
    assert names(work(subject)) == ["turn 2"]
    assert second.num_cached_tokens == 8


def test_duplicates_computed_at_once_do_no_harm() -> None:
    subject = scheduler(block_size=BLOCK, budget=64)
    for name in "abc":
        subject.add(shared(name, list(range(9))))
    run_out(subject)
    assert len(subject.cache) == 2
    assert subject.pool.num_free == subject.pool.num_blocks


def test_the_pool_tells_its_index_what_it_evicts() -> None:
    pool = BlockPool(2, BLOCK)
    cache = PrefixCache(pool)
    owner = shared("a", list(range(8)))
    owner.block_table, owner.num_computed_tokens = pool.allocate(2), 8
    cache.register(owner)
    pool.release(owner.block_table)
    assert len(cache) == 2
    assert pool.num_free == 2
    pool.allocate(1)
    assert len(cache) == 1
    assert cache.cached_blocks(shared("b", list(range(8))), 8) == 1, "the tail goes before the head"
    cache.check_integrity()
