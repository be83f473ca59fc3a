"""Writes the jobs of Celery messages into the ledger, for those who may submit them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..producers.errors import AccessDenied, InvalidRequest
from ..producers.ledger import Ledger, Submission, Submitted
from ..producers.limits import ACCEPTED, id_taken
from ..producers.records import submission
from ..producers.results import ErrorInfo, JobResult, JobState
from ..producers.schema import GenerationRequest
from ..producers.tenants import Credentials, access_of


@dataclass(eq=False)
class TaskRequest:
    """What a ``headrace.generate`` message asks for, and in whose name. The token goes no further than here."""

    task_id: str
    request: GenerationRequest
    credentials: Credentials
    on_recorded: Callable[[], None]
    """Called in the recorder's thread once the job is in the ledger, now or since an earlier delivery."""
    on_refused: Callable[[JobResult], None]
    """Called in the recorder's thread where there will be no job."""
    job: Submission | None = field(default=None, init=False)
    """What is to be written, once the sender is known to be allowed to."""


class TaskRecorder:
    """The jobs that wait to be written. Where a queue is full they go on waiting, and so do their messages.

    Args:
        ledger: where to write.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: list[TaskRequest] = []
        self._lock = threading.Lock()

    def add(self, task: TaskRequest) -> None:
        """Have a job written with the next :meth:`record`. Never blocks."""
        with self._lock:
            self._waiting.append(task)

    def record(self) -> None:
        """Write what waits.

        Raises:
            RedisError: where Redis does not answer; nothing is lost.
        """
        with self._lock:
            waiting = list(self._waiting)
        if not waiting:
            return
        self._check_senders([task for task in waiting if task.job is None])
        allowed = [(task, task.job) for task in waiting if task.job is not None]
        replies = self._ledger.submit([job for _, job in allowed])
        full: list[TaskRequest] = []
        for (task, _), reply in zip(allowed, replies, strict=True):
            if reply in ACCEPTED:
                task.on_recorded()
            elif reply is Submitted.TAKEN:
                _refuse(task, id_taken(task.task_id))
            else:
                full.append(task)
        with self._lock:
            self._waiting[: len(waiting)] = full

    def _check_senders(self, tasks: Sequence[TaskRequest]) -> None:
        """Make jobs of those tasks whose senders may submit them."""
        if not tasks:
            return
        keys = self._ledger.keys
        with self._ledger.redis.pipeline(transaction=False) as pipe:
            pipe.hlen(keys.tenants)
            for task in tasks:
                pipe.hget(keys.tenants, task.credentials.tenant)
            num_tenants, *digests = pipe.execute()
        for task, expected in zip(tasks, digests, strict=True):
            try:
                access = access_of(task.credentials, num_tenants, expected)
                task.job = submission(access.stamped(task.request), job_id=task.task_id)
            except (AccessDenied, InvalidRequest) as error:
                _refuse(task, error)


def _refuse(task: TaskRequest, error: AccessDenied | InvalidRequest) -> None:
    task.on_refused(JobResult(job_id=task.task_id, state=JobState.FAILED, error=refusal(error)))


def refusal(error: AccessDenied | InvalidRequest) -> ErrorInfo:
    """Why a message gets no job."""
    if isinstance(error, AccessDenied):
        return ErrorInfo(code="access_denied", message=str(error), status_code=403)
    return ErrorInfo(code="invalid_request", message=str(error), status_code=400)
