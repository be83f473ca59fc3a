"""A worker in this process, and workers in processes of their own that can be frozen and killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.engine import Engine, EngineConfig
from headrace.producers.keys import Keys
from headrace.worker.local_engine import LocalEngine
from headrace.worker.service import WorkerService
from headrace.worker.settings import WorkerSettings
from redis import Redis

from ..support import environment, wait_until

POLL_S = 0.02


def tiny_config(model: Path, **changes: Any) -> EngineConfig:
    """Settings for the tiny model."""
    settings: dict[str, Any] = {"dtype": "float32", "device": "cpu", "kv_cache_memory": 32 << 20}
    return EngineConfig(model=str(model), **(settings | changes))


def slow_down(engine: Engine, seconds: float) -> None:
    """Have each step take longer: the tiny model would be done before a test can do anything."""
    step: Callable[[], Any] = engine.step

    def slow_step() -> Any:
        time.sleep(seconds)
        return step()

    engine.step = slow_step  # type: ignore[method-assign]


def engine_of(worker: WorkerService) -> Engine:
    """The engine of a worker of this process."""
    host = worker._host
    assert isinstance(host, LocalEngine)
    return host._engine


@contextmanager
def service(
    url: str, model: Path, *, step_seconds: float = 0.0, poll_s: float = POLL_S, **config: Any
) -> Iterator[WorkerService]:
    """A worker without Celery, in this process."""
    engine = Engine.load(tiny_config(model, **config))
    slow_down(engine, step_seconds)
    with serving(url, engine, poll_s=poll_s) as running:
        yield running


@contextmanager
def serving(url: str, engine: Engine, *, poll_s: float = POLL_S) -> Iterator[WorkerService]:
    """A worker without Celery over an engine that is there."""
    worker_settings = WorkerSettings(redis_url=url, poll_s=poll_s, flush_s=0.005)
    running = WorkerService(worker_settings, LocalEngine(lambda: engine))
    running.start()
    try:
        yield running
    finally:
        running.drain(0)
        running.stop()


PROGRAM = """
import json, logging, sys, time
from headrace.engine import Engine, EngineConfig
from headrace.worker.app import HeadraceApp
from headrace.worker.local_engine import LocalEngine
from headrace.worker.service import WorkerService
from headrace.worker.settings import WorkerSettings

options = json.loads(sys.argv[1])
logging.basicConfig(level=logging.INFO)
config = EngineConfig(**options["engine"])
engine = Engine.load(config)
forward = engine._model.forward

def slow_forward(batch, kv_cache):
    time.sleep(options["step_seconds"])
    if any(request.prompt_token_ids == options["poison"] for request in batch.sampled):
        raise RuntimeError("this prompt is poison")
    return forward(batch, kv_cache)

engine._model.forward = slow_forward
service = WorkerService(WorkerSettings(**options["settings"]), LocalEngine(lambda: engine))
app = HeadraceApp(service)
app.conf.broker_transport_options |= {
    "visibility_timeout": options["visibility_s"],
    # Look for messages that seem lost every second, not every hundred.
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}
sys.exit(app.run())
"""
POISON = [7, 7, 7]
"""A prompt on which the workers of :func:`worker_process` crash."""


@dataclass
class WorkerProcess:
    """A whole worker, Celery and all."""

    worker_id: str
    process: subprocess.Popen[bytes]
    log: Path
    redis: Redis

    def info(self) -> dict[str, str]:
        """What it says about itself; empty where it says nothing."""
        return dict(self.redis.hgetall(Keys().worker(self.worker_id)))  # type: ignore[arg-type]

    def count(self, counter: str) -> int:
        """One of its counters."""
        return int(self.info().get(counter, 0))

    def wait_until_ready(self) -> None:
        """Wait for its first heartbeat."""

        def heard() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return bool(self.info())

        wait_until(heard, f"{self.worker_id} is ready")


@contextmanager
def worker_process(
    worker_id: str,
    url: str,
    redis: Redis,
    model: Path,
    directory: Path,
    *,
    step_seconds: float = 0.0,
    visibility_s: int = 60,
    engine: dict[str, Any] | None = None,
    **settings: Any,
) -> Iterator[WorkerProcess]:
    """Start a worker; it is killed at the end, if it lives."""
    options = {
        "engine": {"model": str(model), "dtype": "float32", "kv_cache_memory": 32 << 20, **(engine or {})},
        "settings": {"redis_url": url, "worker_id": worker_id, "poll_s": 0.1, **settings},
        "step_seconds": step_seconds,
        "visibility_s": visibility_s,
        "poison": POISON,
    }
    log = directory / f"{worker_id}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(options)],
            cwd=directory,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield WorkerProcess(worker_id, process, log, redis)
    finally:
        process.kill()
        process.wait()
