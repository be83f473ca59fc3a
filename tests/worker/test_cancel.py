"""Cancelling at every stage: what is held for the job is freed, and the end says cancelled."""

from __future__ import annotations

import random
from pathlib import Path

from headrace.producers import Client, Delta, Finished, JobState
from headrace.worker.embedded import EmbeddedServer
from headrace.worker.service import WorkerService

from ..support import wait_until
from .services import engine_of, service

LONG = {"prompt": "long", "max_tokens": 3000, "ignore_eos": True}


def idle(worker: WorkerService) -> bool:
    """Nothing is held for anybody, in the worker or in its engine."""
    engine = engine_of(worker)
    return not len(worker.inflight) and not engine.has_work and engine.pool.num_free == engine.pool.num_blocks


def ended_as(client: Client, job_id: str, state: JobState) -> None:
    """The job's last event and its record say the same, once."""
    *_, last = client.stream(job_id)
    assert isinstance(last, Finished)
    assert last.result.state is client.status(job_id).state is state
    assert client.result(job_id) == last.result
    assert (last.result.finish_reason is None) == (state is not JobState.SUCCEEDED)


def test_c5_cancelled_with_no_worker_up(server: EmbeddedServer, client: Client, tiny_model: Path) -> None:
    early = client.submit(LONG)
    assert client.cancel(early) is JobState.CANCELLED
    with service(server.url, tiny_model) as worker:
        later = client.submit({**LONG, "max_tokens": 2})
        assert client.result(later, timeout=60).state is JobState.SUCCEEDED
        assert worker.describe()["prompt_tokens"] == len("long")
    ended_as(client, early, JobState.CANCELLED)
    assert client.status(early).attempt == 0


def test_b7_cancelled_while_waiting_in_the_worker(server: EmbeddedServer, client: Client, tiny_model: Path) -> None:
    with service(server.url, tiny_model, max_num_seqs=1, step_seconds=0.005) as worker:
        running, waiting = client.submit_many([LONG, LONG])
        next(event for event in client.stream(running) if isinstance(event, Delta))
        wait_until(lambda: client.status(waiting).state is JobState.RUNNING, "the worker owns the second one too")
        assert client.cancel(waiting) is JobState.CANCELLED
        wait_until(lambda: len(worker.inflight) == 1, "the worker has noticed, though the job had nothing to write")
        assert worker.describe()["leases_lost"] == 1
        client.cancel(running)
        wait_until(lambda: idle(worker), "nothing is left")
    ended_as(client, waiting, JobState.CANCELLED)


def test_b7_cancelled_while_decoding(server: EmbeddedServer, client: Client, tiny_model: Path) -> None:
    with service(server.url, tiny_model, step_seconds=0.002) as worker:
        job_id = client.submit(LONG)
        next(event for event in client.stream(job_id) if isinstance(event, Delta))
        assert client.cancel(job_id) is client.cancel(job_id) is JobState.CANCELLED
        wait_until(lambda: idle(worker), "the engine dropped the request")
        described = worker.describe()
        assert int(described["fenced_writes"]) + int(described["leases_lost"]) >= 1
        assert int(described["generation_tokens"]) < 3000
        again = client.submit({**LONG, "max_tokens": 5})
        assert client.result(again, timeout=60).completion_tokens == 5
    ended_as(client, job_id, JobState.CANCELLED)
    assert client.result(job_id).completion_tokens > 0, "what was published counts"


def test_b7_cancelled_while_a_long_prompt_is_read(server: EmbeddedServer, client: Client, tiny_model: Path) -> None:
    config = {"max_num_seqs": 4, "max_num_batched_tokens": 8}
    with service(server.url, tiny_model, step_seconds=0.01, **config) as worker:
        job_id = client.submit({**LONG, "prompt": "x" * 4000})
        wait_until(lambda: engine_of(worker).stats.steps > 3, "some chunks are computed")
        client.cancel(job_id)
        wait_until(lambda: idle(worker), "the engine dropped the request")
        assert worker.describe()["generation_tokens"] == 0
    ended_as(client, job_id, JobState.CANCELLED)


def test_b7_cancelled_after_the_end_keeps_the_answer(server: EmbeddedServer, client: Client, tiny_model: Path) -> None:
    with service(server.url, tiny_model) as worker:
        job_id = client.submit({**LONG, "max_tokens": 4})
        before = client.result(job_id, timeout=60)
        assert client.cancel(job_id) is client.cancel(job_id) is JobState.SUCCEEDED
        assert client.result(job_id) == before
        assert worker.describe()["fenced_writes"] == 0
    ended_as(client, job_id, JobState.SUCCEEDED)


def test_b7_many_cancelled_at_random_moments(server: EmbeddedServer, client: Client, tiny_model: Path) -> None:
    chance = random.Random(4)
    with service(server.url, tiny_model, max_num_seqs=16, step_seconds=0.001) as worker:
        ids = client.submit_many(
            {"prompt": "p" * chance.randint(1, 300), "max_tokens": chance.randint(1, 200), "ignore_eos": True}
            for _ in range(150)
        )
        doomed = chance.sample(ids, 100)
        answers = {job_id: client.cancel(job_id) for job_id in doomed}
        results = {job_id: client.result(job_id, timeout=60) for job_id in ids}
        wait_until(lambda: idle(worker), "nothing is left")
        fresh = client.submit({**LONG, "max_tokens": 5})
        assert client.result(fresh, timeout=60).state is JobState.SUCCEEDED
    assert answers == {job_id: results[job_id].state for job_id in doomed}, "what cancel said stood"
    states = [results[job_id].state for job_id in ids]
    assert states.count(JobState.CANCELLED) > 20
    assert states.count(JobState.SUCCEEDED) >= 50
    for job_id in ids:
        ended_as(client, job_id, results[job_id].state)
