"""Output lines: one envelope, strict JSON, and bodies that OpenAI's SDK takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from headrace.producers import ErrorInfo, GenerationRequest, JobResult, JobState
from headrace.producers.batch_input import Row, parse_row
from headrace.producers.batch_output import output_line
from headrace.producers.results import Choice

CHAT = Row(1, "r1", "batch_req_1", GenerationRequest.parse({"messages": [{"role": "user", "content": "hi"}]}))
RAW = Row(2, "r2", "batch_req_2", GenerationRequest.parse({"prompt": "hi"}))
FAILURE = ErrorInfo(code="engine_error", message="it broke")


def result(state: JobState = JobState.SUCCEEDED, **fields: Any) -> JobResult:
    """A job's result."""
    defaults: dict[str, Any] = {"model": "m", "prompt_tokens": 3, "completion_tokens": 2}
    if state is JobState.SUCCEEDED:
        defaults["choices"] = [Choice(text="answer \N{COCKTAIL GLASS}", finish_reason="stop")]
    return JobResult(job_id="j1", state=state, **(defaults | fields))


def written(row: Row, ended: JobResult | None) -> dict[str, Any]:
    """The line, read back strictly."""
    text = output_line(row, ended)
    assert "\n" not in text
    text.encode("ascii")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    fields: dict[str, Any] = json.loads(text, parse_constant=refuse)
    assert list(fields) == ["id", "custom_id", "response", "error"]
    assert fields["id"].startswith("batch_req_")
    assert fields["custom_id"] == row.custom_id
    return fields


def check_completion(body: dict[str, Any], *, chat: bool) -> None:
    """The fields that OpenAI's SDK requires of ``ChatCompletion`` and ``Completion``, with their types."""
    assert type(body["id"]) is type(body["model"]) is str
    assert body["object"] == ("chat.completion" if chat else "text_completion")
    assert type(body["created"]) is int
    usage = body["usage"]
    assert all(type(usage[f"{kind}_tokens"]) is int for kind in ("prompt", "completion", "total"))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    [choice] = body["choices"]
    assert type(choice["index"]) is int
    assert choice["finish_reason"] in ("stop", "length")
    assert choice["logprobs"] is None
    if chat:
        assert choice["message"]["role"] == "assistant"
        assert type(choice["message"]["content"]) is str
    else:
        assert type(choice["text"]) is str


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("row", [CHAT, RAW], ids=["chat", "raw"])
def test_a15_an_answer(row: Row, reason: str) -> None:
    line = written(row, result(finish_reason=reason))
    assert line["error"] is None
    assert line["response"]["status_code"] == 200
    assert line["response"]["request_id"] == "j1"
    check_completion(line["response"]["body"], chat=row is CHAT)
    [choice] = line["response"]["body"]["choices"]
    assert (choice["message"]["content"] if row is CHAT else choice["text"]) == "answer 🍸"


def test_an_empty_answer_is_an_answer() -> None:
    body = written(CHAT, result(choices=[Choice(finish_reason="stop")]))["response"]["body"]
    check_completion(body, chat=True)
    assert body["choices"][0]["message"]["content"] == ""


@pytest.mark.parametrize(
    ("row", "ended", "status"),
    [
        (parse_row(b'{"custom_id": "r", "temperature": 9}', "in.jsonl", 4), None, 400),
        (
            Row(3, "r3", "batch_req_3", error=ErrorInfo(code="model_not_found", message="no", status_code=404)),
            None,
            404,
        ),
        (CHAT, result(JobState.FAILED, error=FAILURE), 500),
        (CHAT, result(JobState.FAILED, text="part", error=FAILURE.model_copy(update={"status_code": 400})), 400),
    ],
)
def test_a15_a_failure_shows_wherever_a_reader_looks(row: Row, ended: JobResult | None, status: int) -> None:
    line = written(row, ended)
    assert line["error"]["code"] and line["error"]["message"]
    assert line["response"]["status_code"] == status
    body = line["response"]["body"]
    assert list(body) == ["error"], "no row has both an error and choices"
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] == line["error"]["message"]
    assert body["error"]["type"] == ("invalid_request_error" if status < 500 else "server_error")


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.EXPIRED])
def test_a15_a_row_that_never_ended_has_no_response(state: JobState) -> None:
    line = written(CHAT, result(state))
    assert line["response"] is None
    assert line["error"]["code"] == f"batch_{state.value}"


def test_an_id_with_half_a_surrogate_pair_comes_back_as_it_was(tmp_path: Path) -> None:
    row = parse_row(b'{"custom_id": "\\ud83d", "url": "/v1/completions", "body": {"prompt": "x"}}', "in.jsonl", 1)
    assert row.request is not None
    assert written(row, result())["custom_id"] == "\ud83d"
