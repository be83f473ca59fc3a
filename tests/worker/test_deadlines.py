"""Deadlines while a worker runs: it stops computing, and its neighbours notice nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.producers import Client, Delta, Finished, JobState
from headrace.worker.embedded import EmbeddedServer

from ..support import wait_until
from .services import engine_of, service
from .test_cancel import ended_as, idle

LONG: dict[str, Any] = {"prompt": "long", "max_tokens": 3000, "ignore_eos": True, "seed": 1}


def test_an_expired_job_is_computed_no_further(server: EmbeddedServer, client: Client, tiny_model: Path) -> None:
    with service(server.url, tiny_model, step_seconds=0.005) as worker:
        job_id = client.submit(LONG, ttl=1.0)
        beside = client.submit({**LONG, "max_tokens": 400})
        events = list(client.stream(job_id, timeout=60))
        ended_as(client, job_id, JobState.EXPIRED)
        published = sum(len(event.token_ids) for event in events if isinstance(event, Delta))
        assert 0 < published < 3000
        assert isinstance(events[-1], Finished)
        assert events[-1].result.completion_tokens == published
        assert client.result(beside, timeout=60).state is JobState.SUCCEEDED
        wait_until(lambda: idle(worker), "nothing is left")
        assert engine_of(worker).stats.finished["abort"] == 1
    again = client.submit(LONG, ttl=0.001)
    assert client.result(again, timeout=20).state is JobState.EXPIRED


def test_a_job_that_expires_while_it_waits_is_never_begun(
    server: EmbeddedServer, client: Client, tiny_model: Path
) -> None:
    with service(server.url, tiny_model, max_num_seqs=1, step_seconds=0.005) as worker:
        first = client.submit(LONG)
        next(event for event in client.stream(first) if isinstance(event, Delta))
        waiting = client.submit(LONG, ttl=0.5)
        wait_until(lambda: client.status(waiting).state is JobState.RUNNING, "the worker owns it")
        assert client.result(waiting, timeout=20).state is JobState.EXPIRED
        wait_until(lambda: len(worker.inflight) == 1, "the worker has let go of it")
        assert not [event for event in client.stream(waiting) if isinstance(event, Delta)]
        client.cancel(first)
        wait_until(lambda: idle(worker), "nothing is left")


def test_a_job_that_ends_in_time_has_its_answer(server: EmbeddedServer, client: Client, tiny_model: Path) -> None:
    with service(server.url, tiny_model):
        results = [
            client.result(job_id, timeout=60) for job_id in client.submit_many([{**LONG, "max_tokens": 5}] * 20, ttl=60)
        ]
        assert {result.state for result in results} == {JobState.SUCCEEDED}
