"""From the request that a user wrote to what the engine takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..engine import Engine, RequestError, RequestOptions, SamplingParams, Structure
from ..engine.prompt_encoder import truncate_prompt
from ..engine.tool_calls import ParsedAnswer, ToolFormat
from ..producers.messages import NamedTool
from ..producers.results import Token
from ..producers.schema import GenerationRequest


@dataclass(frozen=True)
class Echo:
    """What answers begin with that repeat their prompt; nothing for others."""

    text: str = ""
    first_token: Token | None = None


NO_ECHO = Echo()


@dataclass(frozen=True)
class CallReader:
    """Reads tool calls from answers: how they are spelled, and whether an answer may make several."""

    tool_format: ToolFormat
    parallel: bool

    def parse(self, text: str) -> ParsedAnswer:
        """Tell an answer's calls from its text; where only one may be made, the first counts."""
        parsed = self.tool_format.parse(text)
        return parsed if self.parallel else replace(parsed, tool_calls=parsed.tool_calls[:1])


@dataclass(frozen=True)
class EngineRequest:
    """A request in the engine's terms, and how its answer is dressed afterwards."""

    prompt_token_ids: list[int]
    params: SamplingParams
    options: RequestOptions
    echo: Echo = NO_ECHO
    tool_format: CallReader | None = None
    """Reads the answers' tool calls; None where they call none."""


class RequestTranslator:
    """Translates requests for one model; used by one thread.

    Args:
        engine: whose tokenizer, limits and grammars count.
    """

    def __init__(self, engine: Engine) -> None:
        self._encoder = engine.encoder
        self._structures = engine.structures
        self._tool_format = engine.tool_format
        self._max_model_len = engine.max_model_len

    def translate(self, request: GenerationRequest) -> EngineRequest:
        """A request in the engine's terms, with its prompt encoded and its grammar compiled.

        Raises:
            RequestError: where the model cannot take it.
        """
        prompt = self._encode(request)
        if request.truncate_prompt_tokens is not None:
            prompt = truncate_prompt(prompt, self._kept_tokens(request))
        tool_format = self._tool_format if request.may_call_tools else None
        params = _sampling_params(request, _structure(request, tool_format))
        if params.structure is not None:
            self._structures.compile(params.structure)
        return EngineRequest(
            prompt_token_ids=prompt,
            params=params,
            options=RequestOptions(
                priority=request.priority,
                tenant=request.tenant,
                prefix_cache=request.prefix_cache,
                cache_salt=request.cache_salt,
                shown_special_ids=frozenset() if tool_format is None else tool_format.marker_token_ids,
            ),
            echo=self._echo(request, prompt),
            tool_format=None if tool_format is None else CallReader(tool_format, request.parallel_tool_calls),
        )

    def _encode(self, request: GenerationRequest) -> list[int]:
        allow = request.allow_control_tokens
        if request.messages is not None:
            return self._encoder.encode_chat(
                [message.model_dump(exclude_none=True) for message in request.messages],
                tools=[tool.model_dump(exclude_none=True) for tool in request.tools or []] or None,
                template_kwargs=request.chat_template_kwargs,
                allow_control_tokens=bool(allow),
            )
        if isinstance(request.prompt, str):
            return self._encoder.encode_text(request.prompt, allow_control_tokens=allow is not False)
        return self._encoder.encode_ids(request.prompt or [])

    def _kept_tokens(self, request: GenerationRequest) -> int:
        """Tokens that ``truncate_prompt_tokens`` leaves.

        -1 leaves what the context holds beside the answer. Of that, since ``max_tokens`` may be any number, at most
        half of the context is kept free.
        """
        asked = request.truncate_prompt_tokens or -1
        return asked if asked > 0 else self._max_model_len - min(request.token_limit or 1, self._max_model_len // 2)

    def _echo(self, request: GenerationRequest, prompt: list[int]) -> Echo:
        if not request.echo:
            return NO_ECHO
        whole = isinstance(request.prompt, str) and request.truncate_prompt_tokens is None
        text = request.prompt if isinstance(request.prompt, str) and whole else self._encoder.text(prompt)
        token_text, token_bytes = self._encoder.token(prompt[0])
        return Echo(text, Token(token_id=prompt[0], token=token_text, bytes=list(token_bytes)))


def _sampling_params(request: GenerationRequest, structure: Structure | None) -> SamplingParams:
    return SamplingParams(
        max_tokens=request.token_limit,
        min_tokens=request.min_tokens,
        n=request.n,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=max(request.top_k, 0),
        min_p=request.min_p,
        seed=(request.seed or 0) % (1 << 64),
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias={int(token_id): bias for token_id, bias in (request.logit_bias or {}).items()},
        bad_words=tuple(request.bad_words or ()),
        allowed_token_ids=None if request.allowed_token_ids is None else tuple(request.allowed_token_ids),
        stop=tuple(request.stop or ()),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        include_stop_str_in_output=request.include_stop_str_in_output,
        ignore_eos=request.ignore_eos,
        skip_special_tokens=request.skip_special_tokens,
        logprobs=request.reported_logprobs,
        prompt_logprobs=request.reported_prompt_logprobs,
        structure=structure,
    )


def _structure(request: GenerationRequest, tool_format: ToolFormat | None) -> Structure | None:
    """The grammar of the answer: the form that was asked for, or that of tool calls that must come."""
    form = request.structured_output
    if form is not None:
        return Structure(form.kind, form.definition, form.param)
    choice = request.tool_choice
    if not (choice == "required" or isinstance(choice, NamedTool)):
        return None
    if tool_format is None:
        raise RequestError(
            "how this model writes tool calls is not known, so none can be demanded; tool_choice must be auto or none",
            param="tool_choice",
        )
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools or []]
    name = choice.function.name if isinstance(choice, NamedTool) else None
    return Structure("lark", tool_format.grammar(tools, name, request.parallel_tool_calls), "tools")
