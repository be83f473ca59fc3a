"""Response bodies as OpenAI's API gives them: chat completions, completions, errors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from .results import Choice, ErrorInfo, JobResult, TokenLogprob
from .schema import CHAT_ENDPOINT, GenerationRequest


def answer_body(request: GenerationRequest, result: JobResult) -> dict[str, Any]:
    """The body of a successful response.

    Beside OpenAI's fields stand vLLM's, where they say something: ``stop_reason`` of a choice that a stop of the
    user's ended, and ``prompt_logprobs`` where they were asked for.
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
        body["prompt_logprobs"] = [None if one is None else _by_token_id(one) for one in result.prompt_logprobs or []]
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
        echoed = result.prompt_logprobs or [] if request.echo else []
        logprobs = _text_logprobs([*echoed, *choice.logprobs], request.reported_logprobs or 0)
    return {**_ending(choice), "text": choice.text, "logprobs": logprobs}


def _text_logprobs(tokens: Sequence[TokenLogprob | None], count: int) -> dict[str, Any]:
    """The columns of OpenAI's older form. Of a prompt's first token there is neither text nor probability."""
    texts = ["" if one is None else one.token for one in tokens]
    offsets = [0]
    for text in texts[:-1]:
        offsets.append(offsets[-1] + len(text))
    top = [None if one is None else {t.token: t.logprob for t in one.top_logprobs} for one in tokens]
    return {
        "tokens": texts,
        "token_logprobs": [None if one is None else one.logprob for one in tokens],
        "top_logprobs": top if count else None,
        "text_offset": offsets[: len(texts)],
    }


def _by_token_id(one: TokenLogprob) -> dict[str, Any]:
    """vLLM's form of a prompt token: the token itself and the likeliest ones, by id."""
    return {str(t.token_id): {"logprob": t.logprob, "decoded_token": t.token} for t in (*one.top_logprobs, one)}
