"""Which requests compute how many tokens in the next step. No tensors, no clock, no model."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from .admission import OutputEstimate, peak_tokens
from .block_pool import BlockPool
from .preemption import CostModel, PreemptionMethod, Victim, choose_victim
from .prefix_cache import PrefixCache
from .request import Request, RequestStatus, admission_key
from .step_plan import BlockCopy, ScheduledChunk, StepPlan
from .tenants import OUTPUT_WEIGHT, PROMPT_WEIGHT, TenantUsage
from .waiting import WaitingQueue


@dataclass
class SchedulerStats:
    """Counters since the start."""

    preemptions: dict[PreemptionMethod, int] = field(default_factory=lambda: dict.fromkeys(PreemptionMethod, 0))
    prefix_cache_queries: int = 0
    """Prompt tokens looked up."""
    prefix_cache_hits: int = 0
    """Prompt tokens found."""
    blocks_swapped_in: int = 0
    blocks_swapped_out: int = 0
    forks: int = 0
    """Answers that began on another's blocks."""
    blocks_copied: int = 0
    """Shared blocks that were copied before a write."""


class Scheduler:
    """Iteration-level batching with one token budget a step.

    Every step, finished requests leave and waiting ones join (Yu et al. 2022, "Orca"). Decodes take their
    tokens first and prefill chunks share what is left (Agrawal et al. 2024, "Sarathi-Serve"), so a long prompt
    never stalls those that are already answering.

    Requests are admitted on an estimate. When memory runs out, a request takes it from one that comes later in
    the order of admission and is not part of this step yet, or pauses itself; so the first in that order always
    goes on, and no two can evict each other for ever.

    Between :meth:`schedule` and :meth:`commit` a plan is out: nothing that it touches is freed until then, even
    if its request is finished meanwhile.

    Args:
        pool: the KV blocks; only this scheduler takes or frees them.
        cache: index of their contents.
        waiting: who is next.
        usage: what tenants use; the same that ``waiting`` looks at.
        cost: of the ways to pause a request.
        max_num_seqs: most requests that run at once.
        max_num_batched_tokens: most tokens a step.
        swap_pool: ids of the blocks in CPU memory; a pool of no blocks means recomputation only.
    """

    def __init__(
        self,
        pool: BlockPool,
        cache: PrefixCache,
        waiting: WaitingQueue,
        usage: TenantUsage,
        *,
        cost: CostModel,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        swap_pool: BlockPool,
    ) -> None:
        self.pool = pool
        self.cache = cache
        self.waiting = waiting
        self.usage = usage
        self.cost = cost
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.swap_pool = swap_pool
        self.running: list[Request] = []
        """In the order of admission keys."""
        self.preempted: list[Request] = []
        """In the order of admission keys."""
        self.estimate = OutputEstimate()
        self.stats = SchedulerStats()
        self._step = 0
        self._last_preemption_step = -1
        self._starved: Request | None = None
        self._extent_blocks = 0
        self._swap_out: list[BlockCopy] = []
        self._swap_in: list[BlockCopy] = []
        self._copies: list[BlockCopy] = []
        self._plan_is_out = False
        self._blocks_to_release: list[list[int]] = []
        self._swap_blocks_to_release: list[list[int]] = []

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting, paused or running."""
        return bool(self.running or self.preempted or len(self.waiting))

    def add(self, request: Request) -> None:
        """Queue a request. It must fit into an empty pool (see :func:`headrace.engine.admission.output_room`)."""
        self.waiting.add(request)

    def schedule(self) -> StepPlan:
        """Choose the next step's work, and take the blocks that it writes.

        The plan must be carried out and given to :meth:`commit` before the next call.
        """
        self._step += 1
        self.estimate.step()
        decodes: list[ScheduledChunk] = []
        self._feed_starved()
        self._schedule_decodes(decodes)
        budget, prefills = self._schedule_prefills(self.max_num_batched_tokens - len(decodes))
        # Who was just paused would only take back the room that was made.
        if self._starved is None and self._last_preemption_step < self._step:
            self._admit_requests(budget, prefills)
        plan = StepPlan((*decodes, *prefills), tuple(self._swap_out), tuple(self._copies), tuple(self._swap_in))
        self._swap_out, self._copies, self._swap_in = [], [], []
        self._plan_is_out = True
        return plan

    def _feed_starved(self) -> None:
        """Make room for a prefill that found none in the last step, before later requests take it again."""
        request, self._starved = self._starved, None
        if request is not None and request.status is RequestStatus.RUNNING:
            self._make_room(1, self.running.index(request))

    def _schedule_decodes(self, decodes: list[ScheduledChunk]) -> None:
        running, block_size = self.running, self.pool.block_size
        index = 0
        while index < len(running):
            request = running[index]
            start = request.num_computed_tokens
            if request.num_tokens - start == 1:
                if start % block_size == 0 or self.pool.references(request.block_table[-1]) > 1:
                    if not self._make_room(1, index) and self._blocks_wanted(request, 1):
                        self._preempt(self._self_victim(request))
                        continue
                    self._grow(request, 1)
                request.num_inflight_tokens = 1
                decodes.append(ScheduledChunk(request, start, 1, True))
            index += 1

    def _schedule_prefills(self, budget: int) -> tuple[int, list[ScheduledChunk]]:
        """Chunks of running prefills, and what is left of the budget."""
        prefills: list[ScheduledChunk] = []
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            if request.num_inflight_tokens == 0:
                wanted = min(budget, request.num_uncomputed_tokens)
                self._make_room(self._blocks_wanted(request, wanted), index)
                chunk = self._take_chunk(request, wanted)
                if chunk is None and self._writes_shared_block(request):
                    # Its blocks are of no use while all who hold them wait for each other.
                    self._preempt(self._self_victim(request))
                    continue
                if chunk is None:
                    self._starved = self._starved or request
                else:
                    prefills.append(chunk)
                    budget -= chunk.length
            index += 1
        return budget, prefills

    def _blocks_wanted(self, request: Request, length: int) -> int:
        """Blocks to take before ``length`` more tokens are written: new ones, and one for a copy on write."""
        end = request.num_computed_tokens + length
        return self.pool.blocks_for(end) - len(request.block_table) + self._writes_shared_block(request)

    def _writes_shared_block(self, request: Request) -> bool:
        """Whether the next token goes into a block that others hold too."""
        start = request.num_computed_tokens
        return start % self.pool.block_size > 0 and self.pool.references(request.block_table[-1]) > 1

    def _grow(self, request: Request, length: int) -> None:
        """Take the blocks that ``length`` more tokens are written to."""
        blocks = self.pool.allocate(self._blocks_wanted(request, length))
        if self._writes_shared_block(request):
            shared, own = request.block_table[-1], blocks.pop(0)
            self._copies.append(BlockCopy(shared, own))
            self.stats.blocks_copied += 1
            # Copies run before anything is written, so the last other holder may write into it at once.
            self.pool.release([shared])
            request.block_table[-1] = own
        request.block_table += blocks

    def _take_chunk(self, request: Request, wanted: int) -> ScheduledChunk | None:
        """A chunk of up to ``wanted`` tokens, as far as free blocks go; None where there is not one."""
        start = request.num_computed_tokens
        free = self.pool.num_free - self._writes_shared_block(request)
        room = (len(request.block_table) + free) * self.pool.block_size - start
        length = min(wanted, room)
        if length < 1 or free < 0:
            return None
        self._grow(request, length)
        request.num_inflight_tokens = length
        return ScheduledChunk(request, start, length, samples=start + length == request.num_tokens)

    def _admit_requests(self, budget: int, prefills: list[ScheduledChunk]) -> None:
        while budget > 0 and len(self.running) < self.max_num_seqs:
            request = self._next_candidate()
            if request is None or not self._fits(request):
                return
            if self._start(request):
                continue  # its blocks are on their way; it computes from the next step on
            chunk = self._take_chunk(request, min(budget, request.num_uncomputed_tokens))
            if chunk is None:
                self._starved = request
                return
            prefills.append(chunk)
            budget -= chunk.length

    def _next_candidate(self) -> Request | None:
        """The first of the paused and the waiting requests."""
        waiting = self.waiting.next()
        if self.preempted and (waiting is None or self.preempted[0].key < waiting.key):
            return self.preempted[0]
        return waiting

    def _fits(self, request: Request) -> bool:
        """Whether a request may join, by the estimated peak of all; the only one always may."""
        if not self.running:
            return True
        if max(1, len(request.swap_table)) > self.pool.num_free:
            return False
        siblings = min(request.num_pending_siblings, self.max_num_seqs - len(self.running) - 1)
        extent = self.pool.blocks_for(request.max_kv_tokens)
        if self._extent_blocks + extent * (1 + siblings) <= self.pool.num_blocks:
            return True
        size, estimate = self.pool.block_size, self.estimate
        shared = self.pool.num_held * size
        sizes = []
        for other in self.running:
            held = (len(other.block_table) - other.num_adopted_blocks) * size
            shared -= held
            left = other.num_tokens - other.num_computed_tokens + estimate.expected(other.remaining_output)
            sizes.append((held, left))
        known = request.num_tokens - self._cached_tokens(request)
        sizes.append((0, known + estimate.expected(request.remaining_output) + size))
        sizes += [(0, estimate.expected(request.remaining_output) + size)] * siblings
        return peak_tokens(sizes) + max(0, shared) <= self.pool.capacity_tokens

    def _cached_tokens(self, request: Request) -> int:
        return self.cache.cached_blocks(request, request.num_tokens - 1) * self.pool.block_size

    def _start(self, request: Request) -> bool:
        """Let a waiting or paused request run, with what the prefix cache or the swap pool holds of it.

        Returns:
            Whether blocks of it have to be copied back first.
        """
        copies_before = len(self._swap_in)
        if request.status is RequestStatus.PREEMPTED:
            self.preempted.remove(request)
            request.resumed_at_step = self._step
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.RUNNING
        limit = request.num_computed_tokens if request.swap_table else request.num_tokens - 1
        self.cache.adopt(request, self.cache.match(request, limit))
        found = len(request.block_table) * self.pool.block_size
        if request.swap_table:
            self._swap_back(request)
        else:
            request.num_computed_tokens = found
        if request.num_cached_tokens is None:
            # Of a resumed answer the cache may hold more than the prompt.
            request.num_cached_tokens = min(found, len(request.prompt_token_ids))
            self.stats.prefix_cache_queries += len(request.prompt_token_ids)
            self.stats.prefix_cache_hits += request.num_cached_tokens
        self._count_running(request)
        return len(self._swap_in) > copies_before

    def fork(self, parent: Request, child: Request) -> bool:
        """Have another answer to a computed prompt begin on the blocks of the first.

        Both write their own tokens into their own blocks: a shared one is copied before the first write. Where no
        more may run at once, the child waits like any other request, and finds the prompt in the prefix cache.

        Args:
            parent: runs, with its whole prompt computed and no token of output yet.
            child: a new request with the same prompt.

        Returns:
            Whether it runs now, and a token can be drawn from the parent's logits.
        """
        child.arrival = parent.arrival
        room = len(self.running) < self.max_num_seqs and self.waiting.within_limits(child)
        if parent.status is not RequestStatus.RUNNING or not room:
            self.waiting.add(child)
            return False
        for block in parent.block_table:
            self.pool.acquire(block)
        child.key, child.status = parent.key, RequestStatus.RUNNING
        child.num_computed_tokens, child.num_cached_tokens = parent.num_computed_tokens, parent.num_cached_tokens
        child.block_table, child.cached_chain = list(parent.block_table), list(parent.cached_chain)
        child.block_digests = list(parent.block_digests)
        child.num_adopted_blocks = len(child.block_table)
        self._count_running(child)
        self.stats.forks += 1
        return True

    def _count_running(self, request: Request) -> None:
        extent = self.pool.blocks_for(request.max_kv_tokens)
        self._extent_blocks += extent
        self.usage.start(request.tenant, extent)
        insort(self.running, request, key=admission_key)

    def _swap_back(self, request: Request) -> None:
        """Plan the copies of swapped blocks that the prefix cache has not kept."""
        absent = request.swap_table[len(request.block_table) :]
        blocks = self.pool.allocate(len(absent))
        self._swap_in += map(BlockCopy, absent, blocks)
        self.stats.blocks_swapped_in += len(blocks)
        request.block_table += blocks
        # The swap blocks are read by this step's copies, so they are free only after it.
        self._swap_blocks_to_release.append(request.swap_table)
        request.swap_table = []

    def _make_room(self, blocks: int, index: int) -> bool:
        """Free blocks for the running request at ``index`` by pausing later ones; whether there are enough."""
        while self.pool.num_free < blocks:
            later = (request for request in self.running[index + 1 :] if request.num_inflight_tokens == 0)
            victim = choose_victim(later, self.cost, self.pool, self.swap_pool.num_free, self._step)
            if victim is None:
                return False
            self._preempt(victim)
        return True

    def _self_victim(self, request: Request) -> Victim:
        victim = choose_victim([request], self.cost, self.pool, self.swap_pool.num_free, self._step)
        return victim or Victim(request, PreemptionMethod.RECOMPUTE)

    def _preempt(self, victim: Victim) -> None:
        """Pause a running request that is not part of this step."""
        request = victim.request
        self._leave_running(request)
        if victim.method is PreemptionMethod.SWAP:
            sources = request.block_table[: self.pool.blocks_for(request.num_computed_tokens)]
            request.swap_table = self.swap_pool.allocate(len(sources))
            self._swap_out += map(BlockCopy, sources, request.swap_table)
            self.stats.blocks_swapped_out += len(sources)
        else:
            request.num_computed_tokens = 0
        # Copies run before anything is written, so the blocks may be given away at once.
        self.pool.release(request.block_table)
        request.block_table, request.cached_chain, request.num_adopted_blocks = [], [], 0
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self.stats.preemptions[victim.method] += 1
        self.estimate.preempted()
        self._last_preemption_step = self._step
        insort(self.preempted, request, key=admission_key)

    def _leave_running(self, request: Request) -> None:
        self.running.remove(request)
        extent = self.pool.blocks_for(request.max_kv_tokens)
        self._extent_blocks -= extent
        self.usage.stop(request.tenant, extent)

    def commit(self, plan: StepPlan) -> None:
        """Count the plan's tokens as computed, and free what was kept for it."""
        block_size = self.pool.block_size
        for chunk in plan.chunks:
            request = chunk.request
            if request.status is not RequestStatus.RUNNING:
                continue  # finished while the plan was out
            request.num_computed_tokens += chunk.length
            request.num_inflight_tokens = 0
            if request.num_computed_tokens // block_size > len(request.cached_chain):
                self.cache.register(request)
            weight = PROMPT_WEIGHT * chunk.length + (OUTPUT_WEIGHT - PROMPT_WEIGHT if chunk.samples else 0.0)
            self.usage.charge(request.tenant, weight)
        self._plan_is_out = False
        self._release_deferred()

    def _release_deferred(self) -> None:
        for blocks in self._blocks_to_release:
            self.pool.release(blocks)
        for blocks in self._swap_blocks_to_release:
            self.swap_pool.release(blocks)
        self._blocks_to_release, self._swap_blocks_to_release = [], []

    def finish(self, request: Request) -> None:
        """Let a request leave, whatever its state, and free its blocks. Ending twice is harmless."""
        if request.status is RequestStatus.RUNNING:
            self._leave_running(request)
        elif request.status is RequestStatus.WAITING:
            self.waiting.remove(request)
        elif request.status is RequestStatus.PREEMPTED:
            self.preempted.remove(request)
        request.status = RequestStatus.FINISHED
        self._blocks_to_release.append(request.block_table)
        self._swap_blocks_to_release.append(request.swap_table)
        request.block_table, request.swap_table, request.cached_chain = [], [], []
        request.num_inflight_tokens = 0
        if not self._plan_is_out:
            self._release_deferred()
