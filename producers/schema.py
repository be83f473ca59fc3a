"""The request that a user writes.

Names are OpenAI's, for ``/v1/chat/completions`` and ``/v1/completions`` bodies, and vLLM's for what OpenAI lacks.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from .errors import InvalidRequest
from .messages import JsonObject, Message, NamedTool, Text, Tool
from .structured import FIELDS, StructuredOutput, structured_output

CHAT_ENDPOINT, COMPLETIONS_ENDPOINT = "/v1/chat/completions", "/v1/completions"

PRIORITIES = 10
"""Priorities are 0, the soonest, to 9."""
MAX_TTL_S = 30 * 86_400.0
"""Longest time that a job may be given."""
MAX_STOPS = 16
MAX_CHOICES = 128

_IGNORED = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
"""OpenAI's fields that change nothing about the answer."""

_UNSUPPORTED = frozenset(
    [
        "best_of",
        "suffix",
        "functions",
        "function_call",
        "stream",
        "stream_options",
        "modalities",
        "audio",
        "prediction",
        "reasoning_effort",
    ]
)
"""Parameters of OpenAI and vLLM that headrace knows and does not offer."""

_DEFAULTS_OF_UNSUPPORTED: dict[str, tuple[Any, ...]] = {"best_of": (1,), "stream": (False,)}
"""Values that ask for nothing special, so that a body with every field spelled out still runs."""


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _none_if_empty(value: Any) -> Any:
    return None if value == [] else value


def _text_keys(value: Any) -> Any:
    """Token ids as JSON has them: the keys of an object are texts."""
    if not isinstance(value, dict):
        return value
    return {str(key) if type(key) is int else key: bias for key, bias in value.items()}


TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
TokenIds = Annotated[list[TokenId], Field(min_length=1)]
TokenKey = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
FilledText = Annotated[Text, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, lt=1 << 31)]
Logprobs = Annotated[int, Field(ge=0, le=20)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]

_ALLOWED = {
    "prompt": "it must be a text, or a list of token ids that is not empty",
    "logprobs": "it must be true or false beside messages, and an integer from 0 to 20 beside prompt",
    "tool_choice": 'it must be none, auto, required, or {"type": "function", "function": {"name": ...}}',
    "truncate_prompt_tokens": "it must be an integer of at least 1, or -1 for the model's own limit",
    "chat_template_kwargs": "it must be an object",
}
"""What may stand where pydantic would complain about each of several forms."""


class GenerationRequest(BaseModel):
    """A prompt and how to answer it. Strict: a number in quotes, or true for 1, is refused.

    Use :meth:`parse` for input from users; it turns what pydantic says into one sentence.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: Text | None = None
    """Which model answers; None takes any worker's."""
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    prompt: Text | TokenIds | None = None

    max_tokens: Count | None = None
    """None is the room that is left."""
    max_completion_tokens: Count | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    """Independent answers to the same prompt."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] = 0
    """-1, vLLM's way to say so, and 0 keep all tokens."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None

    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    logit_bias: Annotated[dict[TokenKey, Bias], BeforeValidator(_text_keys)] | None = None
    bad_words: Annotated[list[FilledText], Field(max_length=1024)] | None = None
    allowed_token_ids: TokenIds | None = None

    stop: Annotated[list[FilledText], Field(max_length=MAX_STOPS), BeforeValidator(_as_list)] | None = None
    """Texts that end the answer."""
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    logprobs: bool | Logprobs | None = None
    """Beside messages true or false; beside a prompt how many of the likeliest tokens to report."""
    top_logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    echo: bool = False
    """Put the prompt in front of the answer."""

    response_format: JsonObject | None = None
    guided_json: JsonObject | Text | None = None
    guided_regex: Text | None = None
    guided_grammar: Text | None = None
    guided_choice: list[Text] | None = None
    structured_outputs: JsonObject | None = None

    tools: Annotated[list[Tool] | None, Field(max_length=128), BeforeValidator(_none_if_empty)] = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    """None is auto."""
    parallel_tool_calls: bool = True

    chat_template_kwargs: JsonObject | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    """Keep only so many tokens at the prompt's end; -1 as many as the model has room for beside the answer."""
    allow_control_tokens: bool | None = None
    """Whether the texts of control tokens mean the tokens; None allows it in a prompt and not in messages."""

    priority: Annotated[int, Field(ge=0, lt=PRIORITIES)] = 0
    """0, the soonest, to 9."""
    tenant: Annotated[Text, Field(max_length=128)] = ""
    """On whose account; the worker's settings say what each tenant may use."""
    ttl: Annotated[float, Field(ge=0.001, le=MAX_TTL_S)] | None = None
    """Seconds after its submission in which the job must have ended; else it expires, wherever it is then."""
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
        if self.token_limit is not None and self.min_tokens > self.token_limit:
            raise ValueError(f"min_tokens: {self.min_tokens} is above max_tokens, {self.token_limit}")
        if self.truncate_prompt_tokens == 0:
            raise ValueError(f"truncate_prompt_tokens: {_ALLOWED['truncate_prompt_tokens']}")
        return self

    @model_validator(mode="after")
    def _logprobs_of_the_endpoint(self) -> GenerationRequest:
        chat = self.messages is not None
        given = self.logprobs is not None and self.logprobs is not False  # 0 is given, and equals False
        if given and isinstance(self.logprobs, bool) is not chat:
            raise ValueError(f"logprobs: {_ALLOWED['logprobs']}")
        if self.top_logprobs is not None and self.logprobs is not True:
            raise ValueError("top_logprobs: it needs logprobs to be true, beside messages")
        if chat and self.echo:
            raise ValueError("echo: it goes with a prompt, not with messages")
        return self

    @model_validator(mode="after")
    def _chat_parts(self) -> GenerationRequest:
        for name in ("tools", "tool_choice", "chat_template_kwargs"):
            if self.messages is None and getattr(self, name) is not None:
                raise ValueError(f"{name}: it goes with messages, not with a prompt")
        choice = self.tool_choice
        if self.tools is None:
            if choice not in (None, "none", "auto"):
                raise ValueError("tool_choice: it needs tools")
            return self
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise ValueError("tools: two functions have the same name")
        if isinstance(choice, NamedTool) and choice.function.name not in names:
            raise ValueError(f"tool_choice: there is no tool {choice.function.name!r}; there are {', '.join(names)}")
        if choice != "none" and self.structured_output is not None:
            raise ValueError(f"{self.structured_output.param}: it cannot stand beside tools that may be called")
        return self

    @model_validator(mode="after")
    def _one_form(self) -> GenerationRequest:
        _ = self.structured_output
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

    @property
    def reported_logprobs(self) -> int | None:
        """How many of the likeliest tokens to report for each token of the answer; None reports nothing."""
        if isinstance(self.logprobs, bool):
            return (self.top_logprobs or 0) if self.logprobs else None
        return self.logprobs

    @property
    def reported_prompt_logprobs(self) -> int | None:
        """The same for the prompt, which ``echo`` makes part of the answer."""
        if self.prompt_logprobs is None and self.echo:
            return self.reported_logprobs
        return self.prompt_logprobs

    @property
    def structured_output(self) -> StructuredOutput | None:
        """The form that the answer has to have."""
        return structured_output({name: getattr(self, name) for name in FIELDS})

    @property
    def may_call_tools(self) -> bool:
        """Whether the answer may consist of tool calls."""
        return self.tools is not None and self.tool_choice != "none"

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
    path = [str(part) for part in complaint["loc"] if part != "[key]"]
    message = complaint["msg"].removeprefix("Value error, ")
    if path and path[0] in _ALLOWED:
        path, message = path[:1], _ALLOWED[path[0]]
    where = ".".join(path)
    param = path[0] if path else None
    if not path and message.partition(":")[0] in GenerationRequest.model_fields:
        param = message.partition(":")[0]
    return InvalidRequest(f"{where}: {message}" if where else message, param=param)
