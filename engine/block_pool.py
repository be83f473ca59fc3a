"""The blocks of the KV cache: which are free, and who holds the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class BlockPool:
    """Reference-counted ids of fixed-size KV blocks.

    The pool hands out ids only; the memory behind them is :class:`headrace.engine.kv_cache.KVCache`.
    A block has one reference for each holder and is free at zero.

    Args:
        num_blocks: how many blocks there are.
        block_size: tokens a block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._reference_counts = [0] * num_blocks
        self._free = deque(range(num_blocks))

    @property
    def num_free(self) -> int:
        """Blocks nobody holds."""
        return len(self._free)

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit when one request has all blocks."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` free blocks, with one reference each.

        Raises:
            RuntimeError: where fewer are free; admission must not let that happen.
        """
        if count > len(self._free):
            raise RuntimeError(f"{count} KV blocks wanted, {len(self._free)} of {self.num_blocks} free")
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            self._reference_counts[block] = 1
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Give up one reference to each block.

        Raises:
            RuntimeError: where a block is free already.
        """
        for block in blocks:
            if self._reference_counts[block] < 1:
                raise RuntimeError(f"KV block {block} is freed twice")
            self._reference_counts[block] -= 1
            if self._reference_counts[block] == 0:
                self._free.append(block)

    def check_integrity(self, tables: Iterable[list[int]]) -> None:
        """Recompute every reference count from the block tables of all requests.

        Raises:
            AssertionError: where a count, or the free list, does not follow from the tables.
        """
        expected = [0] * self.num_blocks
        for table in tables:
            for block in table:
                expected[block] += 1
        assert self._reference_counts == expected, "reference counts differ from the block tables"
        free = sorted(self._free)
        assert free == [block for block, count in enumerate(expected) if count == 0], "free list is wrong"
