"""Which requests compute what, step by step, without a model."""

from __future__ import annotations

from headrace.engine.invariants import check_scheduler
from headrace.engine.request import RequestStatus

from .schedulers import names, request, scheduler, shape, work


def test_decodes_come_first_and_chunks_share_what_is_left() -> None:
    subject = scheduler(budget=8)
    subject.add(request("short", 3, 9))
    assert shape(work(subject)) == [("short", 0, 3, True)]
    subject.add(request("long", 12, 2))
    subject.add(request("next", 5, 2))
    assert shape(work(subject)) == [("short", 3, 1, True), ("long", 0, 7, False)]
    assert shape(work(subject)) == [("short", 4, 1, True), ("long", 7, 5, True), ("next", 0, 2, False)]
    assert shape(work(subject)) == [("short", 5, 1, True), ("long", 12, 1, True), ("next", 2, 3, True)]


def test_a_last_chunk_of_one_token_is_sampled_once() -> None:
    subject = scheduler(budget=8)
    subject.add(request("r", 9, 2))
    plans = [shape(work(subject)) for _ in range(3)]
    assert plans == [[("r", 0, 8, False)], [("r", 8, 1, True)], [("r", 9, 1, True)]]
    assert not subject.has_work


def test_nothing_is_admitted_past_the_seats() -> None:
    subject = scheduler(max_num_seqs=2)
    for name in "abc":
        subject.add(request(name, 2, 2))
    assert names(work(subject)) == ["a", "b"]
    assert names(work(subject)) == ["a", "b"]
    assert names(work(subject)) == ["c"]


def test_nothing_is_admitted_that_is_not_expected_to_fit() -> None:
    subject = scheduler(blocks=4)
    subject.add(request("big", 4, 12))  # 15 tokens of keys and values at its largest: all 4 blocks
    subject.add(request("other", 8, 6))
    assert names(work(subject)) == ["big"]
    assert subject.pool.num_free == 3
    while subject.running:
        assert names(work(subject)) == ["big"]
    assert names(work(subject)) == ["other"]
    assert sum(subject.stats.preemptions.values()) == 0


def test_ending_in_any_state_and_twice() -> None:
    subject = scheduler(max_num_seqs=2, budget=4)
    requests = [request(name, 6, 3) for name in "abc"]
    for each in requests:
        subject.add(each)
    work(subject)
    assert [each.status for each in requests] == [RequestStatus.RUNNING, RequestStatus.WAITING, RequestStatus.WAITING]
    for each in requests * 2:
        subject.finish(each)
        check_scheduler(subject)
        assert each.status is RequestStatus.FINISHED
    assert not subject.has_work
    assert subject.pool.num_free == subject.pool.num_blocks


def test_a_hundred_thousand_requests() -> None:
    subject = scheduler(blocks=256, block_size=1, max_num_seqs=256, budget=256)
    requests = [request(str(index), 1, 1) for index in range(100_000)]
    for each in requests:
        subject.add(each)
    order = []
    while subject.has_work:
        plan = subject.schedule()
        subject.commit(plan)
        for chunk in plan.chunks:
            order.append(chunk.request)
            subject.finish(chunk.request)
    assert order == requests
    check_scheduler(subject)
