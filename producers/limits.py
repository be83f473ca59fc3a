"""What may be queued: the limits that an operator sets, and what a producer hears when one is reached.

They stand in Redis, in the hash ``P:limits``, and hold for all producers at once:

``queue``            most jobs waiting in one queue
``tenant``           most jobs of one tenant waiting, over all queues
``tenant:NAME``      the same for one tenant
``memory_percent``   share of Redis' ``maxmemory`` above which nothing is submitted
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import InvalidRequest, QueueFull
from .ledger import Ledger, Submission, Submitted

ACCEPTED = (Submitted.HEARD, Submitted.NEW, Submitted.EXISTS)


def check_submitted(
    jobs: Sequence[Submission],
    replies: Sequence[Submitted],
    limits: Mapping[str, str],
    *,
    queued_before: Sequence[Submission] = (),
) -> None:
    """Check that all jobs are in the ledger.

    Args:
        jobs: what was submitted in one round trip.
        replies: of the ledger.
        limits: that were in force.
        queued_before: jobs of the same call that were queued in earlier round trips.

    Raises:
        QueueFull: naming the limit, where one was refused.
        InvalidRequest: where the id of one is that of another tenant's job.
    """
    accepted = [job.job_id for job in queued_before]
    accepted += [job.job_id for job, reply in zip(jobs, replies, strict=True) if reply in ACCEPTED]
    for job, reply in zip(jobs, replies, strict=True):
        if reply is Submitted.TAKEN:
            raise id_taken(job.job_id)
        if reply not in ACCEPTED:
            raise QueueFull(f"job {job.job_id} is refused: {_reason(job, reply, limits)}", accepted_ids=accepted)


def id_taken(job_id: str) -> InvalidRequest:
    """The error for a job whose id another tenant's job has."""
    return InvalidRequest(
        f"the job id {job_id!r} is taken by a job of another tenant; choose another id",
        code="job_id_taken",
        param="job_id",
    )


def _reason(job: Submission, reply: Submitted, limits: Mapping[str, str]) -> str:
    if reply is Submitted.QUEUE_FULL:
        return f"the queue {job.queue!r} is full ({limits.get('queue')} jobs wait); try again later"
    quota = limits.get(f"tenant:{job.tenant}") or limits.get("tenant")
    return f"{quota} jobs of the tenant {job.tenant!r} wait, and no more may; try again when some have ended"


@dataclass(frozen=True)
class Limits:
    """What may be queued. None sets no limit."""

    queue: int | None = None
    tenant: int | None = None
    tenants: Mapping[str, int] = field(default_factory=dict)
    """By tenant, in place of ``tenant``."""
    memory_percent: float | None = None
    """None is :data:`headrace.producers.memory_guard.MEMORY_PERCENT`."""

    @classmethod
    def parse(cls, fields: Mapping[str, str]) -> Limits:
        """From the hash."""
        named = {name.removeprefix("tenant:"): int(value) for name, value in fields.items() if ":" in name}
        return cls(
            queue=_integer(fields.get("queue")),
            tenant=_integer(fields.get("tenant")),
            tenants=dict(sorted(named.items())),
            memory_percent=float(fields["memory_percent"]) if "memory_percent" in fields else None,
        )

    def fields(self) -> dict[str, str]:
        """For the hash; what has no limit has no field."""
        plain = {"queue": self.queue, "tenant": self.tenant, "memory_percent": self.memory_percent}
        named = {f"tenant:{name}": value for name, value in self.tenants.items()}
        return {
            name: f"{value:g}" if isinstance(value, float) else str(value)
            for name, value in {**plain, **named}.items()
            if value is not None
        }


def _integer(text: str | None) -> int | None:
    return None if text is None else int(text)


def read_limits(ledger: Ledger) -> Limits:
    """The limits in force."""
    fields: Any = ledger.redis.hgetall(ledger.keys.limits)
    return Limits.parse(fields)


def set_limits(ledger: Ledger, limits: Limits) -> None:
    """Set those limits that are not None, from the next submission on; others stay."""
    fields: Any = limits.fields()
    if fields:
        ledger.redis.hset(ledger.keys.limits, mapping=fields)


def clear_limits(ledger: Ledger) -> None:
    """Set no limits any more."""
    ledger.redis.delete(ledger.keys.limits)
