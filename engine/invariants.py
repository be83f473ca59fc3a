"""What must hold between any two operations of a scheduler; for tests."""

from __future__ import annotations

from .request import RequestStatus, admission_key
from .scheduler import Scheduler


def check_scheduler(scheduler: Scheduler) -> None:
    """Check the scheduler's invariants; for tests, after any operation.

    Raises:
        AssertionError: naming the invariant that does not hold.
    """
    running, pool = scheduler.running, scheduler.pool
    assert len(running) <= scheduler.max_num_seqs, "more requests run than allowed"
    assert running == sorted(running, key=admission_key), "running requests are out of order"
    for request in running:
        assert request.status is RequestStatus.RUNNING, f"{request.request_id} runs but is {request.status}"
        held = request.num_computed_tokens + request.num_inflight_tokens
        assert held <= request.num_tokens, f"{request.request_id} computed tokens it does not know"
        assert len(request.block_table) == pool.blocks_for(held), f"{request.request_id} holds the wrong blocks"
        assert not request.swap_table, f"{request.request_id} runs and holds swap blocks"
    for request in [*scheduler.waiting, *scheduler.preempted]:
        assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED), f"{request.request_id} is lost"
        assert not request.block_table, f"{request.request_id} does not run and holds blocks"
        if request.swap_table:
            assert len(request.swap_table) == pool.blocks_for(request.num_computed_tokens), "swap table is wrong"
    assert sum(1 for _ in scheduler.waiting) == len(scheduler.waiting), "the waiting queue miscounts"
    extents = sum(pool.blocks_for(request.max_kv_tokens) for request in running)
    assert extents == scheduler._extent_blocks, "the extents of running requests are wrong"
    pool.check_integrity([*(request.block_table for request in running), *scheduler._blocks_to_release])
    swapped = [request.swap_table for request in scheduler.preempted]
    scheduler.swap_pool.check_integrity([*swapped, *scheduler._swap_blocks_to_release])
    scheduler.cache.check_integrity()
