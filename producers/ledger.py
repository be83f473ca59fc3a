"""The ledger: the truth about every job, in Redis, changed by atomic scripts only.

    submit -> queued -> claim ------> running -> finish -> succeeded | failed
                 ^                       |
                 +- release, retry, reap +-> cancel, its deadline, too many deliveries -> cancelled | expired | failed

Each claim gives the worker an attempt token, and every later write names it. A worker that lost its lease, or
whose job was cancelled, holds a token that opens nothing: it cannot append an event or end the job.

Every script may be repeated when its reply was lost: the second call finds what the first one did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib.resources import files
from typing import Any, cast

from redis import Redis
from redis.exceptions import NoScriptError

from .keys import Keys

EVENT_LIMIT = 20_000
"""Entries that a job's event log keeps; a reader that asks for older ones is told so."""
MAX_DELIVERIES = 3
"""Deliveries of a job before it is given up."""
GAP = 2
"""Reply to a write where the server has lost deltas before it."""
SUBMIT_BATCH = 50
"""Most jobs that one call of the submit script queues."""
SUBMIT_BATCH_CHARACTERS = 1 << 20
"""Most characters of their requests, where they are several."""
SCRIPTS = (
    *("submit", "claim", "renew", "append", "reset", "finish", "release", "retry"),
    *("cancel", "expire", "reap", "requeue", "purge"),
)


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
    seq: int = 0
    """Deltas that earlier attempts have published, and that stand."""
    deliveries: int = 1
    """Deliveries with this one, those not counted that were handed back in order."""

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
    tenant: str = ""
    ttl_ms: int = 0
    """The job expires where it has not ended so long after its submission; 0 gives it all the time."""


class Submitted(IntEnum):
    """What became of a submission."""

    HEARD = 2
    """New, and a worker has heard that its queue is not empty any more."""
    NEW = 1
    EXISTS = 0
    """There is a job of this id, and it is left as it is."""
    QUEUE_FULL = -1
    TENANT_FULL = -2
    TAKEN = -3
    """There is a job of this id, and it is another tenant's."""


@dataclass(frozen=True)
class Reaped:
    """What time had made due."""

    taken_over: int
    """Jobs of silent workers that are queued again."""
    expired: int
    retried: int
    """Jobs whose second try is due."""

    @property
    def queued(self) -> int:
        """Jobs that wait for a worker now and did not before."""
        return self.taken_over + self.retried


class Ledger:
    """Scripts over one Redis database.

    Args:
        redis: a client with ``decode_responses=True``.
        keys: names under one prefix.
        max_deliveries: deliveries of a job before it is given up.
    """

    def __init__(self, redis: Redis, keys: Keys, *, max_deliveries: int = MAX_DELIVERIES) -> None:
        self.redis = redis
        self.keys = keys
        self.max_deliveries = max_deliveries
        self._scripts = {name: redis.register_script(script_source(name)) for name in SCRIPTS}
        self._loaded = False

    def _run(self, name: str, *arguments: str | int, client: Any = None) -> Any:
        script = self._scripts[name]
        if client is None or not self._loaded:
            return script(args=[self.keys.prefix, *arguments], client=client)
        # As a script does it, but without asking in each pipeline whether the server has it.
        return client.evalsha(script.sha, 0, self.keys.prefix, *arguments)

    def pipelined(self, put: Callable[[Any], None]) -> list[Any]:
        """Replies to the calls that ``put`` puts into a pipeline, in one round trip.

        A server that was restarted has lost the scripts; then they are loaded, and ``put`` is called once more.
        """
        with self.redis.pipeline(transaction=False) as pipe:
            if self._loaded:
                try:
                    put(pipe)
                    return list(pipe.execute())
                except NoScriptError:
                    self._loaded = False
            self._load()
            put(pipe)
            return list(pipe.execute())

    def _load(self) -> None:
        """Have the server know all scripts."""
        scripts = list(self._scripts.values())
        known: Any = self.redis.script_exists(*(script.sha for script in scripts))
        for script, is_known in zip(scripts, known, strict=True):
            if not is_known:
                self.redis.script_load(script.script)
        self._loaded = True

    def submit(self, submissions: Sequence[Submission]) -> list[Submitted]:
        """Queue jobs, in one round trip. A job id that exists already is left as it is."""

        def put(pipe: Any) -> None:
            for batch in submit_batches(submissions):
                self._run("submit", *batch, client=pipe)

        return [Submitted(reply) for replies in self.pipelined(put) for reply in replies]

    def claim(self, worker: str, model: str, queues: Sequence[str], count: int, lease_ms: int) -> list[Claim]:
        """Take up to ``count`` queued jobs, in the order of their places."""
        settings = (worker, model, lease_ms, count, self.max_deliveries, EVENT_LIMIT)
        return [Claim(*reply) for reply in self._run("claim", *settings, *queues)]

    def renew(self, claims: Sequence[Claim], lease_ms: int) -> list[Claim]:
        """Extend leases.

        Returns:
            Those of the claims that are not the caller's any more.
        """
        pairs = [part for claim in claims for part in (claim.job_id, claim.token)]
        lost = self._run("renew", lease_ms, *pairs) if pairs else []
        return [claims[place - 1] for place in lost]

    def append(self, pipe: Any, claim: Claim, seq: int, event: str, completion_tokens: int) -> None:
        """Put the append of a delta into a pipeline.

        The reply is 1, 0 where the job is not the caller's, or :data:`GAP` where deltas before it are missing.
        """
        arguments = (claim.job_id, claim.token, seq, event, completion_tokens, EVENT_LIMIT)
        self._run("append", *arguments, client=pipe)

    def reset(self, pipe: Any, claim: Claim, event: str) -> None:
        """Void what was published, in a pipeline; the reply is 1, or 0 where the job is not the caller's."""
        self._run("reset", claim.job_id, claim.token, event, EVENT_LIMIT, client=pipe)

    def finish(
        self,
        pipe: Any,
        claim: Claim,
        state: str,
        kind: str,
        result: str,
        num_deltas: int = 0,
        last_delta: tuple[str, int] | None = None,
    ) -> None:
        """Put the end of a job into a pipeline.

        The reply is 1, 0 where the job is not the caller's, or :data:`GAP` where deltas are missing.

        Args:
            pipe: the pipeline.
            claim: of the job.
            state, kind, result: how it ends, in the record and in the log.
            num_deltas: all that there must be in the log, with the last.
            last_delta: the last one, where it is written with the end: its ``event`` and ``completion_tokens`` as of
                :meth:`append`.
        """
        ending = (state, kind, result, EVENT_LIMIT, num_deltas, *(last_delta or ()))
        self._run("finish", claim.job_id, claim.token, *ending, client=pipe)

    def release(self, pipe: Any, claim: Claim) -> None:
        """Hand a job back, uncounted, in a pipeline; the reply is 1, or 0 where the job is not the caller's."""
        self._run("release", claim.job_id, claim.token, client=pipe)

    def retry(self, pipe: Any, claim: Claim, delay_ms: int, error: str) -> None:
        """Have a job tried again after a while, in a pipeline; after too many deliveries it fails with ``error``.

        The reply is 1, or 0 where the job is not the caller's. ``error`` is JSON as of :class:`ErrorInfo`.
        """
        settings = (delay_ms, error, self.max_deliveries, EVENT_LIMIT)
        self._run("retry", claim.job_id, claim.token, *settings, client=pipe)

    def cancel(self, job_id: str) -> str | None:
        """Cancel a job; returns its state afterwards, or None where there is no such job."""
        return cast("str | None", self._run("cancel", job_id, EVENT_LIMIT))

    def expire(self, job_id: str) -> bool:
        """End a job if its deadline is over; returns whether it was this call that did."""
        return bool(self._run("expire", job_id, EVENT_LIMIT))

    def reap(self, count: int = 1000) -> Reaped:
        """Do what time has made due: lost leases, deadlines, second tries; at most ``count`` of each."""
        return Reaped(*self._run("reap", self.max_deliveries, count, EVENT_LIMIT))

    def requeue(self, job_id: str, new_id: str) -> str | None:
        """Submit a job that was given up once more, as a new one; returns its id, or None where there is none."""
        return cast("str | None", self._run("requeue", job_id, new_id))

    def purge(self, job_id: str) -> bool:
        """Delete a job that was given up; returns whether it was one."""
        return bool(self._run("purge", job_id))


def submit_batches(jobs: Sequence[Submission]) -> Iterator[list[str | int]]:
    """Arguments after the prefix for calls of the submit script, each of which queues some of the jobs, in order.

    A call keeps the server from everything else, so none is long.
    """
    arguments: list[str | int] = []
    num_jobs = size = 0
    for job in jobs:
        if num_jobs == SUBMIT_BATCH or (num_jobs and size + len(job.request) > SUBMIT_BATCH_CHARACTERS):
            yield arguments
            arguments, num_jobs, size = [], 0, 0
        arguments += (job.job_id, job.request, job.queue, job.retention_s)
        arguments += (job.group, job.handicap, job.tenant, job.ttl_ms)
        num_jobs, size = num_jobs + 1, size + len(job.request)
    if arguments:
        yield arguments
