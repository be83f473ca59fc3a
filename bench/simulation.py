"""A discrete-event simulation: the real scheduler and block pool, and a cost model in place of the GPU."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.engine.assembly import build_scheduler
from headrace.engine.block_pool import BlockPool
from headrace.engine.preemption import CostModel
from headrace.engine.request import Request
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.scheduler import Scheduler
from headrace.engine.step_plan import StepPlan

from .arrivals import Arrival


@dataclass(frozen=True)
class GPU:
    """What a step costs on a GPU that runs a model of 8 billion parameters in bfloat16.

    A step takes the longer of its arithmetic and its memory traffic (Williams et al. 2009, "Roofline"): weights are
    read once a step, the cached keys and values once for each request.
    """

    flops: float = 400e12
    """Useful operations a second; about 40 % of an H100's peak."""
    bandwidth: float = 2.7e12
    """Bytes a second from the GPU's memory."""
    parameters: float = 8e9
    kv_bytes: float = 131_072.0
    """Keys and values of one token: 32 layers, 8 heads of 128, two bytes, twice."""
    transfer: float = 25e9
    """Bytes a second to CPU memory."""
    launch: float = 2e-3
    """Seconds of a step that computes nothing."""

    def step_seconds(self, plan: StepPlan, block_size: int) -> float:
        """Time of a planned step."""
        context = sum(chunk.start + chunk.length for chunk in plan.chunks)
        copies = (len(plan.swap_in) + len(plan.swap_out)) * block_size * self.kv_bytes / self.transfer
        return self.seconds(plan.num_tokens, context) + copies

    def seconds(self, tokens: int, context: int) -> float:
        """Time to compute ``tokens`` while reading ``context`` cached tokens."""
        arithmetic = 2 * self.parameters * tokens / self.flops
        traffic = (2 * self.parameters + self.kv_bytes * context) / self.bandwidth
        return self.launch + max(arithmetic, traffic)

    def cost_model(self, block_size: int) -> CostModel:
        """The same costs as the scheduler wants them."""
        return CostModel(1e-4, block_size * self.kv_bytes / self.transfer, 2 * self.parameters / self.flops)


@dataclass(frozen=True)
class Settings:
    """How the simulated engine is set up."""

    policy: str = "fcfs"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    num_blocks: int = 16_384
    block_size: int = 16
    swap_blocks: int = 32_768
    prefix_cache: bool = True


@dataclass
class Finished:
    """What became of one request; times in seconds."""

    arrival: Arrival
    first_token: float = 0.0
    end: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Between tokens."""
    admitted: int = 0
    """Place in the order of admission, from 1."""

    @property
    def latency(self) -> float:
        """From arrival to end."""
        return self.end - self.arrival.time

    @property
    def ttft(self) -> float:
        """From arrival to first token."""
        return self.first_token - self.arrival.time


@dataclass
class Outcome:
    """A simulation's result."""

    finished: list[Finished]
    seconds: float = 0.0
    prefill_tokens: int = 0
    slot_seconds: float = 0.0
    slot_seconds_possible: float = 0.0
    """While somebody waits."""
    kv_held: int = 0
    kv_used: int = 0
    """Token slots, summed over steps."""
    schedule_seconds: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    preemptions: dict[str, int] = field(default_factory=dict)

    @property
    def throughput(self) -> float:
        """Output tokens a second."""
        return sum(request.arrival.output for request in self.finished) / self.seconds

    @property
    def mean_latency(self) -> float:
        """Seconds from arrival to end."""
        return sum(request.latency for request in self.finished) / len(self.finished)

    @property
    def slot_utilisation(self) -> float:
        """Share of slots in use while somebody waits; 1 where nobody ever does."""
        return self.slot_seconds / self.slot_seconds_possible if self.slot_seconds_possible else 1.0

    @property
    def kv_waste(self) -> float:
        """Share of held token slots that hold no token."""
        return 1 - self.kv_used / self.kv_held if self.kv_held else 0.0


def simulated_scheduler(settings: Settings, cost: CostModel) -> Scheduler:
    """The real scheduler over a pool without memory."""
    return build_scheduler(
        BlockPool(settings.num_blocks, settings.block_size),
        BlockPool(settings.swap_blocks, settings.block_size),
        policy=settings.policy,
        tenants={},
        cost=cost,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
    )


def as_request(index: int, arrival: Arrival, *, prefix_cache: bool = True) -> Request:
    """An arrival as the engine's request; it generates exactly its output."""
    return Request(
        request_id=str(index),
        prompt_token_ids=list(arrival.prompt),
        params=SamplingParams(max_tokens=arrival.output, ignore_eos=True),
        max_tokens=arrival.output,
        eos_token_ids=frozenset(),
        priority=arrival.priority,
        tenant=arrival.tenant,
        prefix_cache=prefix_cache,
        arrival=arrival.time,
    )


class Simulation:
    """Runs a load through the real scheduler. Time is simulated, except for the scheduler's own."""

    def __init__(self, arrivals: Sequence[Arrival], settings: Settings, gpu: GPU) -> None:
        self.scheduler = simulated_scheduler(settings, gpu.cost_model(settings.block_size))
        self.outcome = Outcome([Finished(arrival) for arrival in arrivals])
        self._settings, self._gpu = settings, gpu
        self._pending = sorted(enumerate(arrivals), key=lambda pair: pair[1].time, reverse=True)
        self._last_token: dict[str, float] = {}
        self._admitted = 0

    def run(self) -> Outcome:
        """Until every request has ended."""
        outcome, scheduler = self.outcome, self.scheduler
        while self._pending or scheduler.has_work:
            if not scheduler.has_work:
                outcome.seconds = max(outcome.seconds, self._pending[-1][1].time)
            while self._pending and self._pending[-1][1].time <= outcome.seconds:
                index, arrival = self._pending.pop()
                scheduler.add(as_request(index, arrival, prefix_cache=self._settings.prefix_cache))
            began = time.perf_counter()
            plan = scheduler.schedule()
            outcome.schedule_seconds.append(time.perf_counter() - began)
            self._step(plan)
        outcome.preemptions = {method.value: count for method, count in scheduler.stats.preemptions.items()}
        return outcome

    def _step(self, plan: StepPlan) -> None:
        outcome, scheduler = self.outcome, self.scheduler
        step = self._gpu.step_seconds(plan, self._settings.block_size)
        outcome.seconds += step
        outcome.step_seconds.append(step)
        outcome.running.append(len(scheduler.running))
        if len(scheduler.waiting):
            outcome.slot_seconds += step * len(plan.chunks)
            outcome.slot_seconds_possible += step * self._settings.max_num_seqs
        for request in scheduler.running:
            outcome.kv_held += len(request.block_table) * scheduler.pool.block_size
            outcome.kv_used += request.num_computed_tokens + request.num_inflight_tokens
        scheduler.commit(plan)
        for chunk in plan.chunks:
            record = outcome.finished[int(chunk.request.request_id)]
            if not record.admitted:
                self._admitted += 1
                record.admitted = self._admitted
            if chunk.start < len(record.arrival.prompt):
                outcome.prefill_tokens += chunk.length
            if chunk.samples:
                self._take_token(chunk.request, record)

    def _take_token(self, request: Request, record: Finished) -> None:
        now, request_id = self.outcome.seconds, request.request_id
        if not request.output_token_ids:
            record.first_token = now
        else:
            record.gaps.append(now - self._last_token[request_id])
        self._last_token[request_id] = now
        request.append_token(1)
        if request.finish_reason:
            record.end = now
            self.scheduler.finish(request)


def simulate(arrivals: Sequence[Arrival], settings: Settings, gpu: GPU) -> Outcome:
    """Run a load through the real scheduler."""
    return Simulation(arrivals, settings, gpu).run()


def simulate_static(arrivals: Sequence[Arrival], settings: Settings, gpu: GPU) -> Outcome:
    """Static batching: a batch starts when the one before has ended, and ends with its longest request.

    Prompts are padded to the batch's longest and the answers come when the batch is over, as with a plain
    ``generate`` call.
    """
    outcome = Outcome([])
    queue = sorted(arrivals, key=lambda arrival: arrival.time)
    capacity = settings.num_blocks * settings.block_size
    while queue:
        outcome.seconds = max(outcome.seconds, queue[0].time)
        batch = _static_batch(queue, outcome.seconds, settings.max_num_seqs, capacity)
        del queue[: len(batch)]
        prompt = max(len(arrival.prompt) for arrival in batch)
        outcome.prefill_tokens += prompt * len(batch)
        first_token = 0.0
        for position in range(max(arrival.output for arrival in batch)):
            tokens = len(batch) if position else prompt * len(batch)
            step = gpu.seconds(tokens, (prompt + position) * len(batch))
            outcome.seconds += step
            first_token = first_token or outcome.seconds
            outcome.step_seconds.append(step)
            outcome.running.append(len(batch))
            going = [arrival for arrival in batch if arrival.output > position]
            if queue and queue[0].time <= outcome.seconds:
                outcome.slot_seconds += step * len(going)
                outcome.slot_seconds_possible += step * settings.max_num_seqs
            # Memory for the padded prompt and the longest answer is held by every row to the end.
            outcome.kv_held += (prompt + position + 1) * len(batch)
            outcome.kv_used += sum(len(arrival.prompt) + position + 1 for arrival in going)
        outcome.finished += [Finished(arrival, first_token, outcome.seconds) for arrival in batch]
    return outcome


def _static_batch(queue: Sequence[Arrival], now: float, most: int, capacity: int) -> list[Arrival]:
    """As many of the first that came as fit, padded, into the cache."""
    batch: list[Arrival] = []
    prompt = output = 0
    for arrival in queue[:most]:
        prompt, output = max(prompt, len(arrival.prompt)), max(output, arrival.output)
        if arrival.time > now or (batch and (prompt + output) * (len(batch) + 1) > capacity):
            break
        batch.append(arrival)
    return batch


def by_label(finished: Sequence[Finished]) -> dict[str, list[Finished]]:
    """Requests by their class; all of them under ``all``."""
    classes: dict[str, list[Finished]] = defaultdict(list)
    for record in finished:
        classes["all"].append(record)
        if record.arrival.label:
            classes[record.arrival.label].append(record)
    return dict(classes)
