"""Copies between the KV cache and the swap space, and what they are measured to cost."""

from __future__ import annotations

import torch
from headrace.engine.calibration import calibrate
from headrace.engine.hf_model import TransformersModel
from headrace.engine.kv_cache import KVCache, KVGeometry
from headrace.engine.kv_tiers import SwapSpace, poison
from headrace.engine.step_plan import BlockCopy, StepPlan
from headrace.kernels import copy_blocks

from .tiny_models import tiny_engine


def cache_of(blocks: int) -> KVCache:
    geometry = KVGeometry(num_layers=3, num_kv_heads=2, head_dim=5)
    cache = KVCache(
        geometry,
        memory=blocks * geometry.block_bytes(4, torch.float32),
        block_size=4,
        max_model_len=100,
        max_num_seqs=10,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    cache.data.copy_(torch.randn(cache.data.shape, generator=torch.Generator().manual_seed(0)))
    return cache


def test_copy_blocks_moves_whole_blocks_and_nothing_else() -> None:
    cache, target = cache_of(6), torch.zeros(4, 3, 2, 4, 2, 5)
    copy_blocks(cache.data, target, [(5, 0), (1, 3)])
    assert torch.equal(target[0], cache.data[5])
    assert torch.equal(target[3], cache.data[1])
    assert not target[1:3].any()
    copy_blocks(cache.data, target, [])


def test_out_comes_before_in_so_that_a_block_may_change_hands_in_one_step() -> None:
    cache = cache_of(3)
    swap = SwapSpace(cache, memory=1 << 20)
    one, two = cache.data[0].clone(), cache.data[1].clone()
    swap.swap_out(StepPlan((), swap_out=(BlockCopy(0, 2),)))
    plan = StepPlan((), swap_out=(BlockCopy(1, 0),), swap_in=(BlockCopy(2, 1),))
    swap.swap_out(plan)
    poison(cache, [1])
    assert cache.data[1].isnan().all()
    swap.swap_in(plan)
    assert torch.equal(cache.data[1], one)
    assert torch.equal(swap.data[0], two)


def test_swap_space_is_counted_in_blocks_and_may_be_nothing() -> None:
    cache = cache_of(3)
    block_bytes = cache.data[0].numel() * 4
    assert SwapSpace(cache, memory=5 * block_bytes + 1).pool.num_blocks == 5
    assert SwapSpace(cache, memory=block_bytes - 1).pool.num_blocks == 0


def test_costs_are_measured(tiny_llama: TransformersModel) -> None:
    engine = tiny_engine(tiny_llama)
    cost = calibrate(tiny_llama, engine.kv_cache, engine.swap, 4)
    assert 0 < cost.seconds_per_token < 1
    assert 0 <= cost.swap_seconds(10) < 1
    nowhere = tiny_engine(tiny_llama, swap_memory=0)
    cost = calibrate(tiny_llama, nowhere.kv_cache, nowhere.swap, 4)
    assert cost.swap_seconds(1) == float("inf"), "without swap space, swapping must never look cheap"
