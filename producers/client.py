"""The client: submit jobs, follow their tokens, read their results."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

from redis.exceptions import ResponseError

from .connection import DEFAULT_URL, broker_errors, connect
from .errors import WaitTimeout
from .events import START, DeltaOrder, Event, Finished, check_position, check_replayable, parse_event
from .hints import HintSender, celery_queue, unheard
from .keys import Keys
from .ledger import Ledger, Submission
from .limits import ACCEPTED, check_submitted
from .memory_guard import MemoryGuard
from .records import (
    DEFAULT_RETENTION_S,
    STATE_FIELDS,
    WorkerInfo,
    job_not_found,
    may_have_expired,
    parse_request,
    parse_status,
    submissions,
)
from .results import JobResult, JobState, JobStatus
from .tenants import Access, Credentials, TenantCheck

URL_VARIABLE = "HEADRACE_REDIS_URL"
SUBMIT_CHUNK = 500
"""Records written in one round trip; each chunk sends one hint."""
BLOCK_MS = 1000
"""Longest blocking read; a reader then looks whether the job is still there."""


class Client:
    """headrace's producer side over one Redis server. Thread-safe; reusable; closes as a context manager.

    Example::

        with Client("redis://localhost:6379/0") as client:
            job = client.submit("Name three rivers.", max_tokens=50)
            for event in client.stream(job):
                if isinstance(event, Delta):
                    print(event.text, end="")
            print(client.result(job).completion_tokens)

    Args:
        url: ``redis://``, ``rediss://``, ``unix://`` or ``sentinel://``; by default ``$HEADRACE_REDIS_URL``, else
            localhost.
        prefix: of all keys, the same as the workers'; by default ``$HEADRACE_PREFIX``, else ``headrace``.
        retention_s: life of a job's record and log after its end.
        tenant: on whose account jobs are submitted, and whose jobs are there where tenants are kept apart
            (:mod:`headrace.producers.tenants`); by default ``$HEADRACE_TENANT``.
        tenant_token: the tenant's token, for such a server; by default ``$HEADRACE_TENANT_TOKEN``.

    Every method raises :class:`BrokerUnavailable` where Redis does not answer, and :class:`AccessDenied` where it
    keeps tenants apart and the token is not right.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        prefix: str | None = None,
        retention_s: int = DEFAULT_RETENTION_S,
        tenant: str | None = None,
        tenant_token: str | None = None,
    ) -> None:
        self.url = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        self.keys = Keys.chosen(prefix)
        self._redis = connect(self.url)
        self._ledger = Ledger(self._redis, self.keys)
        self._hints = HintSender(self.url)
        self._retention_s = retention_s
        self._tenant = TenantCheck(self.keys, Credentials.chosen(tenant, tenant_token))
        self._memory = MemoryGuard(self.keys)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connections."""
        self._hints.close()
        self._redis.close()

    def submit(self, request: Any = None, *, job_id: str | None = None, group: str = "", **parameters: Any) -> str:
        """Queue one job.

        Args:
            request: a text (one user message), a list of messages, or a body in OpenAI's form.
            job_id: an id of your own; submitting it again changes nothing and is no error.
            group: jobs whose endings :meth:`endings` reports together.
            parameters: the body's fields by OpenAI's names, such as ``max_tokens`` or ``temperature``.

        Returns:
            The job's id.

        Raises:
            InvalidRequest: naming the parameter at fault.
            QueueFull: where too many jobs wait already, or Redis is nearly full.
            AccessDenied: where the body names another tenant.
        """
        ids = None if job_id is None else [job_id]
        [job_id] = self.submit_many([request], job_ids=ids, group=group, **parameters)
        return job_id

    def submit_many(
        self,
        requests: Iterable[Any],
        *,
        job_ids: Iterable[str] | None = None,
        group: str = "",
        **parameters: Any,
    ) -> list[str]:
        """Queue many jobs, a few hundred in each round trip.

        All requests are checked before the first is queued. ``job_ids`` gives each an id of your own;
        the rest is as for :meth:`submit`.

        Raises:
            InvalidRequest: naming the parameter at fault.
            QueueFull: where too many jobs wait already, or Redis is nearly full; some may have been queued.
            AccessDenied: where a body names another tenant.
        """
        jobs = submissions(
            requests,
            parameters,
            job_ids=job_ids,
            group=group,
            retention_s=self._retention_s,
            access=self.access(),
        )
        self._submit(jobs)
        return [job.job_id for job in jobs]

    def _submit(self, jobs: Sequence[Submission]) -> None:
        with broker_errors(self.url):
            for start in range(0, len(jobs), SUBMIT_CHUNK):
                chunk = jobs[start : start + SUBMIT_CHUNK]
                self._memory.check(self._redis, jobs[:start])
                replies = self._ledger.submit(chunk)
                for queue in unheard(chunk, replies):
                    if not self._redis.llen(celery_queue(queue)):
                        self._hints.send(queue)
                if any(reply not in ACCEPTED for reply in replies):
                    limits: Any = self._redis.hgetall(self.keys.limits)
                    check_submitted(chunk, replies, limits, queued_before=jobs[:start])

    def access(self) -> Access:
        """What this client may do, as Redis said within the last seconds.

        Raises:
            AccessDenied: where it may do nothing.
        """
        return self._tenant.ask(self._redis, self.url)

    def _check_own(self, job_id: str) -> None:
        """Check that a job is the caller's; one of another tenant is not there for it.

        Raises:
            JobNotFound: where it is not.
        """
        access = self.access()
        if access.restricted:
            owner: Any = self._redis.hget(self.keys.job(job_id), "tenant")
            if not access.may_see(owner):
                raise job_not_found(job_id)

    def stream(self, job_id: str, *, after: str = START, timeout: float | None = None) -> Iterator[Event]:
        """Replay a job's events after a position, then follow them to the end.

        Connecting late, or again with the position of the last event seen, gives every event once.

        Args:
            job_id: the job.
            after: position of the last event that was seen; the start by default.
            timeout: seconds until the end must have come.

        Yields:
            Events in order; the last is :class:`Finished`. Nothing, where that one was seen already.

        Raises:
            JobNotFound: where there is no such job.
            StreamPositionError: where ``after`` is no position, or events after it are gone.
            WaitTimeout: where the time is over.
        """
        check_position(after)
        deadline = None if timeout is None else time.monotonic() + timeout
        with broker_errors(self.url):
            self._check_own(job_id)
            self._last_position(job_id, after)
            order, position = DeltaOrder(after), after
            while True:
                block = block_ms(deadline)
                reply: Any = self._redis.xread({self.keys.events(job_id): position}, count=500, block=block)
                for position, fields in stream_entries(reply):
                    event = order.checked(parse_event(position, fields["event"]))
                    yield event
                    if isinstance(event, Finished):
                        return
                if not reply and self._state(job_id).ended and self._last_position(job_id, position) == position:
                    return
                if deadline is not None and time.monotonic() >= deadline:
                    raise WaitTimeout(f"job {job_id} did not end within {timeout} s")

    def _last_position(self, job_id: str, after: str) -> str:
        """Position of the newest event, :data:`START` where there is none yet; checks ``after`` against the log."""
        first, last, trimmed = self._bounds(job_id)
        check_replayable(after, first=first, last=last, trimmed=trimmed)
        return last

    def _bounds(self, job_id: str) -> tuple[str, str, bool]:
        """First and last position of a job's log and whether it lost events."""
        try:
            info: Any = self._redis.xinfo_stream(self.keys.events(job_id))
        except ResponseError:  # no log yet: the job is queued, or there is none
            self._state(job_id)
            info = None
        return stream_bounds(info)

    def _state(self, job_id: str) -> JobState:
        record: Any = self._redis.hmget(self.keys.job(job_id), STATE_FIELDS)
        state, deadline = record
        if state is None:
            raise job_not_found(job_id)
        if may_have_expired({"state": state, "deadline_ms": deadline}) and self._ledger.expire(job_id):
            return JobState.EXPIRED
        return JobState(state)

    def result(self, job_id: str, *, timeout: float | None = None) -> JobResult:
        """Wait for a job's end and return its result, whatever it is; see :attr:`JobResult.state`.

        Raises:
            JobNotFound: where there is no such job.
            WaitTimeout: where ``timeout`` seconds pass first.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with broker_errors(self.url):
            self._check_own(job_id)
            while True:
                # The position is read first: an ending that comes between the two reads is then still ahead.
                _, position, _ = self._bounds(job_id)
                status = self.status(job_id)
                if status.result is not None:
                    return status.result
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                for event in self.stream(job_id, after=position, timeout=left):
                    if isinstance(event, Finished):
                        return event.result

    def status(self, job_id: str) -> JobStatus:
        """Where a job is now.

        Raises:
            JobNotFound: where there is no such job.
        """
        with broker_errors(self.url):
            self._check_own(job_id)
            record: Any = self._redis.hgetall(self.keys.job(job_id))
            if may_have_expired(record) and self._ledger.expire(job_id):
                record = self._redis.hgetall(self.keys.job(job_id))
        return parse_status(job_id, record)

    def request(self, job_id: str) -> dict[str, Any]:
        """The body of a job, with its defaults and the seed that was drawn for it.

        Raises:
            JobNotFound: where there is no such job.
        """
        with broker_errors(self.url):
            self._check_own(job_id)
            return parse_request(job_id, self._redis.hget(self.keys.job(job_id), "request"))

    def cancel(self, job_id: str) -> JobState:
        """Cancel a job, queued or running; one that has ended keeps its result.

        Returns:
            The state afterwards: ``cancelled``, or how the job had ended before.

        Raises:
            JobNotFound: where there is no such job.
        """
        with broker_errors(self.url):
            self._check_own(job_id)
            state = self._ledger.cancel(job_id)
        if state is None:
            raise job_not_found(job_id)
        return JobState(state)

    def results(self, job_ids: Sequence[str]) -> dict[str, JobResult]:
        """Results of those of the jobs that have ended, in one round trip."""
        access = self.access()
        with broker_errors(self.url), self._redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hmget(self.keys.job(job_id), "result", "tenant")
            replies = pipe.execute()
        return {
            job_id: JobResult.model_validate_json(result)
            for job_id, (result, owner) in zip(job_ids, replies, strict=True)
            if result is not None and access.may_see(owner)
        }

    def endings(self, group: str, *, after: str = START, block_ms: int = BLOCK_MS) -> list[tuple[str, str]]:
        """Jobs of a group that ended after a position, waiting up to ``block_ms`` for the first.

        Returns:
            Pairs of position and job id, in the order of ending; empty where none ended in time.
        """
        access, until = self.access(), time.monotonic() + block_ms / 1000
        with broker_errors(self.url):
            while True:
                reply: Any = self._redis.xread({self.keys.group(group): after}, count=1000, block=block_ms)
                ended = [(position, fields["id"]) for position, fields in stream_entries(reply)]
                own = self._own(ended, access)
                block_ms = int((until - time.monotonic()) * 1000)
                if own or not ended or block_ms < 1:
                    return own
                after = ended[-1][0]

    def _own(self, ended: list[tuple[str, str]], access: Access) -> list[tuple[str, str]]:
        """Those of a group's endings that the caller may see: others may use the same name."""
        if not access.restricted:
            return ended
        with self._redis.pipeline(transaction=False) as pipe:
            for _, job_id in ended:
                pipe.hget(self.keys.job(job_id), "tenant")
            return [pair for pair, owner in zip(ended, pipe.execute(), strict=True) if access.may_see(owner)]

    def workers(self) -> list[WorkerInfo]:
        """Workers that are alive and have their model; those that still load it are left out."""
        self.access()
        with broker_errors(self.url):
            ids: Any = self._redis.zrange(self.keys.workers, 0, -1)
            with self._redis.pipeline(transaction=False) as pipe:
                for worker_id in ids:
                    pipe.hgetall(self.keys.worker(worker_id))
                records = pipe.execute()
        return [
            WorkerInfo.parse(worker_id, record)
            for worker_id, record in zip(ids, records, strict=True)
            if record and record["state"] != "starting"
        ]


def block_ms(deadline: float | None) -> int:
    """How long a read may block: at least 1 ms, since 0 would mean for ever."""
    if deadline is None:
        return BLOCK_MS
    return max(1, min(BLOCK_MS, int((deadline - time.monotonic()) * 1000)))


def stream_bounds(info: Any) -> tuple[str, str, bool]:
    """First and last position of a log and whether it lost events, from ``XINFO STREAM``; None is no log yet."""
    if info is None:
        return START, START, False
    return info["recorded-first-entry-id"], info["last-generated-id"], info["entries-added"] > info["length"]


def stream_entries(reply: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """Entries of a reply of XREAD on one stream."""
    for _, entries in reply:
        yield from entries
