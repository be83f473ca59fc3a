"""``headrace stream``: one answer's text, or every event as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from headrace.producers import Client, JobState
from headrace.producers.ledger import Ledger
from headrace.producers.results import Choice

from ..support import headrace
from .attempts import append, claim_one, documents, finish, reset, takes_over


@pytest.fixture
def three(client: Client, ledger: Ledger) -> str:
    """A job whose three answers came in turns."""
    job_id = client.submit({"prompt": "hi", "n": 3})
    claim = claim_one(ledger)
    pieces = [(0, "a1 "), (1, "b1 "), (2, "c1 "), (1, "b2"), (0, "a2"), (2, "c2")]
    for seq, (index, text) in enumerate(pieces, start=1):
        append(ledger, claim, seq, text, index)
    finish(ledger, claim, text="a1 a2")
    return job_id


def lines(text: str) -> list[dict[str, Any]]:
    """Lines of JSON."""
    return [json.loads(line) for line in text.splitlines()]


def test_the_first_of_several_answers_and_a_word_that_there_are_more(tmp_path: Path, url: str, three: str) -> None:
    shown = headrace("stream", three, "--redis", url, cwd=tmp_path, code=0)
    assert shown.stdout == "a1 a2\n"
    assert shown.stderr == f"job {three} has 3 answers; this is answer 0, --index chooses another\n"


@pytest.mark.parametrize(("index", "text"), [(0, "a1 a2\n"), (1, "b1 b2\n"), (2, "c1 c2\n")])
def test_the_answer_that_was_chosen(tmp_path: Path, url: str, three: str, index: int, text: str) -> None:
    shown = headrace("stream", three, "--index", str(index), "--redis", url, cwd=tmp_path, code=0)
    assert (shown.stdout, shown.stderr) == (text, "")


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_answer_that_is_not_there_is_2(
    tmp_path: Path, url: str, client: Client, three: str, form: tuple[str, ...]
) -> None:
    done = headrace("stream", three, "--index", "3", *form, "--redis", url, cwd=tmp_path, code=2)
    assert done.stdout == ""
    assert done.stderr == f"headrace: job {three} has 3 answers; --index must be 0 to 2\n"
    one = client.submit("hi")
    done = headrace("stream", one, "--index", "1", *form, "--redis", url, cwd=tmp_path, code=2)
    assert done.stderr == f"headrace: job {one} has one answer, 0\n"


def test_every_event_is_a_line_of_json(tmp_path: Path, url: str, ledger: Ledger, three: str) -> None:
    shown = headrace("stream", three, "--json", "--redis", url, cwd=tmp_path, code=0)
    assert shown.stderr == ""
    events = lines(shown.stdout)
    assert [event["kind"] for event in events] == ["started", *["delta"] * 6, "done"]
    assert [event.get("index") for event in events] == [None, 0, 1, 2, 1, 0, 2, None]
    for event, document in zip(events, documents(ledger, three), strict=True):
        if event["kind"] != "done":
            assert {"index": 0, **event}.items() >= document.items(), "as it is in the log"
    assert len({event["position"] for event in events}) == 8
    assert events[-1]["result"]["choices"] == [Choice(text="a1 a2", finish_reason="stop").model_dump()]


def test_json_of_one_answer(tmp_path: Path, url: str, three: str) -> None:
    events = lines(headrace("stream", three, "--json", "--index", "1", "--redis", url, cwd=tmp_path, code=0).stdout)
    assert [event["kind"] for event in events] == ["started", "delta", "delta", "done"]
    assert [event["text"] for event in events[1:3]] == ["b1 ", "b2"]


def test_a_job_that_starts_over(tmp_path: Path, url: str, client: Client, ledger: Ledger) -> None:
    job_id = client.submit("hi")
    first = claim_one(ledger)
    append(ledger, first, 1, "void")
    second = takes_over(ledger, first, "w2")
    reset(ledger, second)
    append(ledger, second, 1, "right")
    finish(ledger, second, JobState.FAILED)
    shown = headrace("stream", job_id, "--redis", url, cwd=tmp_path, code=1)
    assert shown.stdout == "voidright\n"
    assert shown.stderr == f"\n[the job starts over on another worker]\njob {job_id} failed\n"
    shown = headrace("stream", job_id, "--json", "--redis", url, cwd=tmp_path, code=1)
    assert shown.stderr == f"job {job_id} failed\n"
    events = lines(shown.stdout)
    assert [event["kind"] for event in events] == ["started", "delta", "started", "reset", "delta", "error"]
    assert [event["attempt"] for event in events[:5]] == [1, 1, 2, 2, 2]


def test_events_that_are_gone_are_2(tmp_path: Path, url: str, ledger: Ledger, three: str) -> None:
    ledger.redis.delete(ledger.keys.events(three))
    done = headrace("stream", three, "--index", "0", "--redis", url, cwd=tmp_path, code=2)
    assert done.stdout == ""
    assert done.stderr == f"headrace: the events of job {three} are gone; see `headrace status --json`\n"
