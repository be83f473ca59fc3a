"""Whom to pause when memory runs out, and how: by what it costs for each block it frees."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from .block_pool import BlockPool
from .request import Request

HYSTERESIS_STEPS = 16
"""A resumed request is left alone for this many steps, if another can be paused instead."""


class PreemptionMethod(enum.Enum):
    """What becomes of a paused request's keys and values."""

    SWAP = "swap"
    RECOMPUTE = "recompute"


@dataclass(frozen=True)
class CostModel:
    """Seconds that pausing and resuming takes; measured at start-up (:mod:`headrace.engine.calibration`)."""

    swap_fixed_seconds: float
    swap_seconds_per_block: float
    seconds_per_token: float
    """To compute one token of a prefill."""
    seconds_per_token_pair: float = 0.0
    """Attention's part, which grows with the square of the length."""

    def swap_seconds(self, blocks: int) -> float:
        """Out and back in."""
        return 2 * (self.swap_fixed_seconds + blocks * self.swap_seconds_per_block)

    def recompute_seconds(self, tokens: int) -> float:
        """To compute the keys and values of ``tokens`` tokens again."""
        return tokens * self.seconds_per_token + tokens * tokens * self.seconds_per_token_pair


@dataclass(frozen=True)
class Victim:
    """A request to pause, and the way to do it."""

    request: Request
    method: PreemptionMethod


def choose_victim(
    candidates: Iterable[Request], cost: CostModel, pool: BlockPool, swap_blocks_free: int, step: int
) -> Victim | None:
    """The request whose pause costs least for each block that it really frees.

    A block that others hold too is not freed. Requests that were resumed less than :data:`HYSTERESIS_STEPS` ago
    come only where there is nobody else.

    Args:
        candidates: requests that may be paused; none of them is part of the step being planned.
        cost: what pausing costs.
        pool: of the candidates' blocks.
        swap_blocks_free: blocks free in the swap pool.
        step: the step being planned.

    Returns:
        None where pausing any of them frees nothing.
    """
    best: tuple[bool, float] | None = None
    victim: Victim | None = None
    for request in candidates:
        private = sum(pool.references(block) == 1 for block in request.block_table)
        if private == 0:
            continue
        method, seconds = _cheapest(request, private, cost, pool, swap_blocks_free)
        fresh = step - request.resumed_at_step < HYSTERESIS_STEPS and request.resumed_at_step >= 0
        rank = (fresh, seconds / private)
        if best is None or rank < best:
            best, victim = rank, Victim(request, method)
    return victim


def _cheapest(
    request: Request, private: int, cost: CostModel, pool: BlockPool, swap_blocks_free: int
) -> tuple[PreemptionMethod, float]:
    """The cheaper method for one request; swapping only where the swap pool has room."""
    blocks = pool.blocks_for(request.num_computed_tokens)
    # Shared blocks stay with their other holders, so the prefix cache gives those tokens back.
    shared = (len(request.block_table) - private) * pool.block_size
    recompute = cost.recompute_seconds(max(0, request.num_computed_tokens - shared))
    swap = cost.swap_seconds(blocks)
    if 0 < blocks <= swap_blocks_free and swap < recompute:
        return PreemptionMethod.SWAP, swap
    return PreemptionMethod.RECOMPUTE, recompute
