"""Once all jobs have ended and their time is over, Redis holds what the next one needs, and nothing else."""

from __future__ import annotations

import signal
from pathlib import Path

from celery import Celery
from headrace.producers import Client, Delta, JobState
from headrace.producers.hints import celery_settings
from headrace.worker.embedded import EmbeddedServer
from redis import Redis

from ..support import wait_until
from .services import worker_process

LEFT = {
    "headrace:sequence",
    # Celery's routes.
    *(f"_kombu.{name}.{queue}" for name in ("binding", "binding_permanent") for queue in ("celery", "headrace")),
    "_kombu.binding_deadlines",
}


def test_the_exact_set_of_keys_after_everything_has_ended(
    server: EmbeddedServer, redis: Redis, tiny_model: Path, tmp_path: Path
) -> None:
    redis.flushall()
    app = Celery(set_as_current=False)
    app.conf.update(celery_settings(server.url), result_expires=2)
    with (
        Client(server.url, retention_s=2) as client,
        worker_process("w", server.url, redis, tiny_model, tmp_path, step_seconds=0.005, drain_grace_s=0) as worker,
    ):
        worker.wait_until_ready()
        short = client.submit_many(["a", "b", {"prompt": "c", "n": 2}], max_tokens=3, group="g")
        refused = client.submit(prompt="x" * 5000, group="g")
        long = {"prompt": "long", "max_tokens": 3000, "ignore_eos": True}
        cancelled, expired, running = client.submit(long), client.submit(long, ttl=0.5), client.submit(long)
        task = app.send_task("headrace.generate", ["hi"], {"max_tokens": 2}, queue="headrace")
        next(event for event in client.stream(cancelled) if isinstance(event, Delta))
        client.cancel(cancelled)
        states = [client.result(job_id, timeout=60).state for job_id in (*short, refused, expired)]
        assert states == [*[JobState.SUCCEEDED] * 3, JobState.FAILED, JobState.EXPIRED]
        assert task.get(timeout=60)["state"] == "succeeded"
        next(event for event in client.stream(running) if isinstance(event, Delta))
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(30) == 0
        assert client.status(running).state is JobState.QUEUED, "handed back"
        client.cancel(running)
    app.close()
    redis.expire(f"headrace:job:{task.id}", 1)
    redis.expire(f"headrace:events:{task.id}", 1)

    def left() -> set[str]:
        return {key for key in redis.scan_iter(count=1000) if not key.startswith("celery-task-meta-")}

    assert {key for key in redis.scan_iter(match="celery-task-meta-*") if redis.ttl(key) < 0} == set()
    wait_until(lambda: left() <= LEFT, "only what is needed again is left", seconds=15)
    assert left() == LEFT
