"""The verdict on a run with faults sees what is wrong with a job's log."""

from __future__ import annotations

from typing import Any

import pytest
from headrace.producers import Delta, Event, Finished, JobResult, JobState, Reset, Started
from headrace.producers.results import Choice

from bench import faults
from bench.fault_kinds import KINDS
from bench.fault_load import Sent
from bench.fault_verdict import verdict

SENT = Sent("j", {}, (("one two three", "stop"),))


def end(text: str = "one two three", state: JobState = JobState.SUCCEEDED) -> Finished:
    return Finished("9-0", JobResult(job_id="j", state=state, choices=[Choice(text=text, finish_reason="stop")]))


def delta(seq: int, text: str, attempt: int = 1) -> Delta:
    return Delta("1-0", attempt, seq, text, (seq,))


BEGUN = Started("0-1", 1, "a")
GOES_ON = Started("1-1", 2, "b", seq=2)
RESUMED: list[Event] = [BEGUN, delta(1, "one "), delta(2, "two "), GOES_ON, delta(3, "three", 2), end()]


def test_a_job_that_was_resumed_is_right() -> None:
    counts = verdict(RESUMED, SENT)
    assert not any(counts[name] for name in faults.FAULTY)
    assert (counts["resumed"], counts["attempts"], counts["succeeded"], counts["resets"]) == (1, 2, 1, 0)


def test_a_job_that_starts_over_is_right() -> None:
    events: list[Event] = [BEGUN, delta(1, "void"), Started("1-1", 2, "b", seq=1), Reset("1-2", 2)]
    counts = verdict([*events, delta(1, "one two three", 2), end()], SENT)
    assert not any(counts[name] for name in faults.FAULTY)
    assert counts["resets"] == 1


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        (RESUMED[:-1], "lost"),
        ([BEGUN, end(state=JobState.FAILED)], "lost"),
        ([*RESUMED, end()], "duplicated"),
        ([*RESUMED, delta(4, "more", 2)], "duplicated"),
        ([*RESUMED[:2], *RESUMED[1:]], "duplicated"),
        ([*RESUMED[:2], *RESUMED[3:]], "duplicated"),
        ([*RESUMED[:4], delta(3, "three", 1), end()], "duplicated"),
        ([BEGUN, delta(1, "one two three"), end("one two")], "broken_text"),
        ([BEGUN, delta(1, "one two"), end()], "broken_text"),
        ([BEGUN, delta(1, "other"), end("other")], "broken_text"),
    ],
)
def test_what_is_wrong_is_seen(events: list[Event], fault: str) -> None:
    assert verdict(events, SENT)[fault] == 1


def test_a_job_that_was_cancelled_has_the_beginning_of_its_text() -> None:
    sent = Sent("j", {}, SENT.answers, frozenset({JobState.CANCELLED}))
    cancelled = end("", JobState.CANCELLED)
    assert verdict([BEGUN, delta(1, "one "), cancelled], sent)["broken_text"] == 0
    assert verdict([BEGUN, delta(1, "two "), cancelled], sent)["broken_text"] == 1


def test_a_run_is_clean_where_every_kind_happened_and_nothing_is_wrong() -> None:
    clean: dict[str, Any] = {**dict.fromkeys(faults.FAULTY, 0), "faults": dict.fromkeys(KINDS, 1)}
    assert faults.is_clean(clean)
    for name in faults.FAULTY:
        assert not faults.is_clean({**clean, name: 1})
    assert not faults.is_clean({**clean, "faults": {**clean["faults"], "kill_worker": 0}})
