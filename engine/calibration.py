"""Measures, at start-up, what the scheduler's choices cost on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from .batch import build_batch
from .kv_cache import KVCache
from .kv_tiers import SwapSpace
from .model_protocol import Model
from .preemption import CostModel
from .request import Request
from .sampling_params import SamplingParams
from .step_plan import BlockCopy, ScheduledChunk, StepPlan

DEFAULT_COST = CostModel(swap_fixed_seconds=1e-4, swap_seconds_per_block=1e-5, seconds_per_token=1e-4)
"""For where nothing was measured: swapping beats computing again from the first block on."""

_TOKENS = 128
_BLOCKS = 32


def calibrate(model: Model, cache: KVCache, swap: SwapSpace, block_size: int) -> CostModel:
    """Time copies of blocks and a prefill, over the still unused cache; its contents are garbage afterwards."""
    fixed, per_block = _copy_costs(cache, swap)
    tokens = min(_TOKENS, cache.num_blocks * block_size)
    _prefill_seconds(model, cache, block_size, tokens)  # the first run also pays for buffers and compilation
    return CostModel(
        swap_fixed_seconds=fixed,
        swap_seconds_per_block=per_block,
        seconds_per_token=_prefill_seconds(model, cache, block_size, tokens) / tokens,
    )


def _copy_costs(cache: KVCache, swap: SwapSpace) -> tuple[float, float]:
    """Seconds of a copy, and of each block in it; an endless first one where there is no swap space."""
    blocks = min(_BLOCKS, cache.num_blocks, swap.pool.num_blocks)
    if blocks < 2:
        return float("inf"), 0.0
    plan = StepPlan((), swap_out=tuple(BlockCopy(block, block) for block in range(blocks)))
    swap.swap_out(plan)  # the first touch of the memory is slow
    many = _timed(lambda: swap.swap_out(plan), cache.data.device)
    one = _timed(lambda: swap.swap_out(StepPlan((), swap_out=plan.swap_out[:1])), cache.data.device)
    per_block = max(0.0, many - one) / (blocks - 1)
    return max(0.0, one - per_block), per_block


def _prefill_seconds(model: Model, cache: KVCache, block_size: int, tokens: int) -> float:
    request = Request("calibration", [0] * tokens, SamplingParams(), 1, frozenset())
    request.block_table = list(range(-(-tokens // block_size)))
    batch = build_batch(StepPlan((ScheduledChunk(request, 0, tokens, True),)), block_size, cache.data.device)
    return _timed(lambda: model.forward(batch, cache), cache.data.device)


def _timed(work: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
