"""A server and several real workers on this machine, which may be killed, frozen and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.producers.connection import connect
from headrace.producers.keys import Keys
from headrace.worker.embedded import EmbeddedServer
from redis.exceptions import RedisError

READY_SECONDS = 120.0
COUNTERS = (
    *("engine_crashes", "fenced_writes", "leases_lost", "lease_renewals", "events_published"),
    *("tokens_wasted_lost", "tokens_wasted_reset"),
)
"""Counters in the heartbeat of a worker."""


@dataclass(frozen=True)
class ClusterSettings:
    """How the workers are started."""

    workers: int = 2
    lease_s: float = 2.0
    drain_grace_s: float = 2.0
    max_deliveries: int = 1000
    max_num_seqs: int = 16


@dataclass(eq=False)
class WorkerProcess:
    """One worker: ``headrace worker`` and, below it, its engine's process."""

    process: subprocess.Popen[bytes]
    log: Path
    worker_id: str = ""
    """Empty until its first heartbeat."""
    heartbeat: dict[str, str] = field(default_factory=dict)
    """What it said last of itself."""
    frozen: bool = False
    told_to_end: bool = False
    """Whether its end is our doing."""

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    @property
    def usable(self) -> bool:
        """Whether it serves, as far as is known: it has been heard, and nobody has stopped it."""
        return self.alive and bool(self.worker_id) and not self.frozen and not self.told_to_end

    @property
    def engine_pid(self) -> int | None:
        """The process of its engine; None while it has none."""
        pid = int(self.heartbeat.get("engine_pid", 0))
        return pid if pid and _parent_of(pid) == self.process.pid else None

    def count(self, counter: str) -> int:
        """One of its counters, as it last said."""
        return int(self.heartbeat.get(counter, 0))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the worker; not to its engine."""
        self.told_to_end = self.told_to_end or number in (signal.SIGTERM, signal.SIGKILL)
        self.process.send_signal(number)
        if number in (signal.SIGSTOP, signal.SIGCONT):
            self.frozen = number == signal.SIGSTOP


class Cluster:
    """A server, workers, and what is to happen to them later.

    All methods are called by one thread, that which makes the cluster: the server ends with it.

    Args:
        directory: for the server's data and the logs.
        model: a directory.
        settings: of the workers.

    Attributes:
        workers: those that should be there; :meth:`tend` replaces dead ones.
        unexpected_exits: workers that ended without having been told to.
    """

    def __init__(self, directory: Path, model: Path, settings: ClusterSettings) -> None:
        self.server = EmbeddedServer(directory / "server")
        self.settings = settings
        self.workers: list[WorkerProcess] = []
        self.unexpected_exits = 0
        self._directory = directory
        self._model = model
        self._num_started = 0
        self._counts: dict[str, dict[str, int]] = defaultdict(dict)
        self._later: list[tuple[float, Callable[[], object]]] = []
        self._redis: Any = None

    @property
    def redis(self) -> Any:
        """A connection to the server."""
        return self._redis

    def __enter__(self) -> Cluster:
        self.server.start()
        self._redis = connect(self.server.url)
        self.workers = [self._started(self.settings) for _ in range(self.settings.workers)]
        return self

    def __exit__(self, *_: Any) -> None:
        for worker in self.workers:
            if worker.alive:
                worker.signal(signal.SIGKILL)
            worker.process.wait()
        self._redis.close()
        self.server.stop()

    def _started(self, settings: ClusterSettings) -> WorkerProcess:
        self._num_started += 1
        log = self._directory / f"worker-{self._num_started}.log"
        flags = {
            "redis": self.server.url,
            "model": self._model,
            "dtype": "float32",  # an answer then does not depend on what else is computed
            "device": "cpu",
            "kv-cache-memory": "64MiB",
            "swap-memory": "64MiB",
            "max-num-seqs": settings.max_num_seqs,
            "lease": settings.lease_s,
            "drain-grace": settings.drain_grace_s,
            "max-deliveries": settings.max_deliveries,
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        quiet = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace.worker", *(f"--{name}={value}" for name, value in flags.items())],
                env={**kept, **quiet},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        return WorkerProcess(process, log)

    def renew(self, worker: WorkerProcess, **changes: Any) -> WorkerProcess:
        """Kill a worker and start another in its place, with settings of its own."""
        worker.signal(signal.SIGKILL)
        worker.process.wait()
        started = self._started(replace(self.settings, **changes))
        self.workers[self.workers.index(worker)] = started
        return started

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Have :meth:`tend` do something once so many seconds are over."""
        self._later.append((time.monotonic() + seconds, action))

    def tend(self) -> None:
        """Do what is due, start workers in place of dead ones, and read the heartbeats. Call it often."""
        due = [action for at, action in self._later if at <= time.monotonic()]
        self._later = [(at, action) for at, action in self._later if at > time.monotonic()]
        for action in due:
            action()
        for place, worker in enumerate(self.workers):
            if not worker.alive:
                if not worker.told_to_end:
                    self.unexpected_exits += 1
                    sys.stderr.write(f"a worker ended by itself: {worker.log.read_text()[-500:]}\n")
                self.workers[place] = self._started(self.settings)
        self._read_heartbeats()

    def settle(self) -> None:
        """Do at once what was to come later."""
        self._later = [(0.0, action) for _, action in self._later]
        self.tend()

    def _read_heartbeats(self) -> None:
        keys = Keys()
        try:
            ids = self._redis.zrange(keys.workers, 0, -1)
            by_pid = {int(worker_id.rsplit("-", 2)[1]): worker_id for worker_id in ids}
            for worker in self.workers:
                worker_id = by_pid.get(worker.process.pid)
                heartbeat = self._redis.hgetall(keys.worker(worker_id)) if worker_id else None
                if worker_id and heartbeat:
                    worker.worker_id, worker.heartbeat = worker_id, heartbeat
                    self._counts[worker_id] = {name: worker.count(name) for name in COUNTERS}
        except RedisError:
            return  # a connection that was cut, or the server is away

    def total(self, counter: str) -> int:
        """A counter over all workers there have been; of those that ended, as they last said."""
        return sum(counts[counter] for counts in self._counts.values())

    def usable(self) -> list[WorkerProcess]:
        """Workers that serve."""
        return [worker for worker in self.workers if worker.usable]

    def worker(self, worker_id: str) -> WorkerProcess:
        """The worker of an id."""
        [found] = [worker for worker in self.workers if worker.worker_id == worker_id]
        return found

    def wait_until_ready(self, count: int | None = None) -> list[WorkerProcess]:
        """Wait until so many workers serve, all by default; returns them.

        Raises:
            RuntimeError: where they do not come up in time.
        """
        count = len(self.workers) if count is None else count
        deadline = time.monotonic() + READY_SECONDS
        while len(self.usable()) < count:
            if time.monotonic() > deadline:
                tails = "\n".join(worker.log.read_text()[-2000:] for worker in self.workers)
                raise RuntimeError(f"only {len(self.usable())} of {count} workers are up:\n{tails}")
            time.sleep(0.05)
            self.tend()
        return self.usable()


def _parent_of(pid: int) -> int | None:
    """The parent of a process that runs; None where there is none such."""
    try:
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else int(parent)
