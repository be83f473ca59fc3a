"""Which requests compute what, step by step, without a model."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from headrace.engine import FinishReason, SamplingParams
from headrace.engine.block_pool import BlockPool
from headrace.engine.request import Request, RequestStatus
from headrace.engine.scheduler import Scheduler, StepPlan, check_scheduler
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

EOS = 9


def request(name: str, prompt_len: int, max_tokens: int) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=[1] * prompt_len,
        params=SamplingParams(max_tokens=max_tokens),
        max_tokens=max_tokens,
        eos_token_ids=frozenset({EOS}),
    )


def scheduler(*, blocks: int = 64, block_size: int = 4, max_num_seqs: int = 8, budget: int = 16) -> Scheduler:
    return Scheduler(BlockPool(blocks, block_size), max_num_seqs, budget)


def work(subject: Scheduler, token: int = 1) -> StepPlan:
    """One step as the engine does it; every sampled request draws ``token``."""
    plan = subject.schedule()
    check_scheduler(subject)
    subject.commit(plan)
    for chunk in plan.chunks:
        if chunk.samples:
            chunk.request.append_token(token)
            if chunk.request.finish_reason:
                subject.finish(chunk.request)
    check_scheduler(subject)
    return plan


def shape(plan: StepPlan) -> list[tuple[str, int, int, bool]]:
    return [(chunk.request.request_id, chunk.start, chunk.length, chunk.samples) for chunk in plan.chunks]


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
    assert [name for name, *_ in shape(work(subject))] == ["a", "b"]
    assert [name for name, *_ in shape(work(subject))] == ["a", "b"]
    assert [name for name, *_ in shape(work(subject))] == ["c"]


def test_nothing_is_admitted_whose_largest_extent_is_not_free() -> None:
    subject = scheduler(blocks=4)
    subject.add(request("big", 4, 9))  # 12 tokens of keys and values: 3 blocks, though its prompt takes 1
    subject.add(request("other", 4, 2))  # 5 tokens: 2 blocks
    subject.add(request("small", 1, 1))
    assert [name for name, *_ in shape(work(subject))] == ["big"]
    assert subject.pool.num_free == 3
    while subject.running:
        assert [name for name, *_ in shape(work(subject))] == ["big"]
    assert [name for name, *_ in shape(work(subject))] == ["other", "small"]


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


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, steps and aborts in any order over a pool so small that admission blocks."""

    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = scheduler(blocks=6, block_size=3, max_num_seqs=2, budget=5)
        self.requests: list[Request] = []

    @rule(prompt_len=st.integers(1, 12), max_tokens=st.integers(1, 7))
    def add(self, prompt_len: int, max_tokens: int) -> None:
        added = request(str(len(self.requests)), prompt_len, max_tokens)
        assert self.scheduler.pool.blocks_for(added.max_kv_tokens) <= 6
        self.requests.append(added)
        self.scheduler.add(added)

    @rule(tokens=st.lists(st.sampled_from([1, 1, 1, EOS]), min_size=3, max_size=3))
    def step(self, tokens: list[int]) -> None:
        before = [each for each in self.requests if each.status is RequestStatus.RUNNING]
        plan = self.scheduler.schedule()
        check_scheduler(self.scheduler)
        self.check_plan(plan, before)
        self.scheduler.commit(plan)
        for chunk, token in zip(plan.chunks, tokens, strict=False):
            if chunk.samples:
                chunk.request.append_token(token)
                if chunk.request.finish_reason:
                    self.seen[chunk.request.finish_reason.value] += 1
                    self.scheduler.finish(chunk.request)

    def check_plan(self, plan: StepPlan, before: list[Request]) -> None:
        pool = self.scheduler.pool
        assert plan.num_tokens <= self.scheduler.max_num_batched_tokens
        assert bool(plan.chunks) == self.scheduler.has_work, "there is work and nothing is done"
        named = [chunk.request for chunk in plan.chunks]
        assert len(set(named)) == len(named)
        for chunk in plan.chunks:
            assert chunk.length >= 1
            assert chunk.start == chunk.request.num_computed_tokens
            assert chunk.samples == (chunk.start + chunk.length == chunk.request.num_tokens)
            self.seen["partial chunks"] += not chunk.samples
        if plan.num_tokens < self.scheduler.max_num_batched_tokens:
            assert not any(each.num_uncomputed_tokens for each in self.scheduler.running), "budget was left unused"
        decoding = [each for each in before if each.output_token_ids]
        assert named[: len(decoding)] == decoding, "a decode was held up"
        if self.scheduler.waiting and plan.num_tokens < self.scheduler.max_num_batched_tokens:
            if len(self.scheduler.running) == self.scheduler.max_num_seqs:
                self.seen["blocked by seats"] += 1
            else:
                reserved = sum(pool.blocks_for(each.max_kv_tokens) for each in self.scheduler.running)
                first = self.scheduler.waiting[0]
                assert reserved + pool.blocks_for(first.max_kv_tokens) > 6, "nothing was in the way"
                self.seen["blocked by blocks"] += 1

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.requests))
        self.seen[f"aborted while {chosen.status.value}"] += 1
        if chosen.finish_reason is None:
            chosen.finish_reason = FinishReason.ABORT
        self.scheduler.finish(chosen)

    @invariant()
    def consistent(self) -> None:
        check_scheduler(self.scheduler)
        waiting = list(self.scheduler.waiting)
        assert waiting == sorted(waiting, key=lambda each: int(each.request_id)), "first come is not first served"

    def teardown(self) -> None:
        for _ in range(2000):
            if not self.scheduler.has_work:
                break
            self.step([1, 1, 1])
            check_scheduler(self.scheduler)
        assert all(each.finish_reason for each in self.requests)
        assert self.scheduler.pool.num_free == self.scheduler.pool.num_blocks


def test_random_operations_keep_the_invariants() -> None:
    SchedulerMachine.seen.clear()
    run_state_machine_as_test(SchedulerMachine, settings=settings(max_examples=80, stateful_step_count=40))
    seen = SchedulerMachine.seen
    for rare in ("blocked by blocks", "blocked by seats", "partial chunks", "stop", "length"):
        assert seen[rare] > 20, seen
    for status in RequestStatus:
        assert seen[f"aborted while {status.value}"] > 20, seen
