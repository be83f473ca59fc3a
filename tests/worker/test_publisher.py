"""The server goes away, comes back, or is full while jobs run: nothing is lost and nothing is written twice."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from headrace.producers import Client, Delta, Event, Finished, JobState, Started
from headrace.producers.connection import connect
from headrace.worker.embedded import EmbeddedServer
from redis import Redis

from ..support import wait_until
from .services import engine_of, service

BODY: dict[str, Any] = {"prompt": "long", "max_tokens": 300, "ignore_eos": True, "seed": 11}


def whole(events: list[Event]) -> str:
    """The text of a log of one attempt; each delta stands once, in order."""
    deltas = [event for event in events if isinstance(event, Delta)]
    assert [type(event) for event in events] == [Started, *[Delta] * len(deltas), Finished]
    assert [delta.seq for delta in deltas] == list(range(1, len(deltas) + 1))
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.result.state is JobState.SUCCEEDED
    assert sum(len(delta.token_ids) for delta in deltas) == last.result.completion_tokens == BODY["max_tokens"]
    text = "".join(delta.text for delta in deltas)
    assert text == last.result.text
    return text


def begun(client: Client, job_ids: list[str]) -> None:
    """Each job has its first text."""
    for job_id in job_ids:
        next(event for event in client.stream(job_id, timeout=60) if isinstance(event, Delta))


@pytest.mark.parametrize("when", ["mid-stream", "with the end under way"])
def test_c6_the_server_restarts_while_jobs_run(tmp_path: Path, tiny_model: Path, when: str) -> None:
    directory = tmp_path / "server"
    server = EmbeddedServer(directory)
    server.start()
    try:
        with service(server.url, tiny_model, step_seconds=0.003) as worker, Client(server.url) as client:
            ids = client.submit_many([{**BODY, "seed": seed} for seed in range(4)])
            begun(client, ids)
            if when == "with the end under way":
                wait_until(lambda: engine_of(worker).stats.generation_tokens > 4 * 250, "the end is near")
            server.stop()
            before = engine_of(worker).stats.generation_tokens
            wait_until(lambda: engine_of(worker).stats.generation_tokens > before + 100, "the engine goes on meanwhile")
            server.start()
            texts = [whole(list(client.stream(job_id, timeout=60))) for job_id in ids]
            again = client.submit_many([{**BODY, "seed": seed} for seed in range(4)])
            undisturbed = [whole(list(client.stream(job_id, timeout=60))) for job_id in again]
            assert worker.describe()["fenced_writes"] == 0
        assert texts == undisturbed
    finally:
        server.stop()


def test_writes_whose_reply_is_lost_are_not_doubled(
    server: EmbeddedServer, client: Client, redis: Redis, tiny_model: Path
) -> None:
    cut = 0
    with service(server.url, tiny_model, step_seconds=0.002) as worker:
        ids = client.submit_many([{**BODY, "seed": seed} for seed in range(8)])
        begun(client, ids)
        while worker.inflight.claims():
            # Connections are cut again and again, in the middle of whatever they do.
            cut += int(redis.client_kill_filter(_type="normal", skipme=True))
            time.sleep(0.02)
        for job_id in ids:
            whole(list(client.stream(job_id, timeout=60)))
        assert worker.describe()["fenced_writes"] == worker.describe()["leases_lost"] == 0
    assert cut > 20


def test_a_full_server_delays_and_loses_nothing(
    server: EmbeddedServer, client: Client, redis: Redis, tiny_model: Path
) -> None:
    threads = {thread.name for thread in threading.enumerate()}
    with service(server.url, tiny_model, step_seconds=0.002) as worker:
        job_id = client.submit(BODY)
        begun(client, [job_id])
        redis.config_set("maxmemory", "1")
        refused = _refusals(redis)
        try:
            wait_until(lambda: _refusals(redis) > refused + 2, "writes are refused")
            wait_until(lambda: not engine_of(worker).has_work, "the engine is done")
        finally:
            redis.config_set("maxmemory", "0")
        whole(list(client.stream(job_id, timeout=60)))
        again = client.submit({**BODY, "max_tokens": 3})
        assert client.result(again, timeout=60).state is JobState.SUCCEEDED
        alive = {thread.name for thread in threading.enumerate()} - threads
        assert {f"headrace-{name}" for name in ("engine", "intake", "lease", "publisher")} <= alive


def _refusals(redis: Redis) -> int:
    stats: Any = redis.info("errorstats")
    return int(stats.get("errorstat_OOM", {}).get("count", 0))


def test_the_service_can_be_stopped_without_a_server(tmp_path: Path, tiny_model: Path) -> None:
    server = EmbeddedServer(tmp_path / "server")
    server.start()
    with service(server.url, tiny_model, step_seconds=0.003), Client(server.url) as client:
        job_id = client.submit(BODY)
        begun(client, [job_id])
        server.stop()
    # It ended; the job goes to another worker when the server is back and the lease has run out.
    server.start()
    try:
        with connect(server.url) as redis, Client(server.url) as client:
            assert client.status(job_id).state is JobState.RUNNING
            assert redis.zcard(client.keys.running) == 1
    finally:
        server.stop()


def test_c6_deltas_that_the_server_has_lost_come_again(
    server: EmbeddedServer, client: Client, redis: Redis, tiny_model: Path
) -> None:
    """As a replica that was promoted may lack the last ones: record and log are what they were a moment ago."""
    with service(server.url, tiny_model, step_seconds=0.005) as worker:
        undisturbed = client.result(client.submit(BODY), timeout=60).text
        job_id = client.submit(BODY)
        seen = []
        for event in client.stream(job_id, timeout=60):
            seen.append(event)
            if isinstance(event, Delta) and event.seq == 10:
                break
        assert isinstance(seen[5], Delta)
        events: Any = redis.xrange("headrace:events:" + job_id, min=f"({seen[5].position}")
        with redis.pipeline() as pipe:
            pipe.xdel("headrace:events:" + job_id, *(position for position, _ in events))
            pipe.hset("headrace:job:" + job_id, "seq", seen[5].seq)
            pipe.execute()
        result = client.result(job_id, timeout=60)
        lost = worker.describe()["tokens_wasted_gap"]
    assert (result.state, result.text) == (JobState.SUCCEEDED, undisturbed)
    entries: Any = redis.xrange("headrace:events:" + job_id)
    documents = [json.loads(fields["event"]) for _, fields in entries]
    deltas = [document for document in documents if document["kind"] == "delta"]
    assert "".join(delta["text"] for delta in deltas) == undisturbed
    assert [delta["seq"] for delta in deltas] == list(range(1, len(deltas) + 1))
    assert redis.hget("headrace:job:" + job_id, "deliveries") == "1", "it is nobody's fault"
    assert int(lost) > 0
    assert result.attempt == 2


def test_the_service_can_be_started_without_a_server(tmp_path: Path, tiny_model: Path) -> None:
    """Its model took long to load; the server was restarted meanwhile, and will be back."""
    server = EmbeddedServer(tmp_path / "server")
    with service(server.url, tiny_model) as worker:
        server.start()
        try:
            with Client(server.url) as client:
                job_id = client.submit({**BODY, "max_tokens": 3})
                assert client.result(job_id, timeout=60).state is JobState.SUCCEEDED
                wait_until(client.workers, "it says that it is alive")
        finally:
            worker.drain(0)
            worker.stop()
            server.stop()
