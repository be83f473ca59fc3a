"""Where paused requests' keys and values wait: one pool of blocks in CPU memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..kernels import copy_blocks
from .block_pool import BlockPool
from .kv_cache import KVCache
from .step_plan import StepPlan


class SwapSpace:
    """Blocks in CPU memory of the cache's own geometry, pinned where the cache is on a GPU.

    The order of a step's copies is part of the plan's meaning: first out of the cache, since those blocks may
    have new holders in the same step; then into it. On a GPU the copies into the cache run on a stream of their
    own, beside the step's computation, which touches none of their blocks; the next step waits for them.

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
        self._stream: torch.cuda.Stream | None = None
        if cache.data.is_cuda:
            self._stream = torch.cuda.Stream(cache.data.device)  # type: ignore[no-untyped-call]

    def swap_out(self, plan: StepPlan) -> None:
        """Copy the blocks of requests that were paused for this step, once the last copies in have ended."""
        if self._stream is not None:
            torch.cuda.current_stream(self._cache.data.device).wait_stream(self._stream)
        copy_blocks(self._cache.data, self.data, plan.swap_out)

    def swap_in(self, plan: StepPlan) -> None:
        """Copy the blocks of requests that are resumed, after the copies out and beside the step's computation."""
        if self._stream is None:
            copy_blocks(self.data, self._cache.data, plan.swap_in)
            return
        # Who held these blocks before may still be computing or being copied out on the step's stream.
        self._stream.wait_stream(torch.cuda.current_stream(self._cache.data.device))
        with torch.cuda.stream(self._stream):
            copy_blocks(self.data, self._cache.data, plan.swap_in)


def poison(cache: KVCache, blocks: Iterable[int]) -> None:
    """Fill blocks with NaN, so that whoever reads what nobody wrote computes nothing but NaN."""
    for block in blocks:
        cache.data[block].fill_(float("nan"))
