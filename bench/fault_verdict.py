"""What became of the jobs of a run with faults, read from their event logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.producers import Delta, Event, Finished, JobState, Reset, Started
from headrace.producers.events import parse_event
from headrace.producers.keys import Keys

from .fault_load import Sent


def read_log(redis: Any, job_id: str) -> list[Event]:
    """All events of a job, as they stand in its log."""
    entries = redis.xrange(Keys().events(job_id))
    return [parse_event(position, fields["event"]) for position, fields in entries]


def verdict(events: Sequence[Event], sent: Sent) -> Counter[str]:
    """What is wrong with a job's log, and what happened to it.

    Returns:
        Counts of ``lost`` (it has not ended, or not as it may), ``duplicated`` (a second end, anything after the
        end, or a delta that does not follow the one before it), ``broken_text`` (the events, the result and the
        undisturbed run do not agree), ``resumed`` (attempts that went on with an earlier one's text), ``attempts``
        and ``resets``.
    """
    counts: Counter[str] = Counter()
    answers: dict[int, str] = {}
    seq = attempt = 0
    for event in events:
        if isinstance(event, Started):
            counts["out_of_order"] += (event.attempt, event.seq) != (attempt + 1, seq)
            attempt = event.attempt
            counts["attempts"] += 1
            counts["resumed"] += event.seq > 0
        elif isinstance(event, Reset):
            counts["resets"] += 1
            seq, answers = 0, {}
        elif isinstance(event, Delta):
            counts["out_of_order"] += (event.attempt, event.seq) != (attempt, seq + 1)
            seq = event.seq
            answers[event.index] = answers.get(event.index, "") + event.text
    ends = [event for event in events if isinstance(event, Finished)]
    ended_well = bool(ends) and ends[-1].result.state in sent.ends
    trailing = bool(ends) and not isinstance(events[-1], Finished)
    counts["lost"] = int(not ended_well)
    counts["duplicated"] = int(len(ends) > 1 or trailing or counts["out_of_order"] > 0)
    if ended_well:
        counts["broken_text"] = int(not _texts_agree(answers, ends[-1], sent))
        counts[ends[-1].result.state.value] = 1
    return counts


def _texts_agree(answers: dict[int, str], end: Finished, sent: Sent) -> bool:
    """Whether a job answered what it answers undisturbed, or the beginning of it where it was not to go on."""
    if end.result.state is not JobState.SUCCEEDED:
        return all(sent.answers[index][0].startswith(text) for index, text in answers.items())
    told = tuple((choice.text, choice.finish_reason) for choice in end.result.choices)
    published = tuple(answers.get(index, "") for index in range(len(told)))
    return told == sent.answers and published == tuple(text for text, _ in told)


def verdicts(redis: Any, jobs: Iterable[Sent]) -> tuple[Counter[str], list[str]]:
    """The counts over all jobs, and the ids of those with which something is wrong."""
    total: Counter[str] = Counter()
    wrong = []
    for sent in jobs:
        counts = verdict(read_log(redis, sent.job_id), sent)
        total += counts
        if counts["lost"] or counts["duplicated"] or counts["broken_text"]:
            wrong.append(sent.job_id)
    return total, wrong
