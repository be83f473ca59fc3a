"""Celery messages where tenants are kept apart, and where the queue is full."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from headrace.producers import Client, JobState
from headrace.producers.celery_broker import celery_url
from headrace.producers.hints import UNACKED_INDEX
from headrace.producers.keys import Keys
from headrace.producers.ledger import Ledger
from headrace.producers.limits import Limits, clear_limits, set_limits
from headrace.producers.results import JobResult
from headrace.producers.tenants import OPERATOR, add_tenant
from headrace.worker.embedded import EmbeddedServer
from headrace.worker.pool import EnginePool, HeldTask
from redis import Redis

from ..support import wait_until
from .services import WorkerProcess, worker_process

SHORT: dict[str, Any] = {"max_tokens": 3, "ignore_eos": True, "seed": 1}
SLOW: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True, "seed": 1}


@pytest.fixture(scope="module")
def worker(
    server: EmbeddedServer, redis: Redis, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    directory = tmp_path_factory.mktemp("workers")
    with worker_process("w", server.url, redis, tiny_model, directory, step_seconds=0.01) as process:
        process.wait_until_ready()
        yield process


@pytest.fixture(scope="module")
def app(server: EmbeddedServer) -> Celery:
    url = celery_url(server.url)
    return Celery("plain", broker=url, backend=url, set_as_current=False)


@pytest.fixture
def ledger(redis: Redis) -> Ledger:
    return Ledger(redis, Keys())


@pytest.fixture
def tokens(redis: Redis, ledger: Ledger) -> Iterator[dict[str, str]]:
    yield {name: add_tenant(redis, ledger.keys, name) for name in ("ann", "bob", OPERATOR)}
    redis.delete(ledger.keys.tenants)


def send(app: Celery, parameters: dict[str, Any], **options: Any) -> Any:
    return app.send_task("headrace.generate", ["prompt"], parameters, queue="headrace", **options)


def failure(result: Any) -> str:
    with pytest.raises(Exception) as raised:  # the type is made by Celery from its name
        result.get(timeout=60)
    assert type(raised.value).__name__ == "JobFailed"
    return str(raised.value)


def test_a_message_needs_its_tenants_token(
    worker: WorkerProcess, app: Celery, tokens: dict[str, str], ledger: Ledger, redis: Redis
) -> None:
    good = send(app, {**SHORT, "tenant": "ann", "tenant_token": tokens["ann"]})
    assert good.get(timeout=60)["completion_tokens"] == 3
    record = redis.hgetall(ledger.keys.job(good.id))
    assert record["tenant"] == "ann"
    for parameters, words in (
        ({}, "this server keeps tenants apart"),
        ({"tenant": "ann"}, "this server keeps tenants apart"),
        ({"tenant_token": tokens["ann"]}, "this server keeps tenants apart"),
        ({"tenant": "ann", "tenant_token": "wrong"}, "there is no tenant 'ann' with this token"),
        ({"tenant": "bob", "tenant_token": tokens["ann"]}, "there is no tenant 'bob' with this token"),
        ({"tenant": OPERATOR, "tenant_token": tokens["ann"]}, "there is no tenant '*' with this token"),
        ({"tenant": "ann", "tenant_token": 5}, "tenant_token must be a text"),
    ):
        result = send(app, {**SHORT, **parameters})
        assert words in failure(result)
        assert not redis.exists(ledger.keys.job(result.id))
    operators = send(app, {**SHORT, "tenant": OPERATOR, "tenant_token": tokens[OPERATOR]})
    assert operators.get(timeout=60)["completion_tokens"] == 3
    assert redis.hget(ledger.keys.job(operators.id), "tenant") == ""
    wait_until(lambda: redis.zcard(UNACKED_INDEX) == 0, "all messages are acknowledged")
    kept = " ".join(str(_value(redis, key)) for key in redis.keys("*"))
    log = worker.log.read_text()
    for token in tokens.values():
        assert token not in kept
        assert token not in log


def _value(redis: Redis, key: Any) -> Any:
    readers: dict[Any, Callable[[], Any]] = {
        "hash": lambda: redis.hgetall(key),
        "none": lambda: "",  # it has just expired
        "string": lambda: redis.get(key),
        "stream": lambda: redis.xrange(key),
        "list": lambda: redis.lrange(key, 0, -1),
        "zset": lambda: redis.zrange(key, 0, -1),
        "set": lambda: redis.smembers(key),
    }
    return readers[redis.type(key)]()


def test_a_message_with_the_id_of_anothers_job_gets_nothing_of_it(
    worker: WorkerProcess, app: Celery, server: EmbeddedServer, tokens: dict[str, str], redis: Redis, ledger: Ledger
) -> None:
    with Client(server.url, tenant="ann", tenant_token=tokens["ann"]) as ann:
        ended = ann.submit("hers", **SHORT)
        ann.result(ended, timeout=60)
        running = ann.submit("hers", **SLOW)
        wait_until(lambda: ann.status(running).completion_tokens, "it runs")
        bobs = {"tenant": "bob", "tenant_token": tokens["bob"]}
        for job_id in (ended, running):
            assert "is taken by a job of another tenant" in failure(send(app, {**SHORT, **bobs}, task_id=job_id))
        send(app, {**SHORT, **bobs}, task_id=running)
        app.control.revoke(running, terminate=True)
        time.sleep(1)
        assert ann.status(running).state is JobState.RUNNING
        assert ann.result(running, timeout=60).completion_tokens == 400


def test_until_its_job_is_recorded_a_message_hears_nothing_of_a_job_of_its_id() -> None:
    cancelled: list[str] = []
    pool = EnginePool(app=SimpleNamespace(service=SimpleNamespace(cancel=cancelled.append)))
    result = JobResult(job_id="j", state=JobState.SUCCEEDED)

    def hold(recorded: bool) -> HeldTask:
        held = pool._held["j"] = HeldTask("j", print, (), print, pool._revoke, recorded)
        return held

    unrecorded = hold(recorded=False)
    pool._job_ended(result)
    unrecorded.terminate()
    assert (pool._ended.qsize(), cancelled) == (0, [])
    pool._recorded(unrecorded)
    assert cancelled == ["j"], "it was revoked before it was recorded"
    recorded = hold(recorded=True)
    pool._job_ended(result)
    recorded.terminate()
    assert (pool._ended.get_nowait(), cancelled) == (result, ["j", "j"])


def test_a_message_waits_while_the_queue_is_full(
    worker: WorkerProcess, app: Celery, client: Client, redis: Redis, ledger: Ledger
) -> None:
    set_limits(ledger, Limits(queue=0))
    result = send(app, SHORT)
    wait_until(lambda: redis.zcard(UNACKED_INDEX) == 1, "the message is held")
    time.sleep(0.5)
    assert not redis.exists(ledger.keys.job(result.id))
    clear_limits(ledger)
    assert result.get(timeout=60)["completion_tokens"] == 3


def test_a_pickle_is_refused(worker: WorkerProcess, app: Celery, redis: Redis, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    result = send(app, {**SHORT, "stop": _Touch(touched)}, serializer="pickle")
    after = send(app, SHORT)
    assert after.get(timeout=60)["completion_tokens"] == 3
    assert not touched.exists()
    assert result.state == "PENDING"
    assert worker.process.poll() is None


class _Touch:
    """Makes a file wherever it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self._path,))
