"""The server restarts, connections break, and hints are lost or doubled, while jobs run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from headrace.producers import Delta, JobState, Started
from headrace.producers.celery_broker import celery_url
from headrace.producers.hints import HintSender, celery_queue
from headrace.producers.keys import Keys
from headrace.producers.ledger import Ledger
from redis.exceptions import RedisError

from bench.fault_kinds import cut_waiting_connections, submit_without_hint
from bench.fault_load import Sent

from .scenes import LONG, SHORT, Scene

NUM_HINTS = 30


@pytest.fixture
def hints(scene: Scene) -> Iterator[HintSender]:
    sender = HintSender(scene.cluster.server.url)
    yield sender
    sender.close()


def begun_once(scene: Scene, job_id: str) -> str:
    """Who ran a job, which has one attempt."""
    [begun] = [event for event in scene.client.stream(job_id) if isinstance(event, Started)]
    return begun.worker


def blocking_pops(scene: Scene) -> int:
    """Connections on which workers wait for Celery's messages."""
    try:
        return sum(client["cmd"] in ("brpop", "blpop") for client in scene.cluster.redis.client_list())
    except RedisError:
        return 0


def test_c6_the_server_restarts_in_mid_sentence(scene: Scene) -> None:
    job_id = scene.client.submit(LONG)
    worker = scene.owner_of(job_id)
    before = scene.refusals(worker)
    first = scene.cluster.server.pid
    scene.cluster.server.stop()
    scene.cluster.server.start()
    assert scene.cluster.server.pid != first
    assert scene.client.status(job_id).state is JobState.RUNNING, "it was over before the restart"
    scene.check_resumed(job_id, attempts=1)
    scene.wait_for(lambda: blocking_pops(scene) == 2, "both workers wait for messages again")
    assert scene.refusals(worker) == before
    assert all(worker.alive for worker in scene.cluster.workers)


def test_c6_only_the_waiting_connections_are_cut(scene: Scene) -> None:
    """Celery's blocking pop comes back, a task that was held is answered once, and cancels are heard again."""
    app = Celery("plain", broker=celery_url(scene.cluster.server.url), backend=celery_url(scene.cluster.server.url))
    held = app.send_task("headrace.generate", [LONG], queue="headrace")
    scene.wait_for(lambda: scene.cluster.redis.exists(scene.client.keys.job(held.id)), "the job is known")
    scene.owner_of(held.id)
    assert cut_waiting_connections(scene.cluster.redis) >= len(scene.cluster.workers)
    assert scene.client.status(held.id).state is JobState.RUNNING
    scene.wait_for(lambda: blocking_pops(scene) == 2, "both workers wait for messages again")
    assert app.send_task("headrace.generate", [SHORT], queue="headrace").get(timeout=60)["completion_tokens"] == 20
    scene.check_resumed(held.id, attempts=1)
    assert held.get(timeout=60)["text"] == scene.text
    cancelled = scene.client.submit(LONG)
    worker = scene.owner_of(cancelled)
    scene.client.cancel(cancelled)
    scene.wait_for(lambda: worker.count("engine_running") == 0, "the worker has heard of it", seconds=20)
    app.close()


def test_connections_are_cut_again_and_again(scene: Scene) -> None:
    job_id = scene.client.submit(LONG)
    worker = scene.owner_of(job_id)
    before = scene.refusals(worker)
    cut, deadline = 0, time.monotonic() + 1.5
    while time.monotonic() < deadline:
        cut += int(scene.cluster.redis.client_kill_filter(_type="normal", skipme=True))
        time.sleep(0.02)
    assert cut > 20
    scene.check_resumed(job_id, attempts=1)
    assert scene.refusals(worker) == before


def test_a_job_whose_hint_is_lost_is_found(scene: Scene) -> None:
    ledger = Ledger(scene.cluster.redis, Keys())
    sent = Sent("no-hint", SHORT, ())
    submit_without_hint(ledger, sent)
    assert scene.cluster.redis.llen(celery_queue()) == 0
    assert scene.client.result(sent.job_id, timeout=60).state is JobState.SUCCEEDED
    begun_once(scene, sent.job_id)


def test_hints_that_come_again_and_again_start_a_job_once(scene: Scene, hints: HintSender) -> None:
    ids = []
    for _ in range(NUM_HINTS):
        ids += scene.client.submit_many([SHORT])
        hints.send("default")
        hints.send("default")
    for job_id in ids:
        assert scene.client.result(job_id, timeout=60).state is JobState.SUCCEEDED
        begun_once(scene, job_id)
    scene.wait_for(lambda: scene.cluster.redis.llen(celery_queue()) == 0, "all hints are taken")


def test_workers_that_claim_at_one_time_get_different_jobs(scene: Scene, hints: HintSender) -> None:
    """More jobs than one worker may own, and both are woken for them."""
    redis: Any = scene.cluster.redis
    ledger = Ledger(redis, Keys())
    sent = [Sent(f"rival-{number}", {**SHORT, "max_tokens": 150, "seed": number}, ()) for number in range(100)]
    for one in sent:
        submit_without_hint(ledger, one)
    for _ in range(4):
        hints.send("default")
    for one in sent:
        assert scene.client.result(one.job_id, timeout=60).completion_tokens == 150
    owners = {begun_once(scene, one.job_id) for one in sent}
    assert owners == {worker.worker_id for worker in scene.cluster.workers}, "one of them claimed nothing"
    for one in sent:
        seqs = [event.seq for event in scene.client.stream(one.job_id) if isinstance(event, Delta)]
        assert seqs == list(range(1, len(seqs) + 1))
