"""Whether a request fits at all, and whether one more fits now, at the worst moment ahead."""

from __future__ import annotations

from collections.abc import Iterable

from .block_pool import BlockPool
from .errors import RequestError

INITIAL_RATIO = 0.5
"""Share of the tokens still allowed that a request is first expected to generate."""
MIN_RATIO = 0.1
RAISE = 0.1
"""Added after each preemption: requests turned out longer than expected."""
DECAY = 0.999
"""Factor a step."""


class OutputEstimate:
    """How much of its allowed output a request is expected to generate.

    Starts optimistic, since few requests use all that they may; raised by each preemption and decaying with each
    step, so that it settles where preemptions are rare.
    """

    def __init__(self) -> None:
        self.ratio = INITIAL_RATIO

    def step(self) -> None:
        """Let the estimate sink a little."""
        self.ratio = max(MIN_RATIO, self.ratio * DECAY)

    def preempted(self) -> None:
        """Raise the estimate: memory ran out."""
        self.ratio = min(1.0, self.ratio + RAISE)

    def expected(self, remaining_output: int) -> int:
        """Tokens that a request with so many allowed is expected to generate still, at least 1."""
        return max(1, round(self.ratio * remaining_output))


def peak_tokens(requests: Iterable[tuple[int, int]]) -> int:
    """Most tokens held at once, if every request runs to its expected end and then frees what it holds.

    The memory peaks when some request ends. Sorted by what is left, longest first, the i-th (from 1) ends when all
    before it still run and each has grown by its ``left``:

        peak = max over i of  held_1 + ... + held_i + i * left_i

    Args:
        requests: tokens held now and tokens left to come, of each request.
    """
    held = peak = 0
    for index, (tokens, left) in enumerate(sorted(requests, key=_left, reverse=True), start=1):
        held += tokens
        peak = max(peak, held + index * left)
    return peak


def _left(request: tuple[int, int]) -> int:
    return request[1]


def output_room(prompt_len: int, max_tokens: int | None, max_model_len: int, pool: BlockPool) -> int:
    """How many tokens may be generated: what was asked for, or less where there is no room for it.

    Args:
        prompt_len: tokens of the prompt.
        max_tokens: what was asked for; None asks for all the room.
        max_model_len: tokens of prompt and output together.
        pool: of KV blocks. The last token drawn needs none.

    Raises:
        RequestError: where the prompt leaves no room for a single token.
    """
    capacity = pool.capacity_tokens
    if prompt_len >= max_model_len:
        asked = "" if max_tokens is None else f" (max_tokens {max_tokens})"
        raise RequestError(
            f"the prompt has {prompt_len} tokens{asked}; with at least one token of output, the context limit "
            f"of {max_model_len} leaves room for {max_model_len - 1}",
            code="context_length_exceeded",
        )
    if prompt_len > capacity:
        raise RequestError(
            f"the prompt has {prompt_len} tokens and the KV cache holds {capacity} "
            f"({pool.num_blocks} blocks of {pool.block_size}); give the worker more "
            "kv_cache_memory or shorten the prompt",
            code="kv_capacity_exceeded",
        )
    room = min(max_model_len, capacity + 1) - prompt_len
    return min(max_tokens or room, room)
