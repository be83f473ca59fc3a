"""A job's event log: one Redis Stream, replayed from any position and then followed.

started {attempt, worker, model, seq}   an attempt begins; ``seq`` deltas of earlier ones stand, and it goes on there
delta   {attempt, seq, index, text, token_ids, logprobs, queue_seconds, ttft_seconds}
reset   {attempt}                what came before is void; text starts over
done | error | cancelled | expired {result}     exactly one, the last
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import StreamPositionError
from .results import JobResult, JobState, TokenLogprob

START = "0-0"
"""The position before the first event."""

TERMINAL_KINDS = {
    JobState.SUCCEEDED: "done",
    JobState.FAILED: "error",
    JobState.CANCELLED: "cancelled",
    JobState.EXPIRED: "expired",
}

_POSITION = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


@dataclass(frozen=True)
class Started:
    """An attempt to run the job begins, where the last one was interrupted."""

    position: str
    attempt: int
    worker: str
    model: str = ""
    seq: int = 0
    """Deltas before this event that stand."""


@dataclass(frozen=True)
class Delta:
    """New text of one answer. ``seq`` counts 1, 2, 3 ... over all answers and attempts, from 1 again after a reset."""

    position: str
    attempt: int
    seq: int
    text: str
    token_ids: tuple[int, ...]
    index: int = 0
    """Which of the job's ``n`` answers."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One a token, where the job asks for them."""
    queue_seconds: float | None = None
    """From submission to the first computed token; with the job's first delta."""
    ttft_seconds: float | None = None
    """From submission to the first token; with the job's first delta."""


@dataclass(frozen=True)
class Reset:
    """All text before this event is void; the job starts over."""

    position: str
    attempt: int


@dataclass(frozen=True)
class Finished:
    """The job is over; nothing follows."""

    position: str
    result: JobResult


Event = Started | Delta | Reset | Finished


def parse_event(position: str, document: str) -> Event:
    """An event from its JSON document; ``position`` is its id in the stream."""
    fields: dict[str, Any] = json.loads(document)
    match fields["kind"]:
        case "started":
            return Started(position, fields["attempt"], fields["worker"], fields["model"], fields["seq"])
        case "delta":
            return _delta(position, fields)
        case "reset":
            return Reset(position, fields["attempt"])
        case _:
            return Finished(position, JobResult.model_validate(fields["result"]))


def _delta(position: str, fields: dict[str, Any]) -> Delta:
    logprobs = fields.get("logprobs")
    return Delta(
        position,
        fields["attempt"],
        fields["seq"],
        fields["text"],
        tuple(fields["token_ids"]),
        fields.get("index", 0),
        None if logprobs is None else tuple(TokenLogprob.model_validate(one) for one in logprobs),
        fields.get("queue_seconds"),
        fields.get("ttft_seconds"),
    )


def event_json(event: Event) -> str:
    """An event as its document is in the log, and its position; one line of JSON."""
    match event:
        case Started():
            fields = {
                "kind": "started",
                "attempt": event.attempt,
                "worker": event.worker,
                "model": event.model,
                "seq": event.seq,
            }
        case Delta():
            fields = {
                "kind": "delta",
                "attempt": event.attempt,
                "seq": event.seq,
                "index": event.index,
                "text": event.text,
                "token_ids": event.token_ids,
            }
            if event.logprobs is not None:
                fields["logprobs"] = [one.model_dump() for one in event.logprobs]
            timings = {"queue_seconds": event.queue_seconds, "ttft_seconds": event.ttft_seconds}
            fields |= {name: seconds for name, seconds in timings.items() if seconds is not None}
        case Reset():
            fields = {"kind": "reset", "attempt": event.attempt}
        case Finished():
            fields = {"kind": TERMINAL_KINDS[event.result.state], "result": event.result.model_dump(mode="json")}
    return json.dumps({"position": event.position, **fields})


def delta_document(
    attempt: int,
    seq: int,
    text: str,
    token_ids: list[int],
    index: int = 0,
    logprobs: list[TokenLogprob] | None = None,
    timings: Mapping[str, float] | None = None,
) -> str:
    """The JSON document of a delta; ``timings`` are the seconds that a job's first one carries."""
    document: dict[str, Any] = {"kind": "delta", "attempt": attempt, "seq": seq, "text": text, "token_ids": token_ids}
    if index:
        document["index"] = index
    if logprobs is not None:
        document["logprobs"] = [one.model_dump() for one in logprobs]
    return json.dumps(document | dict(timings or {}), separators=(",", ":"))


def reset_document(attempt: int) -> str:
    """The JSON document of a reset."""
    return json.dumps({"kind": "reset", "attempt": attempt})


def check_position(after: str) -> None:
    """Check that a position is one that an event carried.

    Raises:
        StreamPositionError: where it is not of that form.
    """
    if not _POSITION.fullmatch(after):
        raise StreamPositionError(
            f"{after!r} is no position: give an event's, such as 1700000000000-0, or {START} for the start"
        )


def check_replayable(after: str, *, first: str, last: str, trimmed: bool) -> None:
    """Check that every event after ``after`` is still in the log.

    Args:
        after: a position.
        first, last: positions of the oldest event kept and of the newest one written.
        trimmed: whether the log has lost events at its beginning.

    Raises:
        StreamPositionError: where events after the position are gone, or it lies in the future.
    """
    if trimmed and _order(after) < _order(first):
        raise StreamPositionError(f"events after {after} were trimmed from the log; read the job's result instead")
    if _order(last) < _order(after):
        raise StreamPositionError(f"the position {after} is after the newest event, {last}")


class DeltaOrder:
    """Checks that a reader misses no delta, as when the log is trimmed under it.

    Args:
        after: where the reader begins. At the start an attempt must come first; anywhere else, whatever delta
            comes first is taken for the next one.
    """

    def __init__(self, after: str) -> None:
        self._next: tuple[int, int] | None = (0, 1) if after == START else None

    def checked(self, event: Event) -> Event:
        """The event itself.

        Raises:
            StreamPositionError: where deltas before it are missing.
        """
        if isinstance(event, Started):
            if self._next is not None and self._next[1] != event.seq + 1:
                raise _trimmed(f"the start of attempt {event.attempt}")
            self._next = (event.attempt, event.seq + 1)
        elif isinstance(event, Reset):
            self._next = (event.attempt, 1)
        elif isinstance(event, Delta):
            if self._next not in (None, (event.attempt, event.seq)):
                raise _trimmed(f"delta {event.seq} of attempt {event.attempt}")
            self._next = (event.attempt, event.seq + 1)
        return event


def _trimmed(what: str) -> StreamPositionError:
    return StreamPositionError(f"events before {what} were trimmed from the log; read the job's result instead")


def _order(position: str) -> tuple[int, int]:
    milliseconds, _, count = position.partition("-")
    return int(milliseconds), int(count)
