"""The ledger: the truth about every job, in Redis, changed by atomic scripts only.

    submit -> queued -> claim -> running -> finish -> succeeded | failed
                 ^                  |
                 +-- release, reap -+-- cancel -> cancelled

Each claim gives the worker an attempt token, and every later write names it. A worker that lost its lease, or
whose job was cancelled, holds a token that opens nothing: it cannot append an event or end the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, cast

from redis import Redis

from .keys import Keys

EVENT_LIMIT = 20_000
"""Entries that a job's event log keeps; a reader that asks for older ones is told so."""
MAX_DELIVERIES = 3
"""Deliveries of a job before it is given up."""


def script_source(name: str) -> str:
    """Text of a Lua script, with the helpers that all scripts share in front."""
    folder = files(__package__) / "lua"
    return (folder / "prelude.lua").read_text() + (folder / f"{name}.lua").read_text()


@dataclass(frozen=True)
class Claim:
    """A job that a worker owns for as long as it renews the lease."""

    job_id: str
    request: str
    """The request as JSON."""
    attempt: int
    token: str
    waited_ms: int
    """From submission to this claim."""

    @property
    def request_id(self) -> str:
        """Name of this attempt in the engine: what an earlier attempt still produces is never taken for ours."""
        return f"{self.job_id}:{self.attempt}"


@dataclass(frozen=True)
class Submission:
    """A job to be queued."""

    job_id: str
    request: str
    """The request as JSON."""
    queue: str
    retention_s: int
    group: str = ""
    handicap: int = 0
    """The job stands in its queue where one submitted so many jobs later would."""


class Ledger:
    """Scripts over one Redis database.

    Args:
        redis: a client with ``decode_responses=True``.
        keys: names under one prefix.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.redis = redis
        self.keys = keys
        names = ("submit", "claim", "renew", "append", "finish", "cancel", "release", "reap")
        self._scripts = {name: redis.register_script(script_source(name)) for name in names}

    def _run(self, name: str, *arguments: str | int, client: Any = None) -> Any:
        return self._scripts[name](args=[self.keys.prefix, *arguments], client=client)

    def submit(self, submissions: Sequence[Submission]) -> list[bool]:
        """Queue jobs, in one round trip. A job id that exists already is left as it is.

        Returns:
            For each job, whether it is new.
        """
        with self.redis.pipeline(transaction=False) as pipe:
            for job in submissions:
                self._run("submit", *submit_arguments(job), client=pipe)
            return [reply == 1 for reply in pipe.execute()]

    def claim(self, worker: str, queues: Sequence[str], count: int, lease_ms: int) -> list[Claim]:
        """Take up to ``count`` queued jobs, in the order of their places."""
        replies = self._run("claim", worker, lease_ms, count, MAX_DELIVERIES, EVENT_LIMIT, *queues)
        return [Claim(*reply) for reply in replies]

    def renew(self, claims: Sequence[Claim], lease_ms: int) -> list[Claim]:
        """Extend leases.

        Returns:
            Those of the claims that are not the caller's any more.
        """
        pairs = [part for claim in claims for part in (claim.job_id, claim.token)]
        lost = self._run("renew", lease_ms, *pairs) if pairs else []
        return [claims[place - 1] for place in lost]

    def append(self, pipe: Any, claim: Claim, seq: int, event: str, completion_tokens: int) -> None:
        """Put the append of a delta into a pipeline; its reply is 1, or 0 where the job is not the caller's."""
        arguments = (claim.job_id, claim.token, seq, event, completion_tokens, EVENT_LIMIT)
        self._run("append", *arguments, client=pipe)

    def finish(self, pipe: Any, claim: Claim, state: str, kind: str, result: str) -> None:
        """Put the end of a job into a pipeline; its reply is 1, or 0 where the job is not the caller's."""
        self._run("finish", claim.job_id, claim.token, state, kind, result, EVENT_LIMIT, client=pipe)

    def cancel(self, job_id: str) -> str | None:
        """Cancel a job; returns its state afterwards, or None where there is no such job."""
        return cast("str | None", self._run("cancel", job_id, EVENT_LIMIT))

    def release(self, claims: Iterable[Claim]) -> int:
        """Hand jobs back to the queue, without counting the delivery; returns how many were still owned."""
        pairs = [part for claim in claims for part in (claim.job_id, claim.token)]
        return int(self._run("release", *pairs)) if pairs else 0

    def reap(self, count: int = 1000) -> list[str]:
        """Queue jobs whose lease has run out again, or give them up; returns the ids queued again."""
        return list(self._run("reap", MAX_DELIVERIES, count, EVENT_LIMIT))


def submit_arguments(job: Submission) -> tuple[str | int, ...]:
    """Arguments of the submit script after the prefix."""
    return (job.job_id, job.request, job.queue, job.retention_s, job.group, job.handicap)
