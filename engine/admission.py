"""Whether one more request fits, judged by the memory that all will need at the worst moment ahead."""

from __future__ import annotations

from collections.abc import Iterable

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
