"""What passes between an engine and the worker that hosts it: plain data, the same in one process and between two."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ..producers.messages import ToolCall
from ..producers.results import ErrorInfo, Finish, Token, TokenLogprob


@dataclass(slots=True)
class AnswerPiece:
    """What one step added to one answer of a request. Not frozen, which would make each four times as dear."""

    request_id: str
    index: int = 0
    """Which of the request's answers."""
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: Finish | None = None
    """None while the answer goes on."""
    stop_reason: str | int | None = None
    tool_calls: list[ToolCall] | None = None
    content: str | None = None
    """The whole answer's text without its tool calls, where it has some."""
    finished: bool = False
    """Whether all answers of the request have ended."""
    error: ErrorInfo | None = None
    """Why the request ended without an answer."""
    prompt_logprobs: list[TokenLogprob | None] | None = None
    first_prompt_token: Token | None = None
    """With the last piece, where the answers begin with the prompt."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    queue_seconds: float = 0.0
    """From arrival in the engine to the first step."""
    ttft_seconds: float = 0.0
    """From arrival in the engine to the first token."""


@dataclass(frozen=True)
class Progress:
    """What earlier attempts have published of a job's answers, by index."""

    token_ids: dict[int, list[int]] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)


class HostListener(Protocol):
    """Whom an engine host tells what happens; it calls from threads of its own."""

    def on_pieces(self, pieces: list[AnswerPiece]) -> None:
        """Take what a step produced, for good; must not block."""

    def on_begun(self, request_ids: list[str]) -> None:
        """Note that these requests are about to be encoded, or to be computed: what follows may be their fault."""

    def on_waiting(self, request_id: str) -> None:
        """Note that a request was taken and waits for its turn: nothing is its fault for now."""

    def on_refused(self, request_id: str, error: ErrorInfo) -> None:
        """Take the refusal of a request that the model cannot answer."""

    def on_restarted(self, request_id: str) -> None:
        """Note that a request's published tokens could not be continued, and it begins again."""

    def on_ready(self) -> None:
        """Note that the engine takes requests, for the first time or again."""

    def on_crash(self, reason: str) -> None:
        """Note that the engine is gone, and all requests in it."""


class EngineHost(Protocol):
    """An engine, in this process or in one of its own.

    Attributes:
        model: name of the model.
        max_model_len: tokens of prompt and answer together.
        max_num_seqs: most sequences in one step.
        restarts: whether the host brings a crashed engine back itself.
    """

    model: str
    max_model_len: int
    max_num_seqs: int
    restarts: bool

    @property
    def ready(self) -> bool:
        """Whether requests are taken now."""

    def start(self, listener: HostListener) -> None:
        """Begin to compute, and to tell."""

    def add(self, request_id: str, request: str, progress: Progress | None) -> bool:
        """Have a request (JSON, as :class:`GenerationRequest`) answered, from where it stands. Never blocks.

        Returns:
            Whether there is an engine to take it. If that dies later, :meth:`HostListener.on_crash` follows.
        """

    def abort(self, request_id: str) -> None:
        """Drop a request, in whatever state it is."""

    def describe(self) -> dict[str, str | int]:
        """The engine's figures for the worker's heartbeat."""

    def stop(self) -> None:
        """End after the current step."""
