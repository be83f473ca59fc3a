"""Celery's pool: where Celery expects processes or threads, there is an engine.

A hint wakes the intake and is done; hints that come thick and fast are taken slowly, since producers send none while
one waits. A ``headrace.generate`` message is held: its job goes into the ledger under
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
from queue import SimpleQueue
from typing import Any

from celery.concurrency.base import BasePool, apply_target
from kombu.exceptions import SerializationError
from kombu.serialization import loads

from ..producers.errors import InvalidRequest
from ..producers.hints import GENERATE_TASK, HINT_TASK, UNACKED_INDEX
from ..producers.records import request_from
from ..producers.results import JobResult, JobState
from ..producers.schema import GenerationRequest
from ..producers.tenants import OPERATOR, Credentials
from .service import WorkerService
from .task_recorder import TaskRequest, refusal

logger = logging.getLogger(__name__)

HINT_PAUSE_S = 0.005
"""Shortest time between two hints: the jobs of those that come sooner are claimed together."""

SETTLE_S = 5.0
"""Longest wait, when the worker stops, for the results of finished jobs to reach Celery's result backend."""


@dataclass(eq=False)
class HeldTask:
    """A Celery message whose job has not ended yet. Celery keeps a weak reference to it, for ``revoke``."""

    task_id: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    callback: Any
    """A bound method of Celery's request, which acknowledges its message."""
    on_terminate: Callable[[str], None]
    recorded: bool = False
    """Whether its job is in the ledger. Until then a job of this id may be somebody else's."""
    duplicates: list[Any] = field(default_factory=list)
    """Callbacks of further deliveries of the same message: acknowledged with the first, never run."""

    def delivery_tags(self) -> list[str]:
        """kombu's names of the deliveries held here."""
        return [callback.__self__.message.delivery_tag for callback in (self.callback, *self.duplicates)]

    def terminate(self, _signal: Any = None) -> None:
        """Celery's ``revoke(terminate=True)``: cancel the job."""
        self.on_terminate(self.task_id)


class EnginePool(BasePool):  # type: ignore[misc]
    """Hosts the app's :class:`WorkerService`; Celery's event loop waits for a hint's pause at most."""

    signal_safe = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._service: WorkerService = self.app.service
        self._held: dict[str, HeldTask] = {}
        self._lock = threading.Lock()
        self._hinted_at = 0.0
        self._ended: SimpleQueue[JobResult | None] = SimpleQueue()
        self._settler = threading.Thread(target=self._settle_all, name="headrace-settle", daemon=True)

    def on_start(self) -> None:
        """Begin to take jobs."""
        self._settler.start()
        self._service.listen(self._job_ended, self._tick)
        self._service.start()

    def on_stop(self) -> None:
        """Let running jobs finish. Messages that are held still go back to their queue with the connection."""
        self._service.drain(self._service.settings.drain_grace_s)
        self._service.stop()
        self._ended.put(None)
        self._settler.join(SETTLE_S)

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
        if name not in (GENERATE_TASK, HINT_TASK):
            # Celery's own small tasks are done on the spot.
            apply_target(target, args, kwargs, callback, accept_callback)
            return None
        accept_callback(os.getpid(), time.monotonic())
        if name == HINT_TASK:
            self._take_hint()
            callback((False, None, 0.0))
            return None
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
            request, credentials = _request_of(first, keywords)
            task = TaskRequest(task_id, request, credentials, lambda: self._recorded(held), self._refused)
            self._service.submit(task)
        except InvalidRequest as error:
            self._ended.put(JobResult(job_id=task_id, state=JobState.FAILED, error=refusal(error)))
        return held

    def _take_hint(self) -> None:
        """Wake the intake. Celery's tracer, which costs more than all the rest, has nothing to do for a hint."""
        # A hint that is left in its list for a moment keeps producers from sending more of them.
        time.sleep(max(0.0, min(HINT_PAUSE_S, self._hinted_at + HINT_PAUSE_S - time.monotonic())))
        self._hinted_at = time.monotonic()
        self._service.wake()

    def _recorded(self, held: HeldTask) -> None:
        """Note that a message's job is in the ledger; called in the intake's thread."""
        held.recorded = True
        if self._held.get(held.task_id) is not held:  # it was revoked meanwhile
            self._service.cancel(held.task_id)

    def _refused(self, result: JobResult) -> None:
        """Settle a message that gets no job; called in the intake's thread."""
        self._ended.put(result)

    def _job_ended(self, result: JobResult) -> None:
        """Settle a held message; called in the publisher's thread and the lease keeper's."""
        held = self._held.get(result.job_id)
        # One that is not recorded yet is looked after by the next tick.
        if held is not None and held.recorded:
            self._ended.put(result)

    def _settle_all(self) -> None:
        """Settle messages one after the other, in a thread of its own, until there is None.

        Celery's loop would not do: an acknowledgement that is asked for within the loop waits for the loop's next
        event, and a result backend that cannot be reached would stop the loop.
        """
        while (result := self._ended.get()) is not None:
            try:
                self._settle(result)
            except Exception:
                logger.exception("the Celery message of job %s could not be settled", result.job_id)

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
            held = self._held.pop(task_id, None)
        if held is not None and held.recorded:
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
        recorded = [task for task in held if task.recorded]
        ledger = self._service.ledger
        with ledger.redis.pipeline(transaction=False) as pipe:
            tags = [tag for task in held for tag in task.delivery_tags()]
            pipe.zadd(UNACKED_INDEX, dict.fromkeys(tags, time.time()), xx=True)
            for task in recorded:
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
    """Positional and keyword arguments of a task message; JSON only.

    Raises:
        InvalidRequest: where the body is none of a task's.
    """
    try:
        payload = body
        if content_type is not None:
            payload = loads(body, content_type, content_encoding, accept=["application/json"])
        positional, keywords, _embedded = payload
        return list(positional), dict(keywords)
    except (ValueError, TypeError, LookupError, RecursionError, SerializationError) as error:
        raise InvalidRequest("the message's body must be JSON: [positional, keywords, options]") from error


def _request_of(request: Any, keywords: dict[str, Any]) -> tuple[GenerationRequest, Credentials]:
    """What a message asks for, and in whose name. The token is taken out of it here, so that no record has it.

    Raises:
        InvalidRequest: where the message makes no request.
    """
    token = keywords.pop("tenant_token", None) or ""
    if not isinstance(token, str):
        raise InvalidRequest("tenant_token must be a text", param="tenant_token")
    if keywords.get("tenant") == OPERATOR:
        del keywords["tenant"]  # the operator may submit on anybody's account, or on nobody's
        return request_from(request, keywords), Credentials(OPERATOR, token)
    parsed = request_from(request, keywords)
    return parsed, Credentials(parsed.tenant, token)
