"""What comes back: how a job ended, and its answers."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel

from .messages import ToolCall

Finish = Literal["stop", "length", "tool_calls"]


class JobState(StrEnum):
    """Where a job is. The last four are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def ended(self) -> bool:
        """Whether the job is over for good."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


class ErrorInfo(BaseModel):
    """Why a job has no answer."""

    code: str
    message: str
    param: str | None = None
    status_code: int = 500
    """HTTP's verdict: 4xx where the request is at fault, 5xx where headrace is."""
    retry_after_seconds: float | None = None
    """No other try makes sense before."""


class Token(BaseModel):
    """A token and what it stands for."""

    token_id: int
    token: str
    """Its text by itself, with U+FFFD for bytes that are no character."""
    bytes: list[int]
    """The bytes that it stands for."""


class TokenLogprob(Token):
    """A token and how likely the model found it."""

    logprob: float
    """Natural logarithm of its probability before all sampling settings; -9999 for 0."""
    top_logprobs: list[TokenLogprob] = []
    """The likeliest tokens in its place, the likeliest first."""


class Choice(BaseModel):
    """One of a job's answers."""

    index: int = 0
    text: str = ""
    finish_reason: Finish | None = None
    """None where the answer was cut short, because the job failed or was cancelled."""
    stop_reason: str | int | None = None
    """The user's stop text or stop token that ended it; None where the model ended it itself."""
    tool_calls: list[ToolCall] | None = None
    logprobs: list[TokenLogprob] | None = None


class JobResult(BaseModel):
    """How a job ended."""

    job_id: str
    state: JobState
    attempt: int = 0
    model: str | None = None
    choices: list[Choice] = []
    """The answers in order; a job asks for ``n`` of them."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Of all answers together."""
    cached_tokens: int = 0
    """Prompt tokens that the worker's prefix cache held."""
    prompt_logprobs: list[TokenLogprob | None] | None = None
    """One a prompt token; the first has none."""
    first_prompt_token: Token | None = None
    """The one that has none, where the answers begin with the prompt."""
    queue_seconds: float = 0.0
    """From submission until the engine first computed a token of it."""
    ttft_seconds: float = 0.0
    """From submission until the first token."""
    total_seconds: float = 0.0
    """From submission until the end."""
    error: ErrorInfo | None = None

    @property
    def text(self) -> str:
        """The first answer's text."""
        return self.choices[0].text if self.choices else ""

    @property
    def finish_reason(self) -> Finish | None:
        """Why the first answer ended."""
        return self.choices[0].finish_reason if self.choices else None


class JobStatus(BaseModel):
    """Where a job is now."""

    job_id: str
    state: JobState
    attempt: int
    completion_tokens: int
    worker: str | None = None
    result: JobResult | None = None
