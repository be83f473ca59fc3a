"""What comes out of the engine, and how a request goes in beside its tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import RequestError
from .policy import PRIORITIES
from .request import FinishReason


@dataclass(frozen=True)
class TokenLogprob:
    """A token and how likely the model found it.

    Attributes:
        token_id: the token.
        text: its text by itself, with U+FFFD for bytes that are no character.
        bytes: the bytes that it stands for.
        logprob: natural logarithm of its probability before all sampling settings; -9999 for 0.
        top: the likeliest tokens in its place, the likeliest first; these have no ``top``.
    """

    token_id: int
    text: str
    bytes: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class RequestOutput:
    """What one step added to one answer of a request."""

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    """None while the answer goes on."""
    prompt_tokens: int
    completion_tokens: int
    """Of this answer."""
    cached_tokens: int
    """Prompt tokens that the prefix cache held."""
    queue_seconds: float
    """From arrival in the engine to the first step."""
    ttft_seconds: float
    """From arrival in the engine to the first token."""
    error: str | None = None
    index: int = 0
    """Which of the request's ``n`` answers."""
    finished: bool = False
    """Whether this is the request's last output: all answers have ended."""
    stop_reason: str | int | None = None
    """The stop text or stop token that ended the answer; None where the model ended it itself."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each of ``token_ids``; None where the request did not ask."""
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each token of the prompt but the first; once, with the first output of the first answer."""


@dataclass(frozen=True)
class RequestOptions:
    """How a request is treated among others; nothing of it changes its tokens.

    Raises:
        RequestError: where a value is out of range.
    """

    priority: int = 0
    """0, the soonest, to 9."""
    tenant: str = ""
    prefix_cache: bool = True
    """Whether blocks may be shared with requests that begin alike."""
    cache_salt: str = ""
    """Blocks are shared only among requests of one tenant with the same salt."""
    shown_special_ids: frozenset[int] = frozenset()
    """Special tokens that have text although ``skip_special_tokens`` hides the others."""

    def __post_init__(self) -> None:
        if not 0 <= self.priority < PRIORITIES:
            allowed = f"0, the soonest, to {PRIORITIES - 1}"
            raise RequestError(f"priority is {self.priority}; it must be {allowed}", param="priority")


DEFAULT_OPTIONS = RequestOptions()


@dataclass
class EngineStats:
    """Counters since the engine's start."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    forced_tokens: int = 0
    """Of the generated tokens, those that a grammar forced, so that no step was spent on them."""
    peak_running: int = 0
    """Most sequences computed in one step."""
    finished: dict[str, int] = field(default_factory=lambda: {reason.value: 0 for reason in FinishReason})
    """Answers that ended, by reason."""
