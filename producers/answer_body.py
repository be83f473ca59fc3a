"""Response bodies as OpenAI's API gives them: chat completions, completions, errors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from .results import Choice, ErrorInfo, JobResult, Token, TokenLogprob
from .schema import CHAT_ENDPOINT, GenerationRequest
from .text_offsets import text_offsets


def answer_body(request: GenerationRequest, result: JobResult) -> dict[str, Any]:
    """The body of a successful response.

    Beside OpenAI's fields stand vLLM's, where they say something: ``stop_reason`` of a choice that a stop of the
    user's ended, and ``prompt_logprobs`` where they were asked for, in a chat's body and in a completion's choices.
    """
    chat = request.endpoint == CHAT_ENDPOINT
    choices = [_chat_choice(choice) if chat else _text_choice(choice, request, result) for choice in result.choices]
    body: dict[str, Any] = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{result.job_id}",
        "object": "chat.completion" if chat else "text_completion",
        "created": int(time.time()),
        "model": result.model,
        "choices": choices,
        "usage": usage(result),
    }
    if request.prompt_logprobs is not None:
        scored = [None if one is None else _by_token_id(one) for one in result.prompt_logprobs or []]
        for place in [body] if chat else choices:
            place["prompt_logprobs"] = scored
    return body


def usage(result: JobResult) -> dict[str, Any]:
    """OpenAI's usage block."""
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.completion_tokens,
        "total_tokens": result.prompt_tokens + result.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
    }


def error_body(error: ErrorInfo) -> dict[str, Any]:
    """The body of a refused or failed response."""
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def _ending(choice: Choice) -> dict[str, Any]:
    ending: dict[str, Any] = {"index": choice.index, "finish_reason": choice.finish_reason}
    if choice.stop_reason is not None:
        ending["stop_reason"] = choice.stop_reason
    return ending


def _chat_choice(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.tool_calls is not None:
        message["tool_calls"] = [call.model_dump() for call in choice.tool_calls]
        message["content"] = choice.text or None
    logprobs = None
    if choice.logprobs is not None:
        logprobs = {"content": [_chat_logprob(one) for one in choice.logprobs], "refusal": None}
    return {**_ending(choice), "message": message, "logprobs": logprobs}


def _chat_logprob(one: TokenLogprob) -> dict[str, Any]:
    top = [{"token": t.token, "logprob": t.logprob, "bytes": t.bytes} for t in one.top_logprobs]
    return {"token": one.token, "logprob": one.logprob, "bytes": one.bytes, "top_logprobs": top}


def _text_choice(choice: Choice, request: GenerationRequest, result: JobResult) -> dict[str, Any]:
    logprobs = None
    if choice.logprobs is not None:
        echoed = _echoed_tokens(result) if request.echo else []
        logprobs = _text_logprobs(choice.text, [*echoed, *choice.logprobs], request.reported_logprobs or 0)
    return {**_ending(choice), "text": choice.text, "logprobs": logprobs}


def _echoed_tokens(result: JobResult) -> list[Token]:
    """The prompt's tokens; the first has no probability."""
    first = [] if result.first_prompt_token is None else [result.first_prompt_token]
    return [*first, *(one for one in result.prompt_logprobs or [] if one is not None)]


def _text_logprobs(text: str, tokens: Sequence[Token], count: int) -> dict[str, Any]:
    """The columns of OpenAI's older form."""
    scored = [one if isinstance(one, TokenLogprob) else None for one in tokens]
    return {
        "tokens": [one.token for one in tokens],
        "token_logprobs": [None if one is None else one.logprob for one in scored],
        "top_logprobs": [None if one is None else _by_text(one) for one in scored] if count else None,
        "text_offset": text_offsets(text, [bytes(one.bytes) for one in tokens]),
    }


def _by_text(one: TokenLogprob) -> dict[str, float]:
    """The likeliest tokens and the token itself by their texts; of several that look alike, the likeliest."""
    found: dict[str, float] = {}
    for likely in (*one.top_logprobs, one):
        found.setdefault(likely.token, likely.logprob)
    return found


def _by_token_id(one: TokenLogprob) -> dict[str, Any]:
    """vLLM's form of a prompt token: the token itself and the likeliest ones, by id."""
    return {str(t.token_id): {"logprob": t.logprob, "decoded_token": t.token} for t in (*one.top_logprobs, one)}
