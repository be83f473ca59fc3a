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
from .hints import HintSender
from .keys import Keys
from .ledger import EVENT_LIMIT, Submission, script_source, submit_arguments
from .records import DEFAULT_RETENTION_S, job_not_found, parse_status, submissions
from .results import JobResult, JobState, JobStatus


class AsyncClient:
    """headrace's producer side over one Redis server, for one event loop.

    Arguments, results and errors are those of :class:`headrace.producers.Client`.
    """

    def __init__(
        self, url: str | None = None, *, prefix: str | None = None, retention_s: int = DEFAULT_RETENTION_S
    ) -> None:
        self.url = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        self.keys = Keys.chosen(prefix)
        self._redis = connect_async(self.url)
        self._submit_script = self._redis.register_script(script_source("submit"))
        self._cancel_script = self._redis.register_script(script_source("cancel"))
        self._hints = HintSender(self.url)
        self._retention_s = retention_s

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
        [job] = submissions([request], parameters, job_ids=ids, group=group, retention_s=self._retention_s)
        await self._submit([job])
        return job.job_id

    async def submit_many(
        self,
        requests: Iterable[Any],
        *,
        job_ids: Iterable[str] | None = None,
        group: str = "",
        **parameters: Any,
    ) -> list[str]:
        """Queue many jobs and return their ids."""
        jobs = submissions(requests, parameters, job_ids=job_ids, group=group, retention_s=self._retention_s)
        await self._submit(jobs)
        return [job.job_id for job in jobs]

    async def _submit(self, jobs: Sequence[Submission]) -> None:
        with broker_errors(self.url):
            for start in range(0, len(jobs), SUBMIT_CHUNK):
                chunk = jobs[start : start + SUBMIT_CHUNK]
                async with self._redis.pipeline(transaction=False) as pipe:
                    for job in chunk:
                        await self._submit_script(args=[self.keys.prefix, *submit_arguments(job)], client=pipe)
                    await pipe.execute()
                for queue in {job.queue for job in chunk}:
                    # Celery blocks; a thread keeps the event loop free.
                    await asyncio.to_thread(self._hints.send, queue)

    async def stream(self, job_id: str, *, after: str = START, timeout: float | None = None) -> AsyncIterator[Event]:
        """Replay a job's events after a position, then follow them to the end."""
        check_position(after)
        deadline = None if timeout is None else time.monotonic() + timeout
        with broker_errors(self.url):
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
        state: Any = await self._redis.hget(self.keys.job(job_id), "state")
        if state is None:
            raise job_not_found(job_id)
        return JobState(state)

    async def result(self, job_id: str, *, timeout: float | None = None) -> JobResult:
        """Wait for a job's end and return its result."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with broker_errors(self.url):
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
            record: Any = await self._redis.hgetall(self.keys.job(job_id))
        return parse_status(job_id, record)

    async def cancel(self, job_id: str) -> JobState:
        """Cancel a job and return its state afterwards."""
        with broker_errors(self.url):
            state = await self._cancel_script(args=[self.keys.prefix, job_id, EVENT_LIMIT])
        if state is None:
            raise job_not_found(job_id)
        return JobState(state)
