"""From the engine's outputs to the answers of a job."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine import FinishReason, RequestOutput
from ..engine import TokenLogprob as EngineLogprob
from ..engine.tool_calls import ToolFormat
from ..producers.messages import FunctionCall, ToolCall
from ..producers.results import Choice, Finish, TokenLogprob
from .inflight import OwnedJob

_FINISH: dict[FinishReason, Finish] = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


def take_output(job: OwnedJob, output: RequestOutput, text: str, logprobs: list[TokenLogprob] | None) -> None:
    """Add what a step gave to one of a job's answers.

    Args:
        job: its owner.
        output: of the engine.
        text: the answer's new text.
        logprobs: of its new tokens, where they are asked for.
    """
    choice = job.choices.setdefault(output.index, Choice(index=output.index))
    choice.text += text
    if logprobs is not None:
        choice.logprobs = (choice.logprobs or []) + logprobs
    job.completion_tokens += len(output.token_ids)
    if output.prompt_logprobs is not None:
        job.prompt_logprobs = [None, *(token_logprobs(output.prompt_logprobs) or [])]
    if job.ttft_seconds is None:
        job.ttft_seconds = job.age_seconds
        job.queue_seconds = job.ttft_seconds - (output.ttft_seconds - output.queue_seconds)
    if output.finish_reason in _FINISH:
        choice.finish_reason = _FINISH[output.finish_reason]
        choice.stop_reason = output.stop_reason
        if job.tool_format is not None:
            _find_tool_calls(choice, job.tool_format, job.claim.job_id)


def _find_tool_calls(choice: Choice, tool_format: ToolFormat, job_id: str) -> None:
    """Turn calls that stand in an answer's text into OpenAI's form, and take them out of the text."""
    parsed = tool_format.parse(choice.text)
    if not parsed.tool_calls:
        return
    choice.text = parsed.content
    choice.tool_calls = [
        # Made of the job's id, so that a repeated write says the same.
        ToolCall(
            id=f"call_{job_id}_{choice.index}_{number}",
            function=FunctionCall(name=call.name, arguments=call.arguments),
        )
        for number, call in enumerate(parsed.tool_calls)
    ]
    if choice.finish_reason == "stop":
        choice.finish_reason = "tool_calls"


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
