"""Asking a worker that is there, and what its tiny model's tokens are."""

from __future__ import annotations

from typing import Any

from headrace.producers import Client, Delta, GenerationRequest, JobResult, JobState
from headrace.producers.answer_body import answer_body
from tokenizers import pre_tokenizers

from ..tiny_model import SPECIALS

BOS, EOS = 1, 2
_LETTERS = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet())]


def token_of(letter: str) -> int:
    """The tiny model's token of a printable ASCII character or a newline."""
    return _LETTERS.index({" ": "\u0120", "\n": "\u010a"}.get(letter, letter))


def tokens_of(text: str) -> list[int]:
    """The tiny model's tokens of such a text."""
    return [token_of(letter) for letter in text]


def ask(client: Client, body: dict[str, Any], **parameters: Any) -> JobResult:
    """The answer to a request that has one."""
    result = client.result(client.submit(body, **parameters), timeout=60)
    assert result.state is JobState.SUCCEEDED, result.error
    return result


def refused(client: Client, body: dict[str, Any]) -> tuple[str | None, str]:
    """Parameter and message of a request that the worker refuses."""
    result = client.result(client.submit(body), timeout=60)
    assert result.state is JobState.FAILED
    assert result.error is not None
    assert result.error.status_code == 400
    assert result.choices == []
    return result.error.param, result.error.message


def body_of(body: dict[str, Any], result: JobResult) -> dict[str, Any]:
    """The body of the response, as in a file of answers."""
    return answer_body(GenerationRequest.parse(body), result)


def deltas_of(client: Client, job_id: str, index: int = 0) -> list[Delta]:
    """What a job's log has of one of its answers."""
    return [event for event in client.stream(job_id) if isinstance(event, Delta) and event.index == index]
