"""Which requests compute how many tokens in the next step. No tensors, no clock, no model."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .block_pool import BlockPool
from .request import Request, RequestStatus


@dataclass(frozen=True)
class ScheduledChunk:
    """Tokens ``start .. start + length`` of one request, computed in one step."""

    request: Request
    start: int
    length: int
    samples: bool
    """Whether a token is drawn after this chunk: only when it ends at the last known token."""


@dataclass(frozen=True)
class StepPlan:
    """One step's work: decodes first, then prefill chunks, in the order of admission."""

    chunks: tuple[ScheduledChunk, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens the step computes."""
        return sum(chunk.length for chunk in self.chunks)


class Scheduler:
    """Iteration-level batching with one token budget a step, first come first served.

    Every step, finished requests leave and waiting ones join (Yu et al. 2022, "Orca"). Decodes take their
    tokens first and prefill chunks share what is left (Agrawal et al. 2024, "Sarathi-Serve"), so a long prompt
    never stalls those that are already answering. A request is admitted once the blocks for its largest
    extent are spoken for, so a running request always finds its next block.

    Args:
        pool: the KV blocks; this scheduler is the only one that takes or frees them.
        max_num_seqs: most requests that run at once.
        max_num_batched_tokens: most tokens a step.
    """

    def __init__(self, pool: BlockPool, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._reserved_blocks = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queue a request. It must fit into an empty pool (see :meth:`headrace.engine.Engine.add`)."""
        self.waiting.append(request)

    def schedule(self) -> StepPlan:
        """Choose the next step's work, and take the blocks that it writes."""
        budget = self.max_num_batched_tokens
        decodes: list[ScheduledChunk] = []
        prefills: list[ScheduledChunk] = []
        for request in self.running:
            if request.num_uncomputed_tokens == 1 and request.output_token_ids:
                decodes.append(self._take(request, 1))
                budget -= 1
        for request in self.running:
            if budget and request.num_uncomputed_tokens:
                prefills.append(self._take(request, min(budget, request.num_uncomputed_tokens)))
                budget -= prefills[-1].length
        while budget and self.waiting and self._admit(self.waiting[0]):
            request = self.waiting.popleft()
            prefills.append(self._take(request, min(budget, request.num_uncomputed_tokens)))
            budget -= prefills[-1].length
        return StepPlan(chunks=tuple(decodes + prefills))

    def _admit(self, request: Request) -> bool:
        """Start a waiting request if a slot and its largest extent in blocks are to be had."""
        blocks = self.pool.blocks_for(request.max_kv_tokens)
        if len(self.running) >= self.max_num_seqs or self._reserved_blocks + blocks > self.pool.num_blocks:
            return False
        self._reserved_blocks += blocks
        request.status = RequestStatus.RUNNING
        self.running.append(request)
        return True

    def _take(self, request: Request, length: int) -> ScheduledChunk:
        start = request.num_computed_tokens
        needed = self.pool.blocks_for(start + length) - len(request.block_table)
        request.block_table += self.pool.allocate(needed)
        request.num_inflight_tokens = length
        return ScheduledChunk(request, start, length, samples=start + length == request.num_tokens)

    def commit(self, plan: StepPlan) -> None:
        """Count the plan's tokens as computed. Requests that ended while in flight keep out of it."""
        for chunk in plan.chunks:
            request = chunk.request
            if request.status is RequestStatus.RUNNING:
                request.num_computed_tokens += chunk.length
                request.num_inflight_tokens = 0

    def finish(self, request: Request) -> None:
        """Let a request leave, whatever its state, and free its blocks. Ending twice is harmless.

        Must not be called between :meth:`schedule` and the end of the step's writes.
        """
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self._reserved_blocks -= self.pool.blocks_for(request.max_kv_tokens)
            self.pool.release(request.block_table)
            request.block_table = []
            request.num_inflight_tokens = 0
        elif request.status is RequestStatus.WAITING:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED


def check_scheduler(scheduler: Scheduler) -> None:
    """Check the scheduler's invariants; for tests, after any step.

    Raises:
        AssertionError: naming the invariant that does not hold.
    """
    running, pool = scheduler.running, scheduler.pool
    assert len(running) <= scheduler.max_num_seqs, "more requests run than allowed"
    for request in running:
        assert request.status is RequestStatus.RUNNING, f"{request.request_id} runs but is {request.status}"
        held = request.num_computed_tokens + request.num_inflight_tokens
        assert held <= request.num_tokens, f"{request.request_id} computed tokens it does not know"
        assert len(request.block_table) == pool.blocks_for(held), f"{request.request_id} holds too many blocks"
    for request in scheduler.waiting:
        assert request.status is RequestStatus.WAITING, f"{request.request_id} waits but is {request.status}"
        assert not request.block_table, f"{request.request_id} waits and holds blocks"
    reserved = sum(pool.blocks_for(request.max_kv_tokens) for request in running)
    assert reserved == scheduler._reserved_blocks <= pool.num_blocks, "reservations are wrong"
    pool.check_integrity(request.block_table for request in running)
