"""A worker without Celery: the threads between the ledger and the engine, and their life.

intake -> engine host -> publisher
   ^            |             |
   |          abort           v
hints         lease keeper  ledger
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from ..producers.connection import connect
from ..producers.keys import DEFAULT_QUEUE, Keys
from ..producers.ledger import Ledger
from ..producers.results import ErrorInfo, JobResult
from .answer_piece import AnswerPiece, EngineHost
from .inflight import InflightJobs
from .intake import Intake
from .lease import LeaseKeeper
from .publisher import Publisher
from .settings import WorkerSettings
from .task_recorder import TaskRequest

logger = logging.getLogger(__name__)

INFLIGHT_FACTOR = 4
"""Jobs owned at most, in multiples of the engine's batch."""
HAND_BACK_SECONDS = 2.0
"""Kept of the grace time for handing jobs back."""


def _ignore(*_: Any) -> None:
    """Nobody listens yet."""


class WorkerService:
    """Takes jobs from the ledger, runs them, and publishes what comes out, until it is stopped.

    Args:
        settings: of the worker.
        host: an engine with its model loaded; the service starts it and stops it.

    Attributes:
        crashed: whether the engine is gone and will not come back; the process then ends.
    """

    def __init__(self, settings: WorkerSettings, host: EngineHost) -> None:
        self.settings = settings
        self.model = host.model
        self.queues = (host.model, DEFAULT_QUEUE)
        self.max_inflight = INFLIGHT_FACTOR * host.max_num_seqs
        self.inflight = InflightJobs()
        self.ledger = Ledger(connect(settings.redis_url), Keys(settings.prefix), max_deliveries=settings.max_deliveries)
        self._host = host
        self._on_ended: Callable[[JobResult], None] = _ignore
        self._on_tick: Callable[[], None] = _ignore
        self._draining = False
        self._cut_short = False
        self.crashed = False
        self._engine_crashes = 0
        self._publisher = Publisher(
            self.ledger,
            self.inflight,
            model=host.model,
            flush_s=settings.flush_s,
            on_ended=self._ended,
            on_lost=self._lost,
        )
        self._lease = LeaseKeeper(
            self.ledger,
            self.inflight,
            settings,
            queues=self.queues,
            describe=self.describe,
            on_lost=self._lost,
            on_queued=self.wake,
            on_tick=self._tick,
        )
        self._intake = Intake(
            self.ledger,
            self.inflight,
            settings,
            queues=self.queues,
            max_inflight=self.max_inflight,
            host=host,
            may_claim=lambda: self._lease.holds and not self._draining,
            on_reset=self._publisher.reset,
            on_refused=self._publisher.hand_back,
            on_too_large=self._publisher.fail,
        )

    def listen(self, on_ended: Callable[[JobResult], None], on_tick: Callable[[], None]) -> None:
        """Be told, in their threads, of each job that this worker ends and of each tick of the lease keeper."""
        self._on_ended, self._on_tick = on_ended, on_tick

    def start(self) -> None:
        """Take jobs, as soon as Redis answers."""
        self._lease.start()
        self._publisher.start()
        self._host.start(self)
        self._intake.start()

    def wake(self) -> None:
        """Look for work now."""
        self._intake.wake()

    def submit(self, task: TaskRequest) -> None:
        """Write the job of a Celery message into the ledger soon, without blocking."""
        self._intake.submit(task)

    def cancel(self, job_id: str) -> None:
        """Cancel a job, whoever runs it."""
        self.ledger.cancel(job_id)

    def drain(self, grace_s: float) -> bool:
        """Claim nothing more, hand back what is not computed yet, let the others finish, and hand back the rest.

        What is handed back keeps its progress: another worker goes on with it in mid-sentence.

        Returns:
            Whether all that were being answered finished in time.
        """
        self._draining = True
        self._intake.stop()
        deadline = time.monotonic() + max(0.0, grace_s - min(HAND_BACK_SECONDS, grace_s / 2))
        self._hand_back(only_waiting=True)
        while len(self.inflight) and time.monotonic() < deadline and not self.crashed:
            if self._cut_short:
                break
            time.sleep(0.05)
        unfinished = len(self.inflight)
        self._hand_back(only_waiting=False)
        settled = time.monotonic() + HAND_BACK_SECONDS
        while len(self.inflight) and time.monotonic() < settled:
            time.sleep(0.01)
        if len(self.inflight):
            logger.warning("%d jobs cannot be handed back; their leases run out by themselves", len(self.inflight))
        return not unfinished

    def told_to_stop(self) -> None:
        """Claim nothing more; told so again, have a drain wait no longer.

        Called by a signal handler, so it only sets flags: no lock may be taken.
        """
        self._cut_short = self._draining
        self._draining = True

    def _hand_back(self, *, only_waiting: bool) -> None:
        """Give jobs back to the queue, for any worker to take."""
        jobs = [job for job in self.inflight.jobs() if not (only_waiting and job.begun)]
        for job in jobs:
            self._publisher.hand_back(job.claim.request_id)
        if jobs:
            logger.info("handing back %d jobs", len(jobs))

    def stop(self) -> None:
        """End all threads; what is owned still is left to other workers once its lease runs out."""
        self._host.stop()
        self._publisher.stop()
        self._lease.stop()
        self.ledger.redis.close()

    @property
    def state(self) -> str:
        """``ready``, ``restarting`` while there is no engine, or ``draining``."""
        if self._draining:
            return "draining"
        return "ready" if self._host.ready else "restarting"

    def describe(self) -> dict[str, str | int]:
        """What this worker says about itself in its heartbeat."""
        publisher = self._publisher
        return {
            "model": self.model,
            "state": self.state,
            "running": len(self.inflight),
            **self._host.describe(),
            "engine_crashes": self._engine_crashes,
            "events_published": publisher.events_published,
            "fenced_writes": publisher.fenced_writes,
            "leases_lost": self._lease.leases_lost,
            "lease_renewals": self._lease.lease_renewals,
            **{f"tokens_wasted_{reason}": count for reason, count in publisher.tokens_wasted.items()},
        }

    def on_pieces(self, pieces: list[AnswerPiece]) -> None:
        """Publish what a step produced."""
        self._publisher.offer(pieces)

    def on_begun(self, request_ids: list[str]) -> None:
        """Note which jobs a crash of the engine may be the fault of."""
        self.inflight.mark_begun(request_ids)

    def on_waiting(self, request_id: str) -> None:
        """Note that a crash of the engine is not this job's fault."""
        self.inflight.mark_waiting(request_id)

    def on_refused(self, request_id: str, error: ErrorInfo) -> None:
        """End a job that the model cannot answer."""
        self._publisher.fail(request_id, error)

    def on_restarted(self, request_id: str) -> None:
        """Void what earlier attempts have published: the engine cannot go on from there."""
        self._publisher.reset(request_id)

    def on_ready(self) -> None:
        """Claim for an engine that has come up."""
        self.wake()

    def on_crash(self, reason: str) -> None:
        """Hand all jobs on at once. The delivery counts for those that were being computed: it may be their fault."""
        self._engine_crashes += 1
        for job in self.inflight.jobs():
            if job.begun:
                self._publisher.hand_on(job.claim.request_id, ErrorInfo(code="engine_died", message=reason))
            else:
                self._publisher.hand_back(job.claim.request_id)
        if not self._host.restarts:
            # A process that cannot compute must not claim jobs.
            self.crashed = True
            os.kill(os.getpid(), signal.SIGTERM)

    def _tick(self) -> None:
        self._on_tick()

    def _ended(self, result: JobResult) -> None:
        self.wake()
        self._on_ended(result)

    def _lost(self, request_id: str) -> None:
        self._host.abort(request_id)
        self.wake()
