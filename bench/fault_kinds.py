"""What can go wrong between a program, the queue and the workers, each made to happen to a running cluster.

A fault is a function that returns whether it could happen: some need a worker that serves.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.producers import JobState
from headrace.producers.hints import HintSender, celery_queue
from headrace.producers.ledger import Ledger
from headrace.producers.records import request_from, submission
from redis.exceptions import RedisError

from .fault_cluster import Cluster, WorkerProcess
from .fault_load import Load, Sent, insist

SIGNALS_APART_SECONDS = 0.3


@dataclass
class Scene:
    """Where faults happen."""

    cluster: Cluster
    load: Load
    ledger: Ledger
    hints: HintSender
    source: random.Random

    def victim(self, *, leaving: int = 0, with_engine: bool = False) -> WorkerProcess | None:
        """A worker that serves, or None where there is none, or too few others would be left to feel the next fault."""
        usable = [worker for worker in self.cluster.usable() if not with_engine or worker.engine_pid]
        return self.source.choice(usable) if len(usable) > leaving else None


Fault = Callable[[Scene], bool]


def kill_worker(scene: Scene) -> bool:
    """SIGKILL a worker; its engine goes with it."""
    return _signal(scene, signal.SIGKILL)


def kill_engine(scene: Scene) -> bool:
    """SIGKILL the process of an engine; its worker stays."""
    worker = scene.victim(with_engine=True)
    return worker is not None and signal_engine(worker, signal.SIGKILL)


def freeze_worker(scene: Scene) -> bool:
    """SIGSTOP a worker until its lease is over and others have its jobs, then SIGCONT."""
    worker = scene.victim()
    if worker is None:
        return False
    worker.signal(signal.SIGSTOP)
    seconds = scene.cluster.settings.lease_s + scene.source.uniform(0.5, 2.0)
    scene.cluster.later(seconds, lambda: worker.signal(signal.SIGCONT))
    return True


def freeze_engine(scene: Scene) -> bool:
    """SIGSTOP the process of an engine for a moment: the worker goes on and keeps its leases."""
    worker = scene.victim(with_engine=True)
    if worker is None or not signal_engine(worker, signal.SIGSTOP):
        return False
    scene.cluster.later(scene.source.uniform(0.3, 2.0), lambda: signal_engine(worker, signal.SIGCONT))
    return True


def drain_worker(scene: Scene) -> bool:
    """SIGTERM a worker: it lets jobs finish for the grace time, and hands back the rest."""
    return _signal(scene, signal.SIGTERM)


def drain_worker_twice(scene: Scene) -> bool:
    """SIGTERM a worker, and again: it hands back all jobs at once."""
    worker = scene.victim(leaving=1)
    if worker is None:
        return False
    worker.signal(signal.SIGTERM)
    scene.cluster.later(SIGNALS_APART_SECONDS, lambda: worker.signal(signal.SIGTERM))
    return True


def restart_server(scene: Scene) -> bool:
    """Stop the server under everybody, and start it again over its append-only file."""
    scene.cluster.server.stop()
    scene.cluster.server.start()
    return True


def drop_hint(scene: Scene) -> bool:
    """Submit a job whose hint never comes, and delete those of others that nobody has taken yet."""
    submit_without_hint(scene.ledger, scene.load.next_job())
    insist_on_redis(lambda: scene.cluster.redis.delete(celery_queue()))
    return True


def double_hint(scene: Scene) -> bool:
    """Submit a job, and hint at it several times more."""
    scene.load.submit(scene.load.next_job())
    for _ in range(4):
        insist(lambda: scene.hints.send("default"))
    return True


def rival_claims(scene: Scene) -> bool:
    """Wake all workers at one time for one job."""
    rivals = len(scene.cluster.usable())
    if rivals < 2:
        return False
    submit_without_hint(scene.ledger, scene.load.next_job())
    for _ in range(rivals):
        insist(lambda: scene.hints.send("default"))
    return True


def cut_connections(scene: Scene) -> bool:
    """Cut all connections to the server, in the middle of whatever they do; replies on their way are lost."""
    return bool(insist_on_redis(lambda: scene.cluster.redis.client_kill_filter(_type="normal", skipme=True)))


def cut_blocking_connections(scene: Scene) -> bool:
    """Cut only those connections on which workers wait for messages: Celery's blocking pops, and subscriptions."""
    return cut_waiting_connections(scene.cluster.redis) > 0


def cancel_job(scene: Scene) -> bool:
    """Cancel a job once it has begun to answer, or had time to."""
    sent = scene.load.next_job(long=True, ends=(JobState.CANCELLED, JobState.SUCCEEDED))
    scene.load.submit(sent)
    seconds = scene.source.uniform(0.1, 2.0)
    scene.cluster.later(seconds, lambda: insist(lambda: scene.load.client.cancel(sent.job_id)))
    return True


def expire_job(scene: Scene) -> bool:
    """Submit a job whose time is over before it can end, more often than not."""
    sent = scene.load.next_job(long=True, ends=(JobState.EXPIRED, JobState.SUCCEEDED))
    scene.load.submit(sent, ttl=round(scene.source.uniform(1.0, 2.0), 3))
    return True


KINDS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        *(kill_worker, kill_engine, freeze_worker, freeze_engine, drain_worker, drain_worker_twice),
        *(restart_server, cut_connections, cut_blocking_connections),
        *(drop_hint, double_hint, rival_claims, cancel_job, expire_job),
    )
}
"""Every kind of fault, by its name."""


def _signal(scene: Scene, number: signal.Signals) -> bool:
    worker = scene.victim(leaving=1)
    if worker is None:
        return False
    worker.signal(number)
    return True


def signal_engine(worker: WorkerProcess, number: signal.Signals) -> bool:
    """Send a signal to the process of a worker's engine; returns whether there was one."""
    pid = worker.engine_pid
    if pid is None:
        return False
    os.kill(pid, number)
    return True


def cut_waiting_connections(redis: Any) -> int:
    """Cut the connections that wait for messages; returns how many there were."""
    waiting = [
        client["id"]
        for client in insist_on_redis(redis.client_list)
        if client["cmd"] in ("brpop", "blpop") or int(client["sub"]) or int(client["psub"])
    ]
    for number in waiting:
        insist_on_redis(partial(redis.client_kill_filter, _id=number))
    return len(waiting)


def submit_without_hint(ledger: Ledger, sent: Sent) -> None:
    """Queue a job, and let nobody know."""
    record = submission(request_from(sent.body, {}), job_id=sent.job_id)
    insist_on_redis(lambda: ledger.submit([record]))


def insist_on_redis(call: Callable[[], Any], tries: int = 20) -> Any:
    """Call again where the connection was cut by an earlier fault."""
    for _ in range(tries):
        try:
            return call()
        except RedisError as error:
            last = error
    raise last
