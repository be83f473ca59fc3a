"""What one step computes and copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .request import Request


class ScheduledChunk(NamedTuple):
    """Tokens ``start .. start + length`` of one request, computed in one step."""

    request: Request
    start: int
    length: int
    samples: bool
    """Whether a token is drawn after this chunk: only when it ends at the last known token."""


class BlockCopy(NamedTuple):
    """One block to copy: inside the KV cache, or between it and the swap pool."""

    source: int
    target: int


@dataclass(frozen=True)
class StepPlan:
    """One step's work: copies out of the cache and inside it, then decodes and prefill chunks.

    Beside the chunks run the copies into the cache: no chunk reads a block that the same plan copies in.
    """

    chunks: tuple[ScheduledChunk, ...]
    swap_out: tuple[BlockCopy, ...] = ()
    copy: tuple[BlockCopy, ...] = ()
    """Copy on write: blocks that several hold, and one of them is about to write into."""
    swap_in: tuple[BlockCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens the step computes."""
        return sum(chunk.length for chunk in self.chunks)
