"""What a job is: the request that a user writes, and the result that comes back.

Names are OpenAI's, for ``/v1/chat/completions`` and ``/v1/completions`` bodies.
"""

from __future__ import annotations

import secrets
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from .errors import InvalidRequest

CHAT_ENDPOINT, COMPLETIONS_ENDPOINT = "/v1/chat/completions", "/v1/completions"

PRIORITIES = 10
"""Priorities are 0, the soonest, to 9."""

_IGNORED = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
"""OpenAI's fields that change nothing about the answer."""

_UNSUPPORTED = frozenset(
    [
        "n",
        "best_of",
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "min_tokens",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "bad_words",
        "allowed_token_ids",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "echo",
        "suffix",
        "skip_special_tokens",
        "response_format",
        "guided_json",
        "guided_regex",
        "guided_grammar",
        "guided_choice",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "functions",
        "function_call",
        "truncate_prompt_tokens",
        "chat_template_kwargs",
        "ttl",
        "stream",
        "stream_options",
        "modalities",
        "audio",
        "prediction",
        "reasoning_effort",
    ]
)
"""Parameters of OpenAI and vLLM that headrace knows and does not offer."""

_DEFAULTS_OF_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "stream": (False,),
    "stop": ([],),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logprobs": (False,),
    "echo": (False,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
}
"""Values that ask for nothing special, so that a body with every field spelled out still runs."""


def _well_formed(text: Any) -> Any:
    """Replace lone surrogates by U+FFFD: JSON can spell them, but no encoding can carry them."""
    if not isinstance(text, str):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _joined_parts(content: Any) -> Any:
    """OpenAI's list of text parts as one text; null, as beside tool calls, is no text."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError('content parts must be {"type": "text", "text": ...}; this model reads text only')
        texts.append(part["text"])
    return "".join(texts)


Text = Annotated[str, BeforeValidator(_well_formed)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(strict=True, extra="forbid")

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[Text, BeforeValidator(_joined_parts)]
    name: Text | None = None


class GenerationRequest(BaseModel):
    """A prompt and how to answer it. Strict: a number in quotes, or true for 1, is refused.

    Use :meth:`parse` for input from users; it turns what pydantic says into one sentence.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: Text | None = None
    """Which model answers; None takes any worker's."""
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    prompt: Text | Annotated[list[TokenId], Field(min_length=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] = 0
    """-1, vLLM's way to say so, and 0 keep all tokens."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    ignore_eos: bool = False
    priority: Annotated[int, Field(ge=0, lt=PRIORITIES)] = 0
    """0, the soonest, to 9."""
    tenant: Annotated[Text, Field(max_length=128)] = ""
    """On whose account; the worker's settings say what each tenant may use."""
    prefix_cache: bool = True
    """Whether memory may be shared with requests that begin alike."""
    cache_salt: Annotated[Text, Field(max_length=128)] = ""
    """Memory is shared only among a tenant's requests with the same salt."""

    @model_validator(mode="after")
    def _one_input(self) -> GenerationRequest:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("give either messages or prompt")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
        return self

    @classmethod
    def parse(cls, body: Any) -> GenerationRequest:
        """Check a body from a user.

        Raises:
            InvalidRequest: naming the parameter, what is wrong with it and what is allowed.
        """
        if not isinstance(body, dict):
            raise InvalidRequest(f"the body is {json_kind(body)}; it must be a JSON object", code="invalid_type")
        known: dict[str, Any] = {}
        for name, value in body.items():
            if name in cls.model_fields:
                if value is not None:
                    known[name] = value
            elif name in _UNSUPPORTED:
                if value is not None and not _asks_for_nothing(name, value):
                    raise InvalidRequest(f"{name} is not supported", code="unsupported_parameter", param=name)
            elif name not in _IGNORED:
                raise InvalidRequest(f"unknown parameter {name!r}", code="unknown_parameter", param=name)
        try:
            return cls.model_validate(known)
        except ValidationError as error:
            raise _invalid_request(error) from error

    @property
    def endpoint(self) -> str:
        """OpenAI's path for this kind of request."""
        return COMPLETIONS_ENDPOINT if self.messages is None else CHAT_ENDPOINT

    @property
    def token_limit(self) -> int | None:
        """Most tokens to generate, under either of OpenAI's names."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def with_seed(self) -> GenerationRequest:
        """The same request with a seed: the user's, or one drawn now and kept for every delivery."""
        if self.seed is not None:
            return self
        return self.model_copy(update={"seed": secrets.randbits(63)})


def _asks_for_nothing(name: str, value: Any) -> bool:
    """Whether the value of an unsupported parameter is its default; true is not 1 here, as everywhere."""
    defaults = _DEFAULTS_OF_UNSUPPORTED.get(name, ())
    return any(value == default and isinstance(value, bool) == isinstance(default, bool) for default in defaults)


def json_kind(value: Any) -> str:
    """What a JSON value is, for messages."""
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), "an object")


def _invalid_request(error: ValidationError) -> InvalidRequest:
    """pydantic's first complaint as one sentence with the parameter's path."""
    complaint = error.errors(include_url=False, include_input=False)[0]
    path = [str(part) for part in complaint["loc"]]
    message = complaint["msg"].removeprefix("Value error, ")
    if path[:1] == ["prompt"]:  # pydantic complains about each of its two forms
        path, message = ["prompt"], "it must be a text, or a list of token ids that is not empty"
    where = ".".join(path)
    return InvalidRequest(f"{where}: {message}" if where else message, param=path[0] if path else None)


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


class JobResult(BaseModel):
    """How a job ended."""

    job_id: str
    state: JobState
    attempt: int = 0
    model: str | None = None
    text: str = ""
    finish_reason: Literal["stop", "length"] | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the worker's prefix cache held."""
    queue_seconds: float = 0.0
    """From submission until the engine first computed a token of it."""
    ttft_seconds: float = 0.0
    """From submission until the first token."""
    total_seconds: float = 0.0
    """From submission until the end."""
    error: ErrorInfo | None = None


class JobStatus(BaseModel):
    """Where a job is now."""

    job_id: str
    state: JobState
    attempt: int
    completion_tokens: int
    worker: str | None = None
    result: JobResult | None = None
