"""Dead letters: jobs that were given up after too many deliveries, to look at, submit once more, or delete.

They are listed until their records are gone, which is their retention after their end. What has ended stays as it is:
a job that is submitted once more is a new one.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .errors import JobNotFound
from .hints import HintSender
from .ledger import Ledger
from .results import JobResult

_FIELDS = ("queue", "tenant", "ended_ms", "deliveries", "completion_tokens", "result")


@dataclass(frozen=True)
class DeadLetter:
    """A job that was given up. Nothing here is text of its prompt or its answer."""

    job_id: str
    queue: str
    """Name of the model, or ``default``."""
    tenant: str
    ended: datetime
    """When it was given up, by Redis' clock."""
    deliveries: int
    completion_tokens: int
    """Tokens that were published."""
    reason: str

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        return {**vars(self), "ended": self.ended.isoformat(timespec="seconds")}


class DeadLetters:
    """The dead letters of one ledger.

    Args:
        ledger: where they are.
        hints: wake workers for what is submitted once more.

    All methods raise what redis-py raises where Redis does not answer.
    """

    def __init__(self, ledger: Ledger, hints: HintSender) -> None:
        self._ledger = ledger
        self._hints = hints

    def list(self) -> list[DeadLetter]:
        """All of them, the earliest first."""
        redis, keys = self._ledger.redis, self._ledger.keys
        ids: Any = redis.zrange(keys.dead, 0, -1)
        with redis.pipeline(transaction=False) as pipe:
            for job_id in ids:
                pipe.hmget(keys.job(job_id), _FIELDS)
            records = pipe.execute()
        # Where a record is gone, its entry only waits to be forgotten.
        letters = [_letter(job_id, record) for job_id, record in zip(ids, records, strict=True) if record[2]]
        return sorted(letters, key=lambda letter: (letter.ended, letter.job_id))

    def show(self, job_id: str) -> dict[str, Any]:
        """One of them with all that is known: its request, prompt and all, and its result.

        Raises:
            JobNotFound: where there is no such dead letter.
        """
        redis, keys = self._ledger.redis, self._ledger.keys
        record: Any = redis.hmget(keys.job(job_id), [*_FIELDS, "request"])
        if redis.zscore(keys.dead, job_id) is None or record[-1] is None:
            raise _not_found(job_id)
        letter = _letter(job_id, record[:-1])
        return {**letter.as_json(), "request": json.loads(record[-1]), "result": json.loads(record[-2])}

    def requeue(self, job_id: str) -> str:
        """Submit one once more, as a new job; it is no dead letter any more.

        Returns:
            The new job's id: the same one, where this is repeated because a reply was lost.

        Raises:
            JobNotFound: where there is no such dead letter.
        """
        new_id = self._ledger.requeue(job_id, uuid.uuid4().hex)
        if new_id is None:
            raise _not_found(job_id)
        queue: Any = self._ledger.redis.hget(self._ledger.keys.job(job_id), "queue")
        if queue is not None:
            self._hints.send(queue)
        return new_id

    def purge(self, job_id: str) -> None:
        """Delete one, with its record and its events.

        Raises:
            JobNotFound: where there is no such dead letter.
        """
        if not self._ledger.purge(job_id):
            raise _not_found(job_id)


def _letter(job_id: str, record: Any) -> DeadLetter:
    queue, tenant, ended_ms, deliveries, completion_tokens, result = record
    error = JobResult.model_validate_json(result).error
    return DeadLetter(
        job_id=job_id,
        queue=queue,
        tenant=tenant or "",
        ended=datetime.fromtimestamp(int(ended_ms) / 1000, UTC),
        deliveries=int(deliveries),
        completion_tokens=int(completion_tokens or 0),
        reason="" if error is None else error.message,
    )


def _not_found(job_id: str) -> JobNotFound:
    return JobNotFound(f"there is no dead letter {job_id}; see `headrace dead list`")
