"""From the engine's outputs to the pieces of answers that users read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..engine import FinishReason, RequestOutput
from ..engine import TokenLogprob as EngineLogprob
from ..producers.messages import FunctionCall, ToolCall
from ..producers.results import ErrorInfo, Finish, TokenLogprob
from .answer_piece import AnswerPiece, Progress
from .engine_request import CallReader, EngineRequest

_FINISH: dict[FinishReason, Finish] = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


@dataclass
class _Page:
    """One request's answers so far."""

    request: EngineRequest
    begun: set[int]
    """Answers that have text already, and so their echo."""
    texts: dict[int, str] = field(default_factory=dict)
    """Whole texts, kept only where tool calls are to be found in them."""


class AnswerBook:
    """Keeps what is needed to dress the outputs of the requests in an engine. Used by the engine's thread alone."""

    def __init__(self) -> None:
        self._pages: dict[str, _Page] = {}

    def open(self, request_id: str, request: EngineRequest, progress: Progress | None) -> None:
        """Begin with a request, where earlier attempts left it."""
        progress = progress or Progress()
        self._pages[request_id] = _Page(request, set(progress.token_ids), dict(progress.texts))

    def close(self, request_id: str) -> None:
        """Forget a request."""
        self._pages.pop(request_id, None)

    def pieces(self, outputs: Sequence[RequestOutput]) -> list[AnswerPiece]:
        """A step's outputs as pieces; a request is forgotten with its last one."""
        pieces = []
        for output in outputs:
            page = self._pages.get(output.request_id)
            if page is not None:
                pieces.append(_piece(page, output))
                if output.finished:
                    del self._pages[output.request_id]
        return pieces


def _piece(page: _Page, output: RequestOutput) -> AnswerPiece:
    index, text = output.index, output.text
    if index not in page.begun:
        page.begun.add(index)
        text = page.request.echo.text + text
    finish_reason = _FINISH.get(output.finish_reason) if output.finish_reason else None
    content, tool_calls = None, None
    if page.request.tool_format is not None:
        page.texts[index] = page.texts.get(index, "") + text
        if finish_reason is not None:
            content, tool_calls = _find_tool_calls(page.request.tool_format, page.texts[index], output)
            if tool_calls and finish_reason == "stop":
                finish_reason = "tool_calls"
    failed = output.finish_reason is FinishReason.ERROR
    prompt = token_logprobs(output.prompt_logprobs)
    return AnswerPiece(
        request_id=output.request_id,
        index=index,
        text=text,
        token_ids=list(output.token_ids),
        logprobs=token_logprobs(output.logprobs),
        finish_reason=finish_reason,
        stop_reason=output.stop_reason,
        tool_calls=tool_calls,
        content=content,
        finished=output.finished,
        error=ErrorInfo(code="engine_error", message=output.error or "the engine failed") if failed else None,
        prompt_logprobs=None if prompt is None else [None, *prompt],
        first_prompt_token=page.request.echo.first_token if output.finished else None,
        prompt_tokens=output.prompt_tokens,
        cached_tokens=output.cached_tokens,
        queue_seconds=output.queue_seconds,
        ttft_seconds=output.ttft_seconds,
    )


def _find_tool_calls(reader: CallReader, text: str, output: RequestOutput) -> tuple[str | None, list[ToolCall] | None]:
    """The calls that stand in an answer's text, in OpenAI's form, and the text without them."""
    parsed = reader.parse(text)
    if not parsed.tool_calls:
        return None, None
    # The ids are made of the job's, so that another attempt says the same.
    job_id = output.request_id.rpartition(":")[0] or output.request_id
    return parsed.content, [
        ToolCall(
            id=f"call_{job_id}_{output.index}_{number}",
            function=FunctionCall(name=call.name, arguments=call.arguments),
        )
        for number, call in enumerate(parsed.tool_calls)
    ]


def token_logprobs(logprobs: Sequence[EngineLogprob] | None) -> list[TokenLogprob] | None:
    """Log-probabilities in the form that results carry."""
    if logprobs is None:
        return None
    return [
        TokenLogprob(
            token_id=one.token_id,
            token=one.text,
            bytes=list(one.bytes),
            logprob=one.logprob,
            top_logprobs=token_logprobs(one.top) or [],
        )
        for one in logprobs
    ]
