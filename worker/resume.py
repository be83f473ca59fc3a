"""Reads from the event log where earlier attempts of a job have left it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from ..producers.events import Delta, Event, Reset, Started, parse_event
from ..producers.ledger import Ledger
from ..producers.results import Choice
from .inflight import OwnedJob

logger = logging.getLogger(__name__)


def restore(ledger: Ledger, jobs: Sequence[OwnedJob], model: str) -> list[OwnedJob]:
    """Give jobs that earlier attempts have begun to answer what these have published.

    Args:
        ledger: with the event logs.
        jobs: just claimed.
        model: of this worker: another model's tokens mean something else.

    Returns:
        Those that cannot go on, because another model began them or their log has lost its beginning.

    Raises:
        RedisError: where the logs cannot be read.
    """
    begun = [job for job in jobs if job.claim.seq > 0]
    if not begun:
        return []
    with ledger.redis.pipeline(transaction=False) as pipe:
        for job in begun:
            pipe.xrange(ledger.keys.events(job.claim.job_id))
        logs: list[Any] = pipe.execute()
    return [job for job, log in zip(begun, logs, strict=True) if not _can_go_on(job, log, model)]


def _can_go_on(job: OwnedJob, log: list[tuple[str, dict[str, str]]], model: str) -> bool:
    try:
        return _restore(job, log, model)
    except (ValueError, KeyError, TypeError) as error:
        # Not written by a worker of ours. What was taken from it until then is voided by the reset.
        logger.warning("the log of job %s cannot be read: %s", job.claim.job_id, type(error).__name__)
        return False


def _restore(job: OwnedJob, log: list[tuple[str, dict[str, str]]], model: str) -> bool:
    deltas = _standing(parse_event(position, fields["event"]) for position, fields in log)
    if deltas is None or len(deltas) != job.claim.seq or any(name != model for _, name in deltas):
        return False
    for delta, _ in deltas:
        choice = job.choices.setdefault(delta.index, Choice(index=delta.index))
        choice.text += delta.text
        if delta.logprobs is not None:
            choice.logprobs = (choice.logprobs or []) + list(delta.logprobs)
        job.token_ids.setdefault(delta.index, []).extend(delta.token_ids)
        job.completion_tokens += len(delta.token_ids)
        if delta.ttft_seconds is not None:
            job.ttft_seconds, job.queue_seconds = delta.ttft_seconds, delta.queue_seconds or 0.0
    job.seq = len(deltas)
    return True


def _standing(events: Iterable[Event]) -> list[tuple[Delta, str]] | None:
    """The deltas since the last reset, each with the model that gave it; None where some are missing."""
    deltas: list[tuple[Delta, str]] = []
    model = ""
    for event in events:
        if isinstance(event, Started):
            model = event.model
        elif isinstance(event, Reset):
            deltas = []
        elif isinstance(event, Delta):
            deltas.append((event, model))
            if event.seq != len(deltas):
                return None
    return deltas
