"""Any order of operations on scheduler, block pool, prefix cache and swap pool keeps their invariants."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from headrace.engine import FinishReason, Tenant
from headrace.engine.invariants import check_scheduler
from headrace.engine.preemption import PreemptionMethod
from headrace.engine.request import Request, RequestStatus
from headrace.engine.step_plan import StepPlan
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from .schedulers import EOS, RECOMPUTE_IS_CHEAP, SWAP_IS_CHEAP, request, scheduler

BLOCKS, BLOCK_SIZE, SWAP_BLOCKS = 7, 2, 3


def weak_digest(parent: bytes, tokens: bytes) -> bytes:
    """One of four digests, so that collisions are common."""
    return bytes([sum(parent + tokens) % 4])


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, plans, commits, aborts (also while a plan is out) over pools so small that everything runs short.

    The memory itself is modelled too: what each slot holds, in the cache and in the swap pool. A request must
    always find its own tokens where its block table says they are.
    """

    seen: ClassVar[Counter[str]] = Counter()
    policy: ClassVar[str] = "fcfs"

    def __init__(self) -> None:
        super().__init__()
        cheap_swap = self.policy != "fcfs"
        self.scheduler = scheduler(
            blocks=BLOCKS,
            block_size=BLOCK_SIZE,
            max_num_seqs=3,
            budget=5,
            swap_blocks=SWAP_BLOCKS,
            policy=self.policy,
            cost=SWAP_IS_CHEAP if cheap_swap else RECOMPUTE_IS_CHEAP,
            digest=weak_digest,
            tenants={"b": Tenant(max_running=1)},
        )
        self.requests: list[Request] = []
        self.pending: dict[str, list[Request]] = {}
        self.never_queued: list[Request] = []
        self.plan: StepPlan | None = None
        self.memory: list[list[tuple[int, ...]]] = [[()] * BLOCK_SIZE for _ in range(BLOCKS)]
        self.swapped: list[list[tuple[int, ...]]] = [[()] * BLOCK_SIZE for _ in range(SWAP_BLOCKS)]

    @precondition(lambda self: self.plan is None)
    @rule(
        prompt=st.lists(st.integers(1, 2), min_size=1, max_size=8),
        max_tokens=st.integers(1, 6),
        priority=st.integers(0, 9),
        tenant=st.sampled_from("ab"),
        shares=st.booleans(),
        answers=st.sampled_from([1, 1, 2, 3, 4]),
    )
    def add(self, prompt: list[int], max_tokens: int, priority: int, tenant: str, shares: bool, answers: int) -> None:
        number = len(self.requests)
        made = [
            request(
                f"{number}.{index}",
                0,
                max_tokens,
                prompt_token_ids=prompt,
                priority=priority,
                tenant=tenant,
                prefix_cache=shares,
                arrival=float(number),
                sample_index=index,
            )
            for index in range(answers)
        ]
        first = made[0]
        self.pending[first.request_id] = made[1:]
        first.num_pending_siblings = answers - 1
        self.requests += made
        self.scheduler.add(first)

    @precondition(lambda self: self.plan is None)
    @rule()
    def schedule(self) -> None:
        self.plan = plan = self.scheduler.schedule()
        assert plan.num_tokens <= 5
        assert bool(plan.chunks or plan.swap_in) == self.scheduler.has_work, "there is work and nothing is done"
        assert len({chunk.request.request_id for chunk in plan.chunks}) == len(plan.chunks)
        for source, target in plan.swap_out:
            self.swapped[target] = list(self.memory[source])
        before = [list(block) for block in self.memory]
        for source, target in plan.copy:
            self.memory[target] = list(before[source])
            self.seen["copied on write"] += 1
        for chunk in plan.chunks:
            self.write(chunk.request, chunk.start, chunk.length)
            assert chunk.samples == (chunk.start + chunk.length == chunk.request.num_tokens)
        for chunk in plan.chunks:
            self.read(chunk.request, chunk.start + chunk.length)
            self.seen["prefix hit"] += bool(chunk.request.num_adopted_blocks and chunk.start)
        # These copies may run beside the step and end after it.
        for source, target in plan.swap_in:
            self.memory[target] = list(self.swapped[source])
            self.seen["swapped in"] += 1

    def write(self, owner: Request, start: int, length: int) -> None:
        """The keys of a token depend on all tokens up to it, so a slot holds its whole history."""
        history = owner.token_ids(0, start + length)
        for position in range(start, start + length):
            block = owner.block_table[position // BLOCK_SIZE]
            assert self.scheduler.pool.references(block) == 1, "a shared block is written"
            self.memory[block][position % BLOCK_SIZE] = tuple(history[: position + 1])

    def read(self, owner: Request, length: int) -> None:
        history = owner.token_ids(0, length)
        for position in range(length):
            found = self.memory[owner.block_table[position // BLOCK_SIZE]][position % BLOCK_SIZE]
            assert found == tuple(history[: position + 1]), "a request reads what is not its own"

    @precondition(lambda self: self.plan is not None)
    @rule(tokens=st.lists(st.sampled_from([1, 2, 2, EOS]), min_size=3, max_size=3), forced=st.integers(0, 3))
    def commit(self, tokens: list[int], forced: int) -> None:
        assert self.plan is not None
        plan, self.plan = self.plan, None
        self.scheduler.commit(plan)
        for chunk, token in zip(plan.chunks, tokens, strict=False):
            if chunk.samples and chunk.request.status is RequestStatus.RUNNING:
                for answer in [chunk.request, *self.fork(chunk.request)]:
                    # Some tokens follow at once, as where a grammar leaves no choice.
                    self.take(answer, [token] + [2] * (forced if answer.sample_index % 2 == 0 else 0))

    def fork(self, first: Request) -> list[Request]:
        """Let the other answers begin; those that run now draw from the same logits."""
        pending, first.num_pending_siblings = self.pending.pop(first.request_id, []), 0
        begun = [sibling for sibling in pending if self.scheduler.fork(first, sibling)]
        self.seen["forked"] += len(begun)
        self.seen["waited to fork"] += len(pending) - len(begun)
        check_scheduler(self.scheduler)
        return begun

    def take(self, answer: Request, tokens: list[int]) -> None:
        for token in tokens:
            if answer.finish_reason is None:
                answer.append_token(token)
        if answer.finish_reason:
            self.scheduler.finish(answer)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.take_back(data.draw(st.sampled_from(self.requests)))

    @precondition(lambda self: self.scheduler.preempted)
    @rule()
    def abort_paused(self) -> None:
        self.take_back(self.scheduler.preempted[0])

    def take_back(self, chosen: Request) -> None:
        where = "a plan is out" if self.plan is not None else "between steps"
        self.seen[f"aborted while {chosen.status.value}"] += 1
        self.seen[f"aborted while {where}"] += 1
        if chosen.swap_table and self.plan is not None and self.plan.swap_out:
            self.seen["aborted while its copy runs"] += 1
        unborn = [sibling for siblings in self.pending.values() for sibling in siblings]
        if chosen in self.never_queued or chosen in unborn:
            return
        for sibling in self.pending.pop(chosen.request_id, []):
            sibling.finish_reason = FinishReason.ABORT
            self.never_queued.append(sibling)
        chosen.finish_reason = chosen.finish_reason or FinishReason.ABORT
        self.scheduler.finish(chosen)

    @invariant()
    def consistent(self) -> None:
        check_scheduler(self.scheduler)

    def teardown(self) -> None:
        for _ in range(1000):
            if self.plan is not None:
                self.commit([2, 2, 2], 0)
            if not self.scheduler.has_work:
                break
            self.schedule()
            check_scheduler(self.scheduler)
            # Most pauses happen here, where nothing is added any more; some of the paused are taken back.
            if self.scheduler.preempted and len(self.requests) % 2:
                self.take_back(self.scheduler.preempted[-1])
        assert all(each.finish_reason for each in self.requests), "a request never ends"
        assert self.scheduler.pool.num_free == BLOCKS
        assert self.scheduler.swap_pool.num_free == SWAP_BLOCKS
        for method, count in self.scheduler.stats.preemptions.items():
            self.seen[method.value] += count
        self.seen["collisions"] += self.scheduler.cache.collisions


@pytest.mark.parametrize("policy", ["fcfs", "srpt", "fair,priority,prefix"])
def test_random_operations_keep_the_invariants(policy: str) -> None:
    machine = type("Machine", (SchedulerMachine,), {"seen": Counter(), "policy": policy})
    run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=60))
    seen: Counter[str] = machine.seen  # type: ignore[attr-defined]
    rare = [
        "prefix hit",
        "collisions",
        "aborted while a plan is out",
        "forked",
        "waited to fork",
        "copied on write",
        PreemptionMethod.RECOMPUTE.value,
    ]
    if policy != "fcfs":
        rare += ["swapped in", PreemptionMethod.SWAP.value]
    for event in rare:
        assert seen[event] > 5, (event, seen)
    for status in RequestStatus:
        assert seen[f"aborted while {status.value}"] >= 3, seen
