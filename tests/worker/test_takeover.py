"""Frozen and killed workers: another one takes their jobs, and they write nothing any more."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from headrace.producers import Client, Delta, Event, Finished, JobState, Reset, Started
from headrace.producers.keys import Keys
from headrace.worker.embedded import EmbeddedServer
from redis import Redis

from ..support import wait_until
from .services import POISON, WorkerProcess, worker_process

LEASE_MS = 2000
BODY: dict[str, Any] = {"prompt": "long", "max_tokens": 250, "ignore_eos": True, "seed": 8}


@pytest.fixture(scope="module")
def workers(
    server: EmbeddedServer, redis: Redis, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, WorkerProcess]]:
    """Two workers with a short lease."""
    directory = tmp_path_factory.mktemp("workers")
    with ExitStack() as stack:
        started = {}
        for worker_id in ("a", "b"):
            process = worker_process(
                worker_id, server.url, redis, tiny_model, directory, step_seconds=0.01, lease_ms=LEASE_MS
            )
            started[worker_id] = stack.enter_context(process)
        for worker in started.values():
            worker.wait_until_ready()
        yield started


@pytest.fixture(scope="module")
def undisturbed(server: EmbeddedServer, workers: dict[str, WorkerProcess]) -> str:
    """The text that the job has where nothing happens."""
    with Client(server.url) as client:
        result = client.result(client.submit(BODY), timeout=60)
    assert (result.attempt, result.completion_tokens) == (1, 250)
    return result.text


def owner_of(client: Client, job_id: str, workers: dict[str, WorkerProcess]) -> WorkerProcess:
    """Who runs a job, once its first text is there."""
    next(event for event in client.stream(job_id, timeout=60) if isinstance(event, Delta))
    worker = client.status(job_id).worker
    assert worker is not None
    return workers[worker]


def final_text(events: list[Event]) -> str:
    """The text of all attempts, each of which goes on where the one before it stopped; one ending comes last."""
    text, seq, attempt = "", 0, 0
    for event in events:
        assert not isinstance(event, Reset), "nothing hinders the next attempt from going on"
        if isinstance(event, Started):
            assert (event.attempt, event.seq) == (attempt + 1, seq)
            attempt = event.attempt
        elif isinstance(event, Delta):
            assert (event.attempt, event.seq) == (attempt, seq + 1), "chunks of two attempts are mixed"
            seq = event.seq
            text += event.text
    assert sum(isinstance(event, Finished) for event in events) == 1
    assert isinstance(events[-1], Finished)
    assert events[-1].result.text == text
    return text


def test_c2_a_frozen_worker_loses_its_job_and_its_writes_are_refused(
    client: Client, workers: dict[str, WorkerProcess], undisturbed: str
) -> None:
    job_id = client.submit(BODY)
    frozen = owner_of(client, job_id, workers)
    events = client.stream(job_id, timeout=120)
    seen = [next(events), next(events)]
    frozen.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: client.status(job_id).attempt == 2, "another worker has taken the job")
        other = owner_of(client, job_id, workers)
        assert other is not frozen
    finally:
        frozen.process.send_signal(signal.SIGCONT)
    # The second attempt is half done when the first owner is back.
    assert client.status(job_id).state is JobState.RUNNING
    wait_until(lambda: frozen.count("fenced_writes") + frozen.count("leases_lost") > 0, "the first owner was refused")
    seen += events
    assert final_text(seen) == undisturbed
    assert {event.attempt for event in seen if isinstance(event, Delta)} == {1, 2}
    result = client.result(job_id)
    assert (result.attempt, result.completion_tokens) == (2, 250)
    assert other.count("fenced_writes") == 0
    again = client.submit_many([{**BODY, "max_tokens": 5}] * 20)
    assert {client.result(each, timeout=60).state for each in again} == {JobState.SUCCEEDED}
    wait_until(lambda: frozen.count("running") == 0, "the first owner is of use again")


def test_a_killed_workers_job_is_taken_over(
    client: Client, redis: Redis, workers: dict[str, WorkerProcess], undisturbed: str
) -> None:
    job_id = client.submit(BODY)
    killed = owner_of(client, job_id, workers)
    killed.process.kill()
    killed.process.wait()
    events = list(client.stream(job_id, timeout=120))
    assert final_text(events) == undisturbed
    assert {event.attempt for event in events if isinstance(event, Delta)} == {1, 2}
    assert client.status(job_id).worker != killed.worker_id
    assert redis.hget(Keys().job(job_id), "deliveries") == "2"
    wait_until(lambda: killed.worker_id not in {info.worker_id for info in client.workers()}, "it is not listed")


def test_c3_a_crash_counts_and_its_jobs_are_free_at_once(
    client: Client, redis: Redis, workers: dict[str, WorkerProcess]
) -> None:
    [last] = [worker for worker in workers.values() if worker.process.poll() is None]
    beside = client.submit(BODY)
    owner_of(client, beside, workers)
    poison = client.submit({"prompt": POISON, "max_tokens": 5})
    wait_until(lambda: last.process.poll() is not None, "the worker has ended", seconds=20)
    assert last.process.returncode == 1, "a crash is no clean end"
    assert "the engine crashed: RuntimeError" in last.log.read_text()
    assert redis.zcard(Keys().running) == 0, "nobody waits for the leases"
    assert redis.hget(Keys().job(poison), "deliveries") == "1"
    client.cancel(poison)
    client.cancel(beside)
