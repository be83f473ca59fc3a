"""The client for asyncio: the same methods as :class:`headrace.producers.Client`, awaited."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Any

from redis.exceptions import ResponseError

from .client import SUBMIT_CHUNK, URL_VARIABLE, block_ms, stream_bounds, stream_entries
from .connection import DEFAULT_URL, broker_errors, connect_async
from .errors import WaitTimeout
from .events import START, DeltaOrder, Event, Finished, check_position, check_replayable, parse_event
from .hints import HintSender, celery_queue, unheard
from .keys import Keys
from .ledger import EVENT_LIMIT, Submission, Submitted, script_source, submit_batches
from .limits import ACCEPTED, check_submitted
from .memory_guard import MemoryGuard
from .records import (
    DEFAULT_RETENTION_S,
    STATE_FIELDS,
    job_not_found,
    may_have_expired,
    parse_request,
    parse_status,
    submissions,
)
from .results import JobResult, JobState, JobStatus
from .tenants import Access, Credentials, TenantCheck


class AsyncClient:
    """headrace's producer side over one Redis server, for one event loop.

    Arguments, results and errors are those of :class:`headrace.producers.Client`.
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
        self._redis = connect_async(self.url)
        names = ("submit", "cancel", "expire")
        self._scripts = {name: self._redis.register_script(script_source(name)) for name in names}
        self._hints = HintSender(self.url)
        self._retention_s = retention_s
        self._tenant = TenantCheck(self.keys, Credentials.chosen(tenant, tenant_token))
        self._memory = MemoryGuard(self.keys)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop the connections."""
        await asyncio.to_thread(self._hints.close)
        await self._redis.aclose()

    async def submit(
        self, request: Any = None, *, job_id: str | None = None, group: str = "", **parameters: Any
    ) -> str:
        """Queue one job and return its id."""
        ids = None if job_id is None else [job_id]
        [job_id] = await self.submit_many([request], job_ids=ids, group=group, **parameters)
        return job_id

    async def submit_many(
        self,
        requests: Iterable[Any],
        *,
        job_ids: Iterable[str] | None = None,
        group: str = "",
        **parameters: Any,
    ) -> list[str]:
        """Queue many jobs and return their ids."""
        jobs = submissions(
            requests,
            parameters,
            job_ids=job_ids,
            group=group,
            retention_s=self._retention_s,
            access=await self.access(),
        )
        await self._submit(jobs)
        return [job.job_id for job in jobs]

    async def _submit(self, jobs: Sequence[Submission]) -> None:
        with broker_errors(self.url):
            for start in range(0, len(jobs), SUBMIT_CHUNK):
                chunk = jobs[start : start + SUBMIT_CHUNK]
                await self._memory.check_async(self._redis, jobs[:start])
                async with self._redis.pipeline(transaction=False) as pipe:
                    for batch in submit_batches(chunk):
                        await self._scripts["submit"](args=[self.keys.prefix, *batch], client=pipe)
                    replies = [Submitted(reply) for batch in await pipe.execute() for reply in batch]
                for queue in unheard(chunk, replies):
                    waiting: Any = await self._redis.llen(celery_queue(queue))
                    if not waiting:
                        # Celery blocks; a thread keeps the event loop free.
                        await asyncio.to_thread(self._hints.send, queue)
                if any(reply not in ACCEPTED for reply in replies):
                    limits: Any = await self._redis.hgetall(self.keys.limits)
                    check_submitted(chunk, replies, limits, queued_before=jobs[:start])

    async def access(self) -> Access:
        """What this client may do, as Redis said within the last seconds."""
        return await self._tenant.ask_async(self._redis, self.url)

    async def _check_own(self, job_id: str) -> None:
        """Check that a job is the caller's; one of another tenant is not there for it."""
        access = await self.access()
        if access.restricted:
            owner: Any = await self._redis.hget(self.keys.job(job_id), "tenant")
            if not access.may_see(owner):
                raise job_not_found(job_id)

    async def stream(self, job_id: str, *, after: str = START, timeout: float | None = None) -> AsyncIterator[Event]:
        """Replay a job's events after a position, then follow them to the end."""
        check_position(after)
        deadline = None if timeout is None else time.monotonic() + timeout
        with broker_errors(self.url):
            await self._check_own(job_id)
            await self._last_position(job_id, after)
            order, position = DeltaOrder(after), after
            while True:
                reply: Any = await self._redis.xread(
                    {self.keys.events(job_id): position}, count=500, block=block_ms(deadline)
                )
                for position, fields in stream_entries(reply):
                    event = order.checked(parse_event(position, fields["event"]))
                    yield event
                    if isinstance(event, Finished):
                        return
                if not reply:
                    ended = (await self._state(job_id)).ended
                    if ended and await self._last_position(job_id, position) == position:
                        return
                if deadline is not None and time.monotonic() >= deadline:
                    raise WaitTimeout(f"job {job_id} did not end within {timeout} s")

    async def _last_position(self, job_id: str, after: str) -> str:
        first, last, trimmed = await self._bounds(job_id)
        check_replayable(after, first=first, last=last, trimmed=trimmed)
        return last

    async def _bounds(self, job_id: str) -> tuple[str, str, bool]:
        try:
            info: Any = await self._redis.xinfo_stream(self.keys.events(job_id))
        except ResponseError:  # no log yet: the job is queued, or there is none
            await self._state(job_id)
            info = None
        return stream_bounds(info)

    async def _state(self, job_id: str) -> JobState:
        record: Any = await self._redis.hmget(self.keys.job(job_id), STATE_FIELDS)
        state, deadline = record
        if state is None:
            raise job_not_found(job_id)
        if may_have_expired({"state": state, "deadline_ms": deadline}) and await self._expire(job_id):
            return JobState.EXPIRED
        return JobState(state)

    async def _expire(self, job_id: str) -> bool:
        return bool(await self._scripts["expire"](args=[self.keys.prefix, job_id, EVENT_LIMIT]))

    async def result(self, job_id: str, *, timeout: float | None = None) -> JobResult:
        """Wait for a job's end and return its result."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with broker_errors(self.url):
            await self._check_own(job_id)
            while True:
                # The position is read first: an ending that comes between the two reads is then still ahead.
                _, position, _ = await self._bounds(job_id)
                status = await self.status(job_id)
                if status.result is not None:
                    return status.result
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                async for event in self.stream(job_id, after=position, timeout=left):
                    if isinstance(event, Finished):
                        return event.result

    async def status(self, job_id: str) -> JobStatus:
        """Where a job is now."""
        with broker_errors(self.url):
            await self._check_own(job_id)
            record: Any = await self._redis.hgetall(self.keys.job(job_id))
            if may_have_expired(record) and await self._expire(job_id):
                record = await self._redis.hgetall(self.keys.job(job_id))
        return parse_status(job_id, record)

    async def request(self, job_id: str) -> dict[str, Any]:
        """The body of a job, with its defaults and the seed that was drawn for it."""
        with broker_errors(self.url):
            await self._check_own(job_id)
            document: Any = await self._redis.hget(self.keys.job(job_id), "request")
        return parse_request(job_id, document)

    async def cancel(self, job_id: str) -> JobState:
        """Cancel a job and return its state afterwards."""
        with broker_errors(self.url):
            await self._check_own(job_id)
            state = await self._scripts["cancel"](args=[self.keys.prefix, job_id, EVENT_LIMIT])
        if state is None:
            raise job_not_found(job_id)
        return JobState(state)
