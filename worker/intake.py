"""Claims queued jobs, as many as the engine can use, and hands them to it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from ..producers.connection import reason_of
from ..producers.ledger import Ledger
from ..producers.records import MAX_REQUEST_BYTES
from ..producers.results import ErrorInfo
from .answer_piece import EngineHost
from .inflight import InflightJobs, OwnedJob
from .resume import restore
from .settings import WorkerSettings
from .task_recorder import TaskRecorder, TaskRequest

logger = logging.getLogger(__name__)

CLAIM_CHUNK = 256
"""Jobs claimed in one round trip."""
CLAIM_PAUSE_S = 0.005
"""Shortest time between two looks at the queue: jobs that come sooner are claimed together."""


class Intake:
    """Keeps the engine's waiting room filled.

    Work is pulled from the ledger: a wake-up, by a hint or by a job that ended, only says that it is time to
    look. So a lost hint costs at most ``poll_s``, and a busy worker leaves to others what it cannot use.

    A job on its last delivery is answered alone. If it is what brought down the workers that had it before, it
    takes nobody with it, and those that were only its neighbours then are answered.

    Args:
        queues: names of the ledger queues to serve.
        max_inflight: most jobs owned at once; several times the engine's batch, so that it has a choice.
        host: of the engine.
        may_claim: whether this worker can hold what it claims.
        on_reset: called with the request id of each job whose earlier answer cannot be continued here.
        on_refused: called with the request id of each job that the host does not take.
        on_too_large: called with the request id of each job whose request is not even read, and why.
    """

    def __init__(
        self,
        ledger: Ledger,
        inflight: InflightJobs,
        settings: WorkerSettings,
        *,
        queues: Sequence[str],
        max_inflight: int,
        host: EngineHost,
        may_claim: Callable[[], bool],
        on_reset: Callable[[str], None],
        on_refused: Callable[[str], None],
        on_too_large: Callable[[str, ErrorInfo], None],
    ) -> None:
        self._ledger = ledger
        self._inflight = inflight
        self._settings = settings
        self._queues = queues
        self._max_inflight = max_inflight
        self._host = host
        self._may_claim = may_claim
        self._on_reset = on_reset
        self._on_refused = on_refused
        self._on_too_large = on_too_large
        self._recorder = TaskRecorder(ledger)
        self._alone: deque[OwnedJob] = deque()
        self._running_alone: OwnedJob | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-intake", daemon=True)

    def start(self) -> None:
        """Begin to claim."""
        self._thread.start()

    def stop(self) -> None:
        """Claim nothing from here on, also where it has not begun."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def wake(self) -> None:
        """Look for work now."""
        self._wake.set()

    def submit(self, task: TaskRequest) -> None:
        """Write a job that came as a Celery message into the ledger, before the next claim. Never blocks."""
        self._recorder.add(task)
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            next_look = time.monotonic() + CLAIM_PAUSE_S
            try:
                self._recorder.record()
                while self._claim_chunk():
                    pass
            except RedisError as error:
                logger.warning("cannot claim jobs (%s); trying again", reason_of(error))
            self._wake.wait(self._settings.poll_s)
            self._stopping.wait(max(0.0, next_look - time.monotonic()))
            self._wake.clear()

    def _claim_chunk(self) -> bool:
        """Claim jobs up to the limit; returns whether more may be had at once."""
        if self._stopping.is_set() or not self._host.ready or not self._may_claim():
            return False
        if self._is_kept_alone():
            return False
        wanted = min(self._max_inflight - len(self._inflight), CLAIM_CHUNK)
        if wanted < 1:
            return False
        settings = self._settings
        claims = self._ledger.claim(settings.worker_id, self._host.model, self._queues, wanted, settings.lease_ms)
        # All are owned before anything else is done: the lease thread must know them.
        jobs = [OwnedJob(claim) for claim in claims]
        for job in jobs:
            self._inflight.add(job)
        self._restore(jobs)
        for job in jobs:
            if job.claim.deliveries >= self._ledger.max_deliveries > 1:
                self._alone.append(job)
            else:
                self._give(job)
        return len(claims) == wanted

    def _restore(self, jobs: list[OwnedJob]) -> None:
        """Have jobs go on where earlier attempts left them, and those that cannot start over."""
        try:
            lost = restore(self._ledger, jobs, self._host.model)
        except RedisError as error:
            # They are claimed, and will not be claimed again: without their log they have to start over.
            logger.warning("cannot read what earlier attempts have published: %s", reason_of(error))
            lost = [job for job in jobs if job.claim.seq > 0]
        for job in lost:
            self._on_reset(job.claim.request_id)

    def _is_kept_alone(self) -> bool:
        """Whether the engine is kept for a job on its last delivery; hands over the next one once it is empty."""
        self._alone = deque(job for job in self._alone if self._is_owned(job))
        if self._running_alone is not None and self._is_owned(self._running_alone):
            return True
        self._running_alone = None
        if not self._alone:
            return False
        if len(self._inflight) == len(self._alone):
            self._running_alone = job = self._alone.popleft()
            logger.warning("job %s is on its last delivery and is answered alone", job.claim.job_id)
            self._give(job)
        return True

    def _is_owned(self, job: OwnedJob) -> bool:
        return self._inflight.get(job.claim.request_id) is job

    def _give(self, job: OwnedJob) -> None:
        # headrace's clients refuse such a request themselves; another producer may not have.
        if (size := len(job.claim.request.encode())) > MAX_REQUEST_BYTES:
            self._on_too_large(job.claim.request_id, too_large(size))
            return
        if not self._host.add(job.claim.request_id, job.claim.request, job.progress):
            self._on_refused(job.claim.request_id)  # the engine died meanwhile


def too_large(size: int) -> ErrorInfo:
    """The refusal of a request of so many bytes."""
    message = f"the request has {size:,} bytes; at most {MAX_REQUEST_BYTES:,} are taken"
    return ErrorInfo(code="request_too_large", message=message, status_code=413)
