"""Pausing requests when memory runs out: who, how, and that all come to their end."""

from __future__ import annotations

import pytest
from headrace.engine.block_pool import BlockPool
from headrace.engine.invariants import check_scheduler
from headrace.engine.preemption import HYSTERESIS_STEPS, CostModel, PreemptionMethod, choose_victim
from headrace.engine.request import Request, RequestStatus
from headrace.engine.scheduler import Scheduler

from .schedulers import RECOMPUTE_IS_CHEAP, SWAP_IS_CHEAP, names, request, run_out, scheduler, work

COST = CostModel(swap_fixed_seconds=1.0, swap_seconds_per_block=0.1, seconds_per_token=0.1)


def running(pool: BlockPool, name: str, tokens: int, shared: list[int] | None = None) -> Request:
    """A request that has computed so many tokens."""
    each = request(name, tokens, 4)
    each.num_computed_tokens = tokens
    for block in shared or []:
        pool.acquire(block)
    each.block_table = [*(shared or []), *pool.allocate(pool.blocks_for(tokens) - len(shared or []))]
    return each


def test_least_cost_for_each_block_freed_is_chosen() -> None:
    pool = BlockPool(64, 4)
    short, long = running(pool, "short", 4), running(pool, "long", 100)
    victim = choose_victim([long, short], COST, pool, swap_blocks_free=64, step=0)
    # Swapping 25 blocks costs 2 * (1 + 2.5) s: 0.28 s a block; computing 4 tokens again 0.4 s for its one block.
    assert victim is not None
    assert (victim.request, victim.method) == (long, PreemptionMethod.SWAP)
    victim = choose_victim([long, short], COST, pool, swap_blocks_free=24, step=0)
    # Without room to swap, the long one would have to compute 100 tokens again: 0.4 s a block as well; first wins.
    assert victim is not None
    assert (victim.request, victim.method) == (long, PreemptionMethod.RECOMPUTE)


def test_shared_blocks_do_not_count_as_freed() -> None:
    pool = BlockPool(64, 4)
    owner = running(pool, "owner", 40)
    sharer = running(pool, "sharer", 44, owner.block_table)
    victim = choose_victim([sharer, owner], SWAP_IS_CHEAP, pool, swap_blocks_free=64, step=0)
    assert victim is not None
    assert victim.request is sharer, "the owner alone frees nothing"
    assert choose_victim([owner], SWAP_IS_CHEAP, pool, swap_blocks_free=64, step=0) is None


def test_who_was_just_resumed_is_left_alone_where_somebody_else_is_there() -> None:
    pool = BlockPool(64, 4)
    fresh, other = running(pool, "fresh", 4), running(pool, "other", 40)
    fresh.resumed_at_step = 100
    soon, later = 100 + HYSTERESIS_STEPS - 1, 100 + HYSTERESIS_STEPS
    assert choose_victim([fresh, other], RECOMPUTE_IS_CHEAP, pool, 0, soon).request is other  # type: ignore[union-attr]
    assert choose_victim([fresh], RECOMPUTE_IS_CHEAP, pool, 0, soon).request is fresh  # type: ignore[union-attr]
    assert choose_victim([fresh, other], RECOMPUTE_IS_CHEAP, pool, 0, later).request is fresh  # type: ignore[union-attr]


def optimistic(**settings: object) -> Scheduler:
    """A scheduler that admits everybody at once, so that memory must run out."""
    subject = scheduler(max_num_seqs=8, budget=64, **settings)  # type: ignore[arg-type]
    subject.estimate.ratio = 0.0
    return subject


@pytest.mark.parametrize(("swap_blocks", "method"), [(64, PreemptionMethod.SWAP), (0, PreemptionMethod.RECOMPUTE)])
def test_all_come_to_their_end_and_the_first_is_never_paused(swap_blocks: int, method: PreemptionMethod) -> None:
    subject = optimistic(blocks=12, swap_blocks=swap_blocks)
    requests = [request(str(index), 4, 40) for index in range(6)]
    for each in requests:
        subject.add(each)
    run_out(subject)
    assert [len(each.output_token_ids) for each in requests] == [40] * 6
    assert requests[0].num_preemptions == 0
    assert subject.stats.preemptions[method] >= 5
    assert subject.stats.preemptions[method] <= 40, "requests evict each other over and over"
    assert sum(subject.stats.preemptions.values()) == subject.stats.preemptions[method]
    assert subject.pool.num_free == 12


def test_a_long_prompt_that_finds_no_room_takes_it_from_later_ones() -> None:
    subject = optimistic(blocks=12, swap_blocks=64, policy="priority")
    for index in range(4):
        subject.add(request(f"later {index}", 8, 20, priority=5))
    work(subject)
    subject.add(request("urgent", 30, 8, priority=0))
    order = [names(plan) for plan in run_out(subject)]
    ended = {name: max(i for i, plan in enumerate(order) if name in plan) for name in {n for p in order for n in p}}
    assert ended["urgent"] < max(ended[f"later {index}"] for index in range(4))
    assert sum(subject.stats.preemptions.values()) > 0


def test_what_is_part_of_the_step_is_never_paused_in_it() -> None:
    subject = optimistic(blocks=10, swap_blocks=64)
    for index in range(5):
        subject.add(request(str(index), 7, 30))
    paused = 0
    while subject.has_work:
        plan = subject.schedule()
        check_scheduler(subject)
        paused += len(subject.preempted)
        for chunk in plan.chunks:
            assert chunk.request.status is RequestStatus.RUNNING
            assert len(chunk.request.block_table) * 4 >= chunk.start + chunk.length
        subject.commit(plan)
        for chunk in plan.chunks:
            if chunk.samples:
                chunk.request.append_token(1)
                if chunk.request.finish_reason:
                    subject.finish(chunk.request)
    assert paused > 10


def test_abort_of_a_swapped_request_while_its_copy_runs() -> None:
    subject = optimistic(blocks=6, swap_blocks=6)
    requests = [request(str(index), 7, 30) for index in range(3)]
    for each in requests:
        subject.add(each)
    plan = subject.schedule()
    while not plan.swap_out:
        subject.commit(plan)
        for chunk in plan.chunks:
            chunk.request.append_token(1)
        plan = subject.schedule()
    (paused,) = subject.preempted
    held = [copy.target for copy in plan.swap_out]
    assert paused.swap_table == held
    subject.finish(paused)
    check_scheduler(subject)
    assert all(subject.swap_pool.references(block) == 1 for block in held), "freed while the copy writes to it"
    subject.commit(plan)
    check_scheduler(subject)
    assert subject.swap_pool.num_free == 6


def test_abort_of_a_running_request_while_its_plan_is_out() -> None:
    subject = scheduler(blocks=4)
    each = request("r", 4, 4)
    subject.add(each)
    plan = subject.schedule()
    blocks = list(each.block_table)
    subject.finish(each)
    subject.finish(each)
    check_scheduler(subject)
    assert all(subject.pool.references(block) == 1 for block in blocks), "freed while the step writes to it"
    subject.commit(plan)
    check_scheduler(subject)
    assert subject.pool.num_free == 4
    assert not subject.has_work


def test_swapped_blocks_that_the_prefix_cache_kept_are_not_copied_back() -> None:
    subject = optimistic(blocks=8, swap_blocks=16)
    requests = [request(str(i), 0, 16, prompt_token_ids=[i] * 9, prefix_cache=True) for i in range(2)]
    for each in requests:
        subject.add(each)
    run_out(subject)
    stats = subject.stats
    assert stats.preemptions[PreemptionMethod.SWAP] >= 1
    assert stats.blocks_swapped_in < stats.blocks_swapped_out
    again = request("again", 0, 1, prompt_token_ids=[1] * 9, prefix_cache=True)
    assert subject.cache.cached_blocks(again, 8) == 2, "a swapped request's blocks lost their hashes"
