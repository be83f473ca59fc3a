"""Schedulers and requests without a model, for the tests of scheduling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.engine import SamplingParams, Tenant
from headrace.engine.assembly import build_scheduler
from headrace.engine.block_pool import BlockPool
from headrace.engine.invariants import check_scheduler
from headrace.engine.preemption import CostModel
from headrace.engine.prefix_cache import Digest, blake2b_digest
from headrace.engine.request import Request
from headrace.engine.scheduler import Scheduler
from headrace.engine.step_plan import StepPlan

EOS = 9
SWAP_IS_CHEAP = CostModel(swap_fixed_seconds=0.0, swap_seconds_per_block=1e-6, seconds_per_token=1e-3)
RECOMPUTE_IS_CHEAP = CostModel(swap_fixed_seconds=1.0, swap_seconds_per_block=1.0, seconds_per_token=1e-3)


def request(name: str, prompt_len: int, max_tokens: int, **changes: Any) -> Request:
    """A request whose prompt is ``1, 1, 1, ...`` unless ``prompt_token_ids`` says otherwise."""
    settings: dict[str, Any] = {
        "request_id": name,
        "prompt_token_ids": [1] * prompt_len,
        "params": SamplingParams(max_tokens=max_tokens),
        "max_tokens": max_tokens,
        "eos_token_ids": frozenset({EOS}),
        "prefix_cache": False,
        "arrival": 0.0,
    }
    return Request(**(settings | changes))


def scheduler(
    *,
    blocks: int = 64,
    block_size: int = 4,
    max_num_seqs: int = 8,
    budget: int = 16,
    swap_blocks: int = 0,
    policy: str = "fcfs",
    cost: CostModel = SWAP_IS_CHEAP,
    digest: Digest = blake2b_digest,
    tenants: Mapping[str, Tenant] | None = None,
) -> Scheduler:
    """A scheduler over a pool without memory."""
    return build_scheduler(
        BlockPool(blocks, block_size),
        BlockPool(swap_blocks, block_size),
        policy=policy,
        tenants=tenants or {},
        cost=cost,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        digest=digest,
    )


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


def run_out(subject: Scheduler, most: int = 5000) -> list[StepPlan]:
    """Steps until nothing is left."""
    plans: list[StepPlan] = []
    while subject.has_work:
        assert len(plans) < most, "the scheduler does not come to an end"
        plans.append(work(subject))
    return plans


def shape(plan: StepPlan) -> list[tuple[str, int, int, bool]]:
    """What a plan computes, by name."""
    return [(chunk.request.request_id, chunk.start, chunk.length, chunk.samples) for chunk in plan.chunks]


def names(plan: StepPlan) -> list[str]:
    """Whom a plan serves."""
    return [chunk.request.request_id for chunk in plan.chunks]
