"""Keeps this worker's leases alive, and takes over from workers that let theirs run out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from ..producers.ledger import Ledger
from .inflight import InflightJobs
from .settings import WorkerSettings

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
"""How often leases are renewed; also the longest time in which a cancel goes unnoticed."""


class LeaseKeeper:
    """A thread that the engine cannot starve: it holds no lock of the engine and does little.

    Every tick it renews all leases in one script, drops the jobs that are not this worker's any more
    (cancelled, or taken over), queues the jobs of silent workers again, and says that this worker is alive.
    Reaping is one atomic script that does nothing when no lease has run out, so every worker may do it.

    Args:
        describe: what to say about this worker, as hash fields.
        on_lost: called with the request id of each job that is not this worker's any more.
        on_reaped: called when jobs were queued again.
        on_tick: called after each tick that reached Redis.
    """

    def __init__(
        self,
        ledger: Ledger,
        inflight: InflightJobs,
        settings: WorkerSettings,
        *,
        describe: Callable[[], dict[str, str | int]],
        on_lost: Callable[[str], None],
        on_reaped: Callable[[], None],
        on_tick: Callable[[], None],
    ) -> None:
        self.leases_lost = 0
        self._ledger = ledger
        self._inflight = inflight
        self._settings = settings
        self._describe = describe
        self._on_lost = on_lost
        self._on_reaped = on_reaped
        self._on_tick = on_tick
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-lease", daemon=True)

    def start(self) -> None:
        """Say that this worker is alive, and begin to renew.

        Raises:
            RedisError: where Redis does not answer.
        """
        self._heartbeat()
        self._thread.start()

    def stop(self) -> None:
        """Renew nothing from here on, and sign off."""
        self._stopping.set()
        self._thread.join()
        keys, worker_id = self._ledger.keys, self._settings.worker_id
        try:
            self._ledger.redis.delete(keys.worker(worker_id))
            self._ledger.redis.zrem(keys.workers, worker_id)
        except RedisError as error:
            logger.warning("cannot sign off (%s); the heartbeat runs out by itself", error)

    def _run(self) -> None:
        while not self._stopping.wait(TICK_SECONDS):
            try:
                self._tick()
            except RedisError as error:
                logger.warning("cannot renew leases (%s); trying again", error)

    def _tick(self) -> None:
        for claim in self._ledger.renew(self._inflight.claims(), self._settings.lease_ms):
            if self._inflight.remove(claim.request_id):
                self.leases_lost += 1
                logger.info("job %s attempt %d is not ours any more", claim.job_id, claim.attempt)
                self._on_lost(claim.request_id)
        if reaped := self._ledger.reap():
            logger.warning("queued %d jobs of silent workers again", len(reaped))
            self._on_reaped()
        self._heartbeat()
        self._on_tick()

    def _heartbeat(self) -> None:
        keys, worker_id, lease_ms = self._ledger.keys, self._settings.worker_id, self._settings.lease_ms
        now_ms = int(time.time() * 1000)
        fields: dict[Any, Any] = dict(self._describe())
        with self._ledger.redis.pipeline(transaction=False) as pipe:
            pipe.hset(keys.worker(worker_id), mapping=fields)
            pipe.pexpire(keys.worker(worker_id), lease_ms)
            pipe.zadd(keys.workers, {worker_id: now_ms})
            pipe.zremrangebyscore(keys.workers, "-inf", now_ms - 10 * lease_ms)
            pipe.execute()
