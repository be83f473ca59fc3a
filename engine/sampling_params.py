"""How one request's tokens are chosen and when it ends."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import RequestError

SEED_LIMIT = 1 << 64


@dataclass(frozen=True)
class SamplingParams:
    """Sampling settings of one request.

    Raises:
        RequestError: where a value is out of range or of another type. The checks are written so that NaN fails
            them.
    """

    max_tokens: int | None = None
    """Most tokens to generate; None, or more than the room left, means the room left."""
    temperature: float = 1.0
    """0 takes the most likely token."""
    top_p: float = 1.0
    """Keep the likeliest tokens whose probabilities sum to this."""
    top_k: int = 0
    """Keep this many of the likeliest tokens; 0 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this likely, relative to the likeliest."""
    seed: int = 0
    """Key of the noise; equal seeds give equal tokens."""
    ignore_eos: bool = False
    """Go on past end-of-sequence tokens."""

    def __post_init__(self) -> None:
        if self.max_tokens is not None and not (_is_integer(self.max_tokens) and self.max_tokens >= 1):
            raise _out_of_range("max_tokens", self.max_tokens, "an integer >= 1")
        if not (_is_number(self.temperature) and 0 <= self.temperature <= 2):
            raise _out_of_range("temperature", self.temperature, "a number between 0 and 2")
        if not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise _out_of_range("top_p", self.top_p, "a number above 0 and at most 1")
        if not (_is_integer(self.top_k) and self.top_k >= 0):
            raise _out_of_range("top_k", self.top_k, "an integer >= 0 (0 keeps all tokens)")
        if not (_is_number(self.min_p) and 0 <= self.min_p <= 1):
            raise _out_of_range("min_p", self.min_p, "a number between 0 and 1")
        if not (_is_integer(self.seed) and 0 <= self.seed < SEED_LIMIT):
            raise _out_of_range("seed", self.seed, "an integer between 0 and 2^64 - 1")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, so that no noise is needed."""
        return self.temperature == 0


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _out_of_range(name: str, value: object, allowed: str) -> RequestError:
    return RequestError(f"{name} is {value!r}; it must be {allowed}", param=name)
