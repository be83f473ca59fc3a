"""Keeps this worker's leases alive, and takes over from workers that let theirs run out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis.exceptions import RedisError

from ..producers.connection import reason_of
from ..producers.ledger import Claim, Ledger
from .inflight import InflightJobs
from .settings import WorkerSettings

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
"""How often leases are renewed; also the longest time in which a cancel goes unnoticed where its notice is lost."""


class LeaseKeeper:
    """A thread that the engine cannot starve: it holds no lock of the engine and does little.

    Every tick it renews all leases in one script, drops the jobs that are not this worker's any more
    (cancelled, expired, or taken over), does for all jobs what time has made due, and says that this worker is
    alive. Between ticks it listens for jobs that were cancelled. Reaping is one atomic script that does nothing
    when nothing is due, so every worker may do it.

    Args:
        queues: names of the ledger queues that the worker serves.
        describe: what to say about this worker, as hash fields.
        on_lost: called with the request id of each job that is not this worker's any more.
        on_queued: called when there is something in a queue that was empty, or jobs were queued again.
        on_tick: called after each tick that reached Redis.
    """

    def __init__(
        self,
        ledger: Ledger,
        inflight: InflightJobs,
        settings: WorkerSettings,
        *,
        queues: Sequence[str],
        describe: Callable[[], dict[str, str | int]],
        on_lost: Callable[[str], None],
        on_queued: Callable[[], None],
        on_tick: Callable[[], None],
    ) -> None:
        self.leases_lost = 0
        self.lease_renewals = 0
        self._ledger = ledger
        self._inflight = inflight
        self._settings = settings
        self._queues = queues
        self._describe = describe
        self._on_lost = on_lost
        self._on_queued = on_queued
        self._on_tick = on_tick
        self._renewed_at = time.monotonic()
        self._control: Any = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-lease", daemon=True)

    @property
    def holds(self) -> bool:
        """Whether leases were renewed lately; a worker that cannot renew must not claim."""
        return time.monotonic() - self._renewed_at < self._settings.lease_ms / 2000

    def start(self) -> None:
        """Say that this worker is alive, and begin to renew."""
        try:
            self._heartbeat()
            self._renewed_at = time.monotonic()
        except RedisError as error:
            # It went away, or loads its data, since the model began to load. That was the long part: wait for it.
            logger.warning("Redis does not answer yet (%s); trying again", reason_of(error))
        self._thread.start()

    def stop(self) -> None:
        """Renew nothing from here on, and sign off."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._drop_control()
        keys, worker_id = self._ledger.keys, self._settings.worker_id
        try:
            self._ledger.redis.delete(keys.worker(worker_id))
            self._ledger.redis.zrem(keys.workers, worker_id)
        except RedisError as error:
            logger.warning("cannot sign off (%s); the heartbeat runs out by itself", reason_of(error))

    def _run(self) -> None:
        next_tick = time.monotonic() + TICK_SECONDS
        while not self._stopping.is_set():
            try:
                self._listen(next_tick)
                if time.monotonic() >= next_tick:
                    next_tick = time.monotonic() + TICK_SECONDS
                    self._tick()
            except RedisError as error:
                logger.warning("cannot renew leases (%s); trying again", reason_of(error))
                self._drop_control()
                self._stopping.wait(0.2)

    def _listen(self, until: float) -> None:
        """Hear of cancelled and of new jobs until the next tick, or until the first message."""
        keys = self._ledger.keys
        control = keys.control(self._settings.worker_id)
        if self._control is None:
            redis: Any = self._ledger.redis
            self._control = redis.pubsub(ignore_subscribe_messages=True)
            self._control.subscribe(control, *map(keys.arrivals, self._queues))
        # Short waits: the thread must end soon when it is told to.
        message = self._control.get_message(timeout=min(0.2, max(0.0, until - time.monotonic())))
        if message is None:
            return
        if message["channel"] == control:
            self._renew(self._inflight.claims_of(message["data"]))
        else:
            self._on_queued()

    def _drop_control(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            control.close()

    def _tick(self) -> None:
        claims = self._inflight.claims()
        self._renew(claims)
        self._renewed_at = time.monotonic()
        self.lease_renewals += len(claims)
        reaped = self._ledger.reap()
        if reaped.taken_over:
            logger.warning("queued %d jobs of silent workers again", reaped.taken_over)
        if reaped.queued:
            self._on_queued()
        self._heartbeat()
        self._on_tick()

    def _renew(self, claims: list[Claim]) -> None:
        for claim in self._ledger.renew(claims, self._settings.lease_ms):
            if self._inflight.remove(claim.request_id):
                self.leases_lost += 1
                logger.info("job %s attempt %d is not ours any more", claim.job_id, claim.attempt)
                self._on_lost(claim.request_id)

    def _heartbeat(self) -> None:
        say_alive(self._ledger, self._settings, self._describe())


def say_alive(ledger: Ledger, settings: WorkerSettings, description: Mapping[str, str | int]) -> None:
    """Say what a worker has to say about itself, for the length of a lease."""
    keys, worker_id, now_ms = ledger.keys, settings.worker_id, int(time.time() * 1000)
    fields: dict[Any, Any] = dict(description)
    with ledger.redis.pipeline(transaction=False) as pipe:
        pipe.hset(keys.worker(worker_id), mapping=fields)
        pipe.pexpire(keys.worker(worker_id), settings.lease_ms)
        pipe.zadd(keys.workers, {worker_id: now_ms})
        pipe.zremrangebyscore(keys.workers, "-inf", now_ms - 10 * settings.lease_ms)
        pipe.execute()
