"""What the tests here share: a long job, who runs it, and waiting while the cluster is looked after."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.producers import Client, Delta, Event, Started

from bench.fault_cluster import Cluster, WorkerProcess

from ..support import wait_until
from ..worker.test_takeover import final_text

MAX_DELIVERIES = 4
LONG: dict[str, Any] = {"prompt": "long", "max_tokens": 3000, "ignore_eos": True, "seed": 8}
"""Takes longer than what is done to it, however fast the machine is."""
SHORT: dict[str, Any] = {**LONG, "prompt": "short", "max_tokens": 20}

Found = TypeVar("Found")


@dataclass(frozen=True)
class Scene:
    """A cluster whose workers are up, and a client."""

    cluster: Cluster
    client: Client
    text: str
    """Of :data:`LONG`, where nothing happens."""

    @classmethod
    def undisturbed(cls, cluster: Cluster, client: Client) -> Scene:
        """Run the long job once in peace."""
        result = client.result(client.submit(LONG), timeout=100)
        assert (result.attempt, result.completion_tokens) == (1, LONG["max_tokens"])
        return cls(cluster, client, result.text)

    def wait_for(self, check: Callable[[], Found], what: str, seconds: float = 60) -> Found:
        """The first true value of a check; heartbeats are read and dead workers replaced meanwhile."""

        def tended() -> Found:
            self.cluster.tend()
            return check()

        return wait_until(tended, what, seconds)

    def wait_until_idle(self) -> None:
        """All workers are up and own no job."""

        def idle() -> bool:
            workers = self.cluster.usable()
            return len(workers) == len(self.cluster.workers) and all(
                worker.engine_pid and worker.heartbeat["state"] == "ready" and not worker.count("running")
                for worker in workers
            )

        self.wait_for(idle, "all workers are up and idle", seconds=100)

    def owner_of(self, job_id: str, attempt: int = 1) -> WorkerProcess:
        """Who runs an attempt of a job, once its first text is there."""
        events = self.client.stream(job_id, timeout=60)
        next(event for event in events if isinstance(event, Delta) and event.attempt == attempt)
        worker = self.client.status(job_id).worker
        assert worker is not None
        return self.cluster.worker(worker)

    def submit_to_one(self, *bodies: dict[str, Any], worker: WorkerProcess | None = None) -> list[str]:
        """Submit jobs while all workers but one are frozen; returns when all have text. The others stay frozen."""
        chosen = worker or self.cluster.workers[0]
        for other in self.others(chosen):
            freeze(other)
        ids = self.client.submit_many(bodies)
        assert {self.owner_of(job_id).worker_id for job_id in ids} == {chosen.worker_id}
        return ids

    def others(self, worker: WorkerProcess) -> list[WorkerProcess]:
        """All workers but one."""
        return [other for other in self.cluster.workers if other is not worker]

    def check_resumed(self, job_id: str, attempts: int = 2) -> list[Event]:
        """Read a job to its end: its text is the undisturbed one, and each attempt went on where the last stopped."""
        events = list(self.client.stream(job_id, timeout=100))
        assert final_text(events) == self.text
        begun = [event for event in events if isinstance(event, Started)]
        assert [event.attempt for event in begun] == list(range(1, attempts + 1))
        assert all(event.seq > 0 for event in begun[1:]), "an attempt began at the beginning"
        return events

    def refusals(self, worker: WorkerProcess) -> int:
        """How often a worker was told until now that a job is not its own any more, say one that a test cancelled."""
        heartbeat = self.client.keys.worker(worker.worker_id)
        self.cluster.redis.delete(heartbeat)
        self.wait_for(lambda: self.cluster.redis.exists(heartbeat), "the worker says how things are")
        self.cluster.tend()
        return worker.count("fenced_writes") + worker.count("leases_lost")

    def deliveries(self, job_id: str) -> int:
        """How often a job was delivered, as the ledger counts."""
        return int(self.cluster.redis.hget(self.client.keys.job(job_id), "deliveries"))


def freeze(worker: WorkerProcess) -> None:
    """SIGSTOP."""
    worker.signal(signal.SIGSTOP)


def thaw(*workers: WorkerProcess) -> None:
    """SIGCONT those that are frozen."""
    for worker in workers:
        if worker.frozen:
            with suppress(ProcessLookupError):
                worker.signal(signal.SIGCONT)


def milliseconds(event: Event) -> int:
    """When an event was written, by the server's clock, in ms since 1970."""
    return int(event.position.split("-")[0])
