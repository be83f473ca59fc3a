"""Where paused requests' keys and values wait: one pool of blocks in CPU memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..kernels import copy_blocks
from .block_pool import BlockPool
from .kv_cache import KVCache
from .scheduler import StepPlan


class SwapSpace:
    """Blocks in CPU memory of the cache's own geometry, pinned where the cache is on a GPU.

    The order of a step's copies is part of the plan's meaning: first out of the cache, since those blocks may
    have new holders in the same step; then into it; then the model writes.

    Args:
        cache: the KV cache that is served.
        memory: bytes to use at most; less than one block means no swapping.
    """

    def __init__(self, cache: KVCache, memory: int) -> None:
        self._cache = cache
        block = cache.data[0]
        blocks = min(memory // (block.numel() * block.element_size()), cache.num_blocks * 16)
        self.data = torch.empty((blocks, *block.shape), dtype=block.dtype, pin_memory=cache.data.is_cuda)
        self.pool = BlockPool(blocks, block.shape[2])

    def swap_out(self, plan: StepPlan) -> None:
        """Copy the blocks of requests that were paused for this step."""
        copy_blocks(self._cache.data, self.data, plan.swap_out)

    def swap_in(self, plan: StepPlan) -> None:
        """Copy the blocks of requests that are resumed in this step."""
        copy_blocks(self.data, self._cache.data, plan.swap_in)


def poison(cache: KVCache, blocks: Iterable[int]) -> None:
    """Fill blocks with NaN, so that whoever reads what nobody wrote computes nothing but NaN."""
    for block in blocks:
        cache.data[block].fill_(float("nan"))
