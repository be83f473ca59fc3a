"""The primary dies: a sentinel promotes its replica, and worker and clients go on without a restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from headrace.producers import AsyncClient, BrokerUnavailable, Client, Delta, JobNotFound, JobState
from headrace.producers.connection import connect
from headrace.producers.hints import celery_settings

from ..servers import Failover, failover_servers, free_port
from ..support import headrace, wait_until
from .services import WorkerProcess, worker_process

PASSWORD = "p@ss/SECRET"
SENTINEL_PASSWORD = "HIDDEN"
SHORT: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failover]:
    with failover_servers(tmp_path_factory.mktemp("servers"), PASSWORD, SENTINEL_PASSWORD) as running:
        yield running


@pytest.fixture(scope="module")
def url(servers: Failover) -> str:
    """The first of its sentinels is down."""
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{servers.sentinel.port}"
    return f"sentinel://:p%40ss%2FSECRET@{hosts}/{Failover.NAME}?db=2&sentinel_password={SENTINEL_PASSWORD}"


@pytest.fixture(scope="module")
def worker(url: str, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    directory = tmp_path_factory.mktemp("worker")
    with (
        connect(url) as redis,
        worker_process("w", url, redis, tiny_model, directory, step_seconds=0.01, lease_ms=5000) as process,
    ):
        process.wait_until_ready()
        yield process


async def generate(url: str) -> JobState:
    async with AsyncClient(url) as client:
        return (await client.result(await client.submit("hi", **SHORT), timeout=30)).state


def reached(client: Client) -> bool:
    """Whether a client gets an answer; while the sentinels agree on a primary, it gets none."""
    try:
        client.workers()
    except BrokerUnavailable:
        return False
    return True


def exists(client: Client, job_id: str) -> bool:
    """Whether a job is in the ledger."""
    try:
        client.status(job_id)
    except JobNotFound:
        return False
    return True


def test_jobs_before_during_and_after_a_failover_succeed(
    worker: WorkerProcess, servers: Failover, url: str, tmp_path: Path
) -> None:
    app = Celery("plain", set_as_current=False)
    app.conf.update(celery_settings(url))
    with Client(url) as client:
        before = client.submit("before", **SHORT)
        assert client.result(before, timeout=30).state is JobState.SUCCEEDED
        task = app.send_task("headrace.generate", ["before"], SHORT, queue="headrace")
        assert task.get(timeout=30)["state"] == "succeeded"
        assert asyncio.run(generate(url)) is JobState.SUCCEEDED
        during = client.submit("during", max_tokens=300, ignore_eos=True)
        held = app.send_task("headrace.generate", ["during"], {"max_tokens": 300, "ignore_eos": True}, queue="headrace")
        wait_until(lambda: exists(client, held.id), "the held task's job is in the ledger")
        for job in (during, held.id):
            next(event for event in client.stream(job, timeout=30) if isinstance(event, Delta))

        assert servers.where_is_the_primary() == servers.primary.port
        killed_ms = time.time() * 1000
        servers.primary.process.kill()
        servers.primary.process.wait()
        with pytest.raises(BrokerUnavailable) as refused:
            client.status(before)
        assert "SECRET" not in str(refused.value) and SENTINEL_PASSWORD not in str(refused.value)
        wait_until(lambda: servers.where_is_the_primary() == servers.replica.port, "the replica is promoted")
        wait_until(lambda: reached(client), "the client reaches the new primary")
        with servers.replica.client() as promoted:
            assert promoted.info("replication")["role"] == "master"

        assert client.status(before).state is JobState.SUCCEEDED, "what had ended was replicated"
        assert client.result(client.submit("after", **SHORT), timeout=30).state is JobState.SUCCEEDED
        assert client.result(during, timeout=30).state is JobState.SUCCEEDED
        assert held.get(timeout=30)["state"] == "succeeded", "Celery's connection died while its message was held"
        for job in (during, held.id):
            ended_ms = worker.redis.hget(client.keys.job(job), "ended_ms")
            assert int(str(ended_ms)) > killed_ms, "it was still running when the primary died"
        assert asyncio.run(generate(url)) is JobState.SUCCEEDED
        task = app.send_task("headrace.generate", ["after"], SHORT, queue="headrace")
        assert task.get(timeout=30)["state"] == "succeeded"
    app.close()
    headrace("health", "--redis", url, "--worker", "w", cwd=tmp_path, code=0)
    assert worker.process.poll() is None, "the worker was not restarted"
    log = worker.log.read_text()
    assert "cannot renew leases" in log, "the worker noticed"
    assert "SECRET" not in log and SENTINEL_PASSWORD not in log
