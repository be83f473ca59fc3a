"""A worker without Celery: the threads between the ledger and the engine, and their life.

intake -> engine thread -> publisher
   ^            |              |
   |          abort            v
hints         lease keeper   ledger
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from ..engine import Engine, RequestError, RequestOutput
from ..producers.connection import connect
from ..producers.keys import DEFAULT_QUEUE, Keys
from ..producers.ledger import Claim, Ledger, Submission
from ..producers.results import JobResult
from .engine_request import RequestTranslator
from .engine_thread import EngineThread
from .inflight import InflightJobs
from .intake import Intake, bad_request
from .lease import LeaseKeeper
from .publisher import Publisher
from .settings import WorkerSettings

logger = logging.getLogger(__name__)

INFLIGHT_FACTOR = 4
"""Jobs owned at most, in multiples of the engine's batch."""


def _ignore(*_: Any) -> None:
    """Nobody listens yet."""


class WorkerService:
    """Takes jobs from the ledger, runs them, and publishes what comes out, until it is stopped.

    Args:
        settings: of the worker.
        engine: with its model loaded.

    Attributes:
        crashed: whether a step of the engine raised; the process then ends.
    """

    def __init__(self, settings: WorkerSettings, engine: Engine) -> None:
        self.settings = settings
        self.model = engine.name
        self.queues = (engine.name, DEFAULT_QUEUE)
        self.max_inflight = INFLIGHT_FACTOR * engine.scheduler.max_num_seqs
        self.inflight = InflightJobs()
        self.ledger = Ledger(connect(settings.redis_url), Keys(settings.prefix))
        self._on_ended: Callable[[JobResult], None] = _ignore
        self._on_tick: Callable[[], None] = _ignore
        self._draining = False
        self.crashed = False
        self._engine = EngineThread(
            engine,
            on_outputs=self._publish,
            on_refused=self._refuse,
            on_crash=self._end_process,
        )
        self._publisher = Publisher(
            self.ledger,
            self.inflight,
            model=engine.name,
            flush_s=settings.flush_s,
            on_ended=self._ended,
            on_lost=self._lost,
        )
        self._intake = Intake(
            self.ledger,
            self.inflight,
            settings,
            queues=self.queues,
            max_inflight=self.max_inflight,
            translator=RequestTranslator(engine),
            on_request=self._engine.add,
            on_refused=self._publisher.fail,
        )
        self._lease = LeaseKeeper(
            self.ledger,
            self.inflight,
            settings,
            describe=self.describe,
            on_lost=self._lost,
            on_reaped=self.wake,
            on_tick=self._tick,
        )

    def listen(self, on_ended: Callable[[JobResult], None], on_tick: Callable[[], None]) -> None:
        """Be told, in their threads, of each job that this worker ends and of each tick of the lease keeper."""
        self._on_ended, self._on_tick = on_ended, on_tick

    def start(self) -> None:
        """Take jobs.

        Raises:
            RedisError: where Redis does not answer.
        """
        self._lease.start()
        self._publisher.start()
        self._engine.start()
        self._intake.start()

    def wake(self) -> None:
        """Look for work now."""
        self._intake.wake()

    def submit(self, submission: Submission) -> None:
        """Write a job into the ledger soon, without blocking."""
        self._intake.submit(submission)

    def cancel(self, job_id: str) -> None:
        """Cancel a job, whoever runs it."""
        self.ledger.cancel(job_id)

    def drain(self, grace_s: float) -> bool:
        """Claim nothing more, hand back what has no token yet, let the others finish, and hand back the rest.

        Returns:
            Whether all that were answering finished in time.
        """
        self._draining = True
        self._intake.stop()
        if self.crashed:
            self._leave()
            return False
        self._hand_back(self.inflight.unstarted())
        deadline = time.monotonic() + grace_s
        while len(self.inflight) and time.monotonic() < deadline:
            time.sleep(0.05)
        unfinished = self.inflight.claims()
        self._hand_back(unfinished)
        return not unfinished

    def _hand_back(self, claims: list[Claim]) -> None:
        """Give jobs back to the queue, for any worker to take."""
        for claim in claims:
            self.inflight.remove(claim.request_id)
            self._engine.abort(claim.request_id)
        if claims:
            logger.info("handing back %d jobs", len(claims))
            try:
                self.ledger.release(claims)
            except RedisError as error:
                logger.warning("cannot hand them back (%s); their leases run out by themselves", error)

    def _leave(self) -> None:
        """Have all leases run out now: others take the jobs over at once, and the delivery counts."""
        claims = self.inflight.claims()
        for claim in claims:
            self.inflight.remove(claim.request_id)
        try:
            self.ledger.renew(claims, lease_ms=0)
        except RedisError as error:
            logger.warning("cannot end the leases (%s); they run out by themselves", error)

    def stop(self) -> None:
        """End all threads; what is owned still is left to other workers once its lease runs out."""
        self._engine.stop()
        self._publisher.stop()
        self._lease.stop()
        self.ledger.redis.close()

    def describe(self) -> dict[str, str | int]:
        """What this worker says about itself in its heartbeat."""
        stats = self._engine.stats
        return {
            "model": self.model,
            "state": "draining" if self._draining else "ready",
            "running": len(self.inflight),
            "generation_tokens": stats.generation_tokens,
            "prompt_tokens": stats.prompt_tokens,
            "forced_tokens": stats.forced_tokens,
            "peak_running": stats.peak_running,
            **self._scheduling(),
            "events_published": self._publisher.events_published,
            "fenced_writes": self._publisher.fenced_writes,
            "leases_lost": self._lease.leases_lost,
        }

    def _scheduling(self) -> dict[str, str | int]:
        """What the scheduler did to keep the engine busy."""
        scheduler = self._engine.scheduler
        stats = scheduler.stats
        return {
            "engine_running": len(scheduler.running),
            "engine_waiting": len(scheduler.waiting),
            "engine_preempted": len(scheduler.preempted),
            "kv_blocks_used": scheduler.pool.num_held,
            "kv_blocks": scheduler.pool.num_blocks,
            "prefix_cache_queries": stats.prefix_cache_queries,
            "prefix_cache_hits": stats.prefix_cache_hits,
            **{f"preemptions_{method.value}": count for method, count in stats.preemptions.items()},
        }

    def _publish(self, outputs: list[RequestOutput]) -> None:
        self._publisher.offer(outputs)

    def _tick(self) -> None:
        self._on_tick()

    def _refuse(self, request_id: str, error: RequestError) -> None:
        self._publisher.fail(request_id, bad_request(error))

    def _ended(self, result: JobResult) -> None:
        self.wake()
        self._on_ended(result)

    def _lost(self, request_id: str) -> None:
        self._engine.abort(request_id)
        self.wake()

    def _end_process(self, _: BaseException) -> None:
        """After a crash of the engine: a process that cannot compute must not claim jobs."""
        self.crashed = True
        os.kill(os.getpid(), signal.SIGTERM)
