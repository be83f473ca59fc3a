"""The blocks of the KV cache: which are free, and who holds the others."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(eq=False, frozen=True, slots=True)
class CachedBlock:
    """A full block whose contents are known. The parent is compared by identity, so a chain is one history."""

    digest: bytes
    parent: CachedBlock | bytes
    """The block before it, or the root of its namespace."""
    tokens: bytes
    block: int


def _ignore(_block: int) -> None:
    """Nobody keeps contents."""


class BlockPool:
    """Reference-counted ids of fixed-size KV blocks.

    The pool hands out ids only; the memory behind them is :class:`headrace.engine.kv_cache.KVCache`.

        free --allocate--> held (references >= 1) --last release--> free
                             ^                          |
                             +--acquire-- retained <----+  if its contents are worth keeping
                                             |
                                             +--evict, oldest first, when allocate finds nothing free--> held

    Args:
        num_blocks: how many blocks there are.
        block_size: tokens a block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.recycled: list[int] | None = None
        """Blocks whose contents became void, for a debug mode to poison; None keeps no list."""
        self.on_evict: Callable[[int], None] = _ignore
        """Called with each retained block whose contents are given up; the prefix cache puts itself here."""
        self._reference_counts = [0] * num_blocks
        self._free = deque(range(num_blocks))
        self._retained: OrderedDict[int, None] = OrderedDict()
        self._worth_keeping = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks nobody holds, retained ones included."""
        return len(self._free) + len(self._retained)

    @property
    def num_held(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - self.num_free

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit when one request has all blocks."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks with one reference each, free ones first, then the longest unused retained ones.

        Raises:
            RuntimeError: where fewer are to be had; the caller must have made room.
        """
        if count > self.num_free:
            raise RuntimeError(f"{count} KV blocks wanted, {self.num_free} of {self.num_blocks} free")
        blocks = []
        for _ in range(count):
            block = self._free.popleft() if self._free else self._evict()
            self._reference_counts[block] = 1
            blocks.append(block)
        return blocks

    def _evict(self) -> int:
        block, _ = self._retained.popitem(last=False)
        self._worth_keeping[block] = 0
        self._recycle(block)
        self.on_evict(block)
        return block

    def acquire(self, block: int) -> None:
        """Add a reference to a block that is held or retained."""
        if self._reference_counts[block] == 0:
            del self._retained[block]
        self._reference_counts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Give up one reference to each block.

        The last of a sequence's blocks are retained the shortest, since the others are no use without the first.

        Raises:
            RuntimeError: where a block is free already.
        """
        for block in reversed(list(blocks)):
            if self._reference_counts[block] < 1:
                raise RuntimeError(f"KV block {block} is freed twice")
            self._reference_counts[block] -= 1
            if self._reference_counts[block] == 0:
                if self._worth_keeping[block]:
                    self._retained[block] = None
                else:
                    self._recycle(block)
                    self._free.append(block)

    def retain(self, block: int) -> None:
        """Say that a held block's contents are worth keeping after its last release."""
        self._worth_keeping[block] = 1

    def discard(self, block: int) -> None:
        """Say that a block's contents are not worth keeping any more, whether it is held or retained."""
        self._worth_keeping[block] = 0
        if block in self._retained:
            del self._retained[block]
            self._recycle(block)
            self._free.append(block)

    def references(self, block: int) -> int:
        """How many hold a block."""
        return self._reference_counts[block]

    def _recycle(self, block: int) -> None:
        if self.recycled is not None:
            self.recycled.append(block)

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """Recompute every reference count from the block tables of all holders.

        Raises:
            AssertionError: where a count, or a list, does not follow from the tables.
        """
        expected = [0] * self.num_blocks
        for table in tables:
            for block in table:
                expected[block] += 1
        assert self._reference_counts == expected, "reference counts differ from the block tables"
        unheld = [block for block, count in enumerate(expected) if count == 0]
        assert sorted([*self._free, *self._retained]) == unheld, "a block is lost, or free twice"
        assert all(self._worth_keeping[block] for block in self._retained), "a worthless block is retained"
        assert not any(self._worth_keeping[block] for block in self._free), "a block worth keeping is free"
