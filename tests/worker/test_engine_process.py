"""The engine in a process of its own: killed, frozen, broken, and the worker goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from headrace.producers import Client, Delta, Finished, JobResult, JobState
from headrace.producers.engine_flags import EngineFlags
from headrace.producers.exit_codes import BAD_INPUT
from headrace.producers.keys import DEFAULT_PREFIX
from headrace.producers.ledger import MAX_DELIVERIES
from headrace.worker.embedded import EmbeddedServer
from headrace.worker.engine_process import EngineLoadError, EngineProcess
from headrace.worker.service import WorkerService
from headrace.worker.settings import WorkerSettings
from redis import Redis

from ..support import alive, wait_until
from .test_takeover import final_text

BODY: dict[str, Any] = {"prompt": "long", "max_tokens": 1500, "ignore_eos": True}


@contextmanager
def hosted(
    url: str, model: Path, *, prefix: str = DEFAULT_PREFIX, silent_s: float = 30.0
) -> Iterator[tuple[WorkerService, EngineProcess]]:
    """A worker of this process, its engine in another."""
    flags = EngineFlags(model=str(model), dtype="float32", kv_cache_memory=32 << 20, max_num_seqs=8)
    host = EngineProcess(asdict(flags), silent_s=silent_s)
    host.load()
    worker = WorkerService(WorkerSettings(redis_url=url, prefix=prefix, poll_s=0.05, flush_s=0.005), host)
    worker.start()
    try:
        yield worker, host
    finally:
        worker.drain(0)
        worker.stop()


def submit(client: Client, count: int) -> list[str]:
    return client.submit_many([{**BODY, "seed": seed} for seed in range(count)])


def results(client: Client, ids: list[str]) -> list[JobResult]:
    return [client.result(job_id, timeout=120) for job_id in ids]


def pid_of(host: EngineProcess) -> int:
    """The process id of the engine, once there is one that takes requests."""
    wait_until(lambda: host.ready, "the engine is up")
    assert host.pid is not None
    return host.pid


@pytest.fixture(scope="module")
def running(server: EmbeddedServer, tiny_model: Path) -> Iterator[tuple[WorkerService, EngineProcess]]:
    """One worker for the tests that leave its engine running."""
    with hosted(server.url, tiny_model) as both:
        yield both


@pytest.fixture(scope="module")
def undisturbed(server: EmbeddedServer, running: tuple[WorkerService, EngineProcess]) -> list[str]:
    """The texts of jobs that nothing happens to."""
    with Client(server.url) as client:
        return [result.text for result in results(client, submit(client, 6))]


def test_cancelled_jobs_leave_an_engine_of_another_process(
    client: Client, running: tuple[WorkerService, EngineProcess]
) -> None:
    worker, _ = running
    ids = submit(client, 6)
    next(event for event in client.stream(ids[0], timeout=60) if isinstance(event, Delta))
    assert [client.cancel(job_id) for job_id in ids] == [JobState.CANCELLED] * 6

    def idle() -> bool:
        figures = worker.describe()
        return not (figures["running"] or figures["engine_running"] or figures["engine_waiting"])

    wait_until(idle, "nothing is left")
    assert worker.describe()["kv_blocks_used"] == 0


def test_what_the_engine_says_of_a_request_arrives_whole(
    client: Client, running: tuple[WorkerService, EngineProcess]
) -> None:
    refused = client.result(client.submit(prompt="x" * 5000), timeout=60)
    asked = {"prompt": "scored", "max_tokens": 4, "logprobs": 2, "prompt_logprobs": 1, "n": 2, "seed": 3}
    answered = client.result(client.submit(asked), timeout=60)
    last = list(client.stream(answered.job_id))[-1]
    assert refused.error is not None
    assert (refused.error.code, refused.error.status_code) == ("context_length_exceeded", 400)
    assert answered.state is JobState.SUCCEEDED
    assert [len(choice.logprobs or []) for choice in answered.choices] == [4, 4]
    assert [len(one.top_logprobs) for one in answered.choices[1].logprobs or []] == [2] * 4
    assert answered.prompt_logprobs is not None
    assert [one is None for one in answered.prompt_logprobs] == [True, *[False] * 5]
    assert isinstance(last, Finished)
    assert last.result == answered


def test_jobs_of_a_killed_engine_go_on_in_the_next_one(
    client: Client, running: tuple[WorkerService, EngineProcess], undisturbed: list[str]
) -> None:
    worker, host = running
    ids = submit(client, 6)
    first = pid_of(host)
    for job_id in ids:
        next(event for event in client.stream(job_id, timeout=60) if isinstance(event, Delta))
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: worker.state == "restarting", "the worker is not ready meanwhile")
    assert [result.text for result in results(client, ids)] == undisturbed
    assert pid_of(host) != first
    logs = [list(client.stream(job_id)) for job_id in ids]
    assert [final_text(events) for events in logs] == undisturbed
    cut = [events for events in logs if len({e.attempt for e in events if isinstance(e, Delta)}) == 2]
    assert cut, "no job was interrupted in mid-sentence"
    assert worker.describe()["engine_crashes"] == 1
    assert worker.describe()["tokens_wasted_reset"] == 0
    assert worker.state == "ready"
    assert not alive(first)


def test_c3_the_job_of_three_deaths_is_given_up_and_its_neighbours_are_answered(
    server: EmbeddedServer, redis: Redis, tiny_model: Path, undisturbed: list[str]
) -> None:
    """All jobs are in the first two deaths; on the last delivery each is alone, so only one is in the third."""
    client = Client(server.url, prefix="c3")
    with client, hosted(server.url, tiny_model, prefix="c3") as (worker, host):
        ids = submit(client, 3)
        for death in range(1, MAX_DELIVERIES + 1):
            events = client.stream(ids[0], timeout=60)
            next(event for event in events if isinstance(event, Delta) and event.attempt == death)
            if death == MAX_DELIVERIES:
                wait_until(lambda: worker.describe()["engine_running"] == 1, "it is alone")
            os.kill(pid_of(host), signal.SIGKILL)
        given_up, *neighbours = results(client, ids)
    assert given_up.state is JobState.FAILED
    assert given_up.error is not None
    assert given_up.error.code == "too_many_deliveries"
    assert "in the last, the engine's process was killed by signal 9" in given_up.error.message
    assert redis.zrange("c3:dead", 0, -1) == [ids[0]]
    assert [result.text for result in neighbours] == undisturbed[1:3]
    # Those that were claimed already had an attempt in which they only waited; it does not count.
    assert {result.attempt for result in neighbours} <= {MAX_DELIVERIES, MAX_DELIVERIES + 1}
    assert worker.describe()["engine_crashes"] == MAX_DELIVERIES


def test_b7_an_engine_that_hangs_is_ended_and_its_jobs_go_on(
    server: EmbeddedServer, tiny_model: Path, undisturbed: list[str]
) -> None:
    client = Client(server.url, prefix="b7")
    with client, hosted(server.url, tiny_model, prefix="b7", silent_s=2.0) as (worker, host):
        ids = submit(client, 2)
        next(event for event in client.stream(ids[0], timeout=60) if isinstance(event, Delta))
        frozen = pid_of(host)
        os.kill(frozen, signal.SIGSTOP)
        assert [result.text for result in results(client, ids)] == undisturbed[:2]
        assert not alive(frozen)
        assert worker.describe()["engine_crashes"] == 1


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    host = EngineProcess(asdict(EngineFlags(model=str(tmp_path / "none"))))
    with pytest.raises(EngineLoadError, match="none") as caught:
        host.load()
    assert caught.value.exit_code == BAD_INPUT
    assert not host.ready


def test_a_worker_can_be_stopped_while_its_engine_comes_back(server: EmbeddedServer, tiny_model: Path) -> None:
    with hosted(server.url, tiny_model, prefix="stop") as (worker, host):
        os.kill(pid_of(host), signal.SIGKILL)
        wait_until(lambda: worker.state == "restarting" and host.pid, "the next engine loads")
    assert host.pid is None
