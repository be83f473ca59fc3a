"""Celery's pool: where Celery expects processes or threads, there is an engine.

A hint wakes the intake and is done. A ``headrace.generate`` message is held: its job goes into the ledger under
the task's id, and once the job has ended, here or on another worker, Celery's own tracer runs with a task body
that returns the finished result. So result backends, chains, groups, chords, events and revoke all work as
Celery's users expect, and no message is acknowledged before its job has ended.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from celery.concurrency.base import BasePool, apply_target
from kombu.serialization import loads

from ..producers.errors import InvalidRequest
from ..producers.hints import GENERATE_TASK, UNACKED_INDEX
from ..producers.records import request_from, submission
from ..producers.results import ErrorInfo, JobResult, JobState
from .service import WorkerService

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class HeldTask:
    """A Celery message whose job has not ended yet. Celery keeps a weak reference to it, for ``revoke``."""

    task_id: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    callback: Any
    """A bound method of Celery's request, which acknowledges its message."""
    on_terminate: Callable[[str], None]
    duplicates: list[Any] = field(default_factory=list)
    """Callbacks of further deliveries of the same message: acknowledged with the first, never run."""

    def delivery_tags(self) -> list[str]:
        """kombu's names of the deliveries held here."""
        return [callback.__self__.message.delivery_tag for callback in (self.callback, *self.duplicates)]

    def terminate(self, _signal: Any = None) -> None:
        """Celery's ``revoke(terminate=True)``: cancel the job."""
        self.on_terminate(self.task_id)


class EnginePool(BasePool):  # type: ignore[misc]
    """Hosts the app's :class:`WorkerService`; nothing here blocks Celery's event loop."""

    signal_safe = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._service: WorkerService = self.app.service
        self._held: dict[str, HeldTask] = {}
        self._lock = threading.Lock()
        self._hub: Any = None

    def register_with_event_loop(self, hub: Any) -> None:
        """Remember the loop in which messages are acknowledged and tasks published."""
        self._hub = hub

    def on_start(self) -> None:
        """Begin to take jobs."""
        self._service.listen(self._job_ended, self._tick)
        self._service.start()

    def on_stop(self) -> None:
        """Let running jobs finish. Messages that are held still go back to their queue with the connection."""
        self._service.drain(self._service.settings.drain_grace_s)
        self._service.stop()

    def on_terminate(self) -> None:
        """Stop at once."""
        self._service.drain(0)
        self._service.stop()

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """There is no process to kill; :meth:`HeldTask.terminate` cancels the job."""

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        callback: Callable[..., Any],
        accept_callback: Callable[..., Any],
        **_options: Any,
    ) -> HeldTask | None:
        """Take a message from Celery. Only ``headrace.generate`` waits for anything."""
        name, task_id, _request, body, content_type, content_encoding = args
        if name != GENERATE_TASK:
            # Hints, and Celery's own small tasks, are done on the spot.
            apply_target(target, args, kwargs, callback, accept_callback)
            return None
        accept_callback(os.getpid(), time.monotonic())
        with self._lock:
            if task_id in self._held:
                self._held[task_id].duplicates.append(callback)
                return self._held[task_id]
            held = HeldTask(task_id, target, args, callback, self._revoke)
            self._held[task_id] = held
        try:
            positional, keywords = _decode(body, content_type, content_encoding)
            first = positional.pop(0) if positional else keywords.pop("request", None)
            if positional:
                raise InvalidRequest("generate takes one positional argument, the request; name the others")
            self._service.submit(submission(request_from(first, keywords), job_id=task_id))
        except InvalidRequest as error:
            refusal = ErrorInfo(code="invalid_request", message=str(error), status_code=400)
            self._settle(JobResult(job_id=task_id, state=JobState.FAILED, error=refusal))
        return held

    def _job_ended(self, result: JobResult) -> None:
        """Settle a held message in Celery's loop; called in the publisher's thread."""
        if result.job_id in self._held and self._hub is not None:
            self._hub.call_soon(self._settle, result)

    def _settle(self, result: JobResult) -> None:
        """Run Celery's tracer over a finished job, which stores the result, goes on with a chain, and acks."""
        with self._lock:
            held = self._held.pop(result.job_id, None)
        if held is None:
            return
        self.app.finished[held.task_id] = result
        apply_target(held.target, held.args, {}, held.callback)
        for acknowledge in held.duplicates:
            acknowledge((False, None, 0.0))

    def _revoke(self, task_id: str) -> None:
        with self._lock:
            self._held.pop(task_id, None)
        self._service.cancel(task_id)

    def _tick(self) -> None:
        """Look after held messages; called in the lease keeper's thread.

        A job may end on another worker, so its record is read; and Celery must not deliver a message again
        while it is held, so its age is reset.
        """
        with self._lock:
            held = list(self._held.values())
        if not held:
            return
        ledger = self._service.ledger
        with ledger.redis.pipeline(transaction=False) as pipe:
            tags = [tag for task in held for tag in task.delivery_tags()]
            pipe.zadd(UNACKED_INDEX, dict.fromkeys(tags, time.time()), xx=True)
            for task in held:
                pipe.hget(ledger.keys.job(task.task_id), "result")
            _, *results = pipe.execute()
        for result in results:
            if result is not None:
                self._job_ended(JobResult.model_validate_json(result))

    def _get_info(self) -> dict[str, Any]:
        """What ``celery inspect stats`` shows of the pool."""
        info: dict[str, Any] = super()._get_info()
        return {**info, **self._service.describe(), "held-messages": len(self._held)}


def _decode(body: Any, content_type: str | None, content_encoding: str | None) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments of a task message; JSON only."""
    payload = body
    if content_type is not None:
        payload = loads(body, content_type, content_encoding, accept=["application/json"])
    positional, keywords, _embedded = payload
    return list(positional), dict(keywords)
