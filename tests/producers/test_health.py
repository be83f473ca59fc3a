"""``headrace health``: what it says of each state, what it advises, and its exit codes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from headrace.producers.cli import app
from headrace.producers.health import read_workers
from headrace.producers.keys import Keys
from redis import Redis
from typer.testing import CliRunner

from ..support import headrace, wait_until

LEASE_MS = 60_000


def report(redis: Redis, worker_id: str, state: str, *, model: str = "m", lease_ms: int = LEASE_MS) -> None:
    """A worker's heartbeat, with no more than a worker that starts can know."""
    keys = Keys()
    redis.hset(keys.worker(worker_id), mapping={"state": state, "model": model})
    redis.pexpire(keys.worker(worker_id), lease_ms)
    redis.zadd(keys.workers, {worker_id: int(time.time() * 1000)})


@pytest.mark.parametrize(
    ("states", "arguments", "code", "words"),
    [
        ({}, (), 4, "no worker has reported; start one with `headrace worker`"),
        ({}, ("--model", "n"), 4, "no worker for model n has reported; start one with `headrace worker --model n`"),
        ({"host-1-a": "ready"}, (), 0, ""),
        ({"host-1-a": "ready"}, ("--worker", "host"), 0, ""),
        ({"host-1-a": "ready"}, ("--worker", "host-"), 0, ""),
        ({"host-1-a": "ready"}, ("--worker", "host-1-a"), 0, ""),
        ({"host-1-a": "ready"}, ("--worker", "ho"), 4, "no worker ho has reported"),
        ({"host2-1-a": "ready"}, ("--worker", "host"), 4, "no worker host has reported"),
        ({"host-1-a": "ready"}, ("--model", "m"), 0, ""),
        ({"host-1-a": "ready"}, ("--model", "n"), 4, "no worker for model n has reported"),
        ({"host-1-a": "starting"}, (), 6, "worker host-1-a is starting; wait"),
        ({"host-1-a": "restarting"}, (), 6, "worker host-1-a is restarting; wait"),
        ({"host-1-a": "draining"}, (), 7, "worker host-1-a is draining and takes no more jobs; start another"),
        ({"a-1-a": "draining", "b-1-b": "starting"}, (), 6, "worker b-1-b is starting"),
        ({"a-1-a": "draining", "b-1-b": "starting", "c-1-c": "ready"}, (), 0, ""),
        ({"a-1-a": "draining", "b-1-b": "ready"}, ("--worker", "a"), 7, "worker a-1-a is draining"),
    ],
)
def test_each_state_has_a_code_and_an_advice(
    redis: Redis, url: str, states: dict[str, str], arguments: tuple[str, ...], code: int, words: str
) -> None:
    for worker_id, state in states.items():
        report(redis, worker_id, state)
    done = CliRunner().invoke(app, ["health", "--redis", url, *arguments], env={"HEADRACE_PREFIX": None})
    assert done.exit_code == code
    assert done.stdout.startswith(f"redis\tlive\t{url}\n")
    assert words in done.stderr
    assert done.stderr.count("\n") == (1 if words else 0)


def test_a_worker_whose_heartbeat_has_run_out_is_gone(redis: Redis, url: str, tmp_path: Path) -> None:
    report(redis, "host-1-a", "ready", lease_ms=1)
    wait_until(lambda: [each.state for each in read_workers(redis, Keys())] == ["gone"], "the heartbeat runs out")
    done = headrace("health", "--redis", url, "--model", "m", cwd=tmp_path, code=4)
    assert "worker\tgone\thost-1-a\t\t0\n" in done.stdout
    assert "worker host-1-a was last heard" in done.stderr and "look at its log" in done.stderr
    report(redis, "other-1-b", "ready")
    headrace("health", "--redis", url, cwd=tmp_path, code=0)
    redis.persist(Keys().worker("other-1-b"))
    assert {each.state for each in read_workers(redis, Keys())} == {"gone"}, "a heartbeat that never ends is none"


def test_json_and_the_prefix(redis: Redis, url: str, tmp_path: Path) -> None:
    report(redis, "host-1-a", "draining")
    done = headrace("health", "--redis", url, "--json", cwd=tmp_path, code=7)
    said = json.loads(done.stdout)
    assert said["status"] == "draining"
    assert said["redis"] == {"url": url, "live": True}
    [worker] = said["workers"]
    assert worker.pop("heard_s") < 60
    assert worker == {"worker_id": "host-1-a", "model": "m", "state": "draining", "running": 0}
    assert said["fix"] in done.stderr
    done = headrace("health", "--redis", url, "--json", "--prefix", "other", cwd=tmp_path, code=4)
    assert json.loads(done.stdout)["workers"] == []
    headrace("health", "--redis", url, cwd=tmp_path, variables={"HEADRACE_PREFIX": "other"}, code=4)


def test_no_redis_is_3_and_no_url_is_2(tmp_path: Path) -> None:
    nowhere = "redis://:SECRET@127.0.0.1:1/0"
    done = headrace("health", "--redis", nowhere, "--json", cwd=tmp_path, code=3)
    said = json.loads(done.stdout)
    assert (said["status"], said["redis"]["live"], said["workers"]) == ("no redis", False, [])
    assert "no Redis answers at redis://:***@127.0.0.1:1/0" in done.stderr and "give --redis" in done.stderr
    assert "SECRET" not in done.stderr + done.stdout
    done = headrace("health", "--redis", nowhere, cwd=tmp_path, code=3)
    assert done.stdout == "redis\tdown\tredis://:***@127.0.0.1:1/0\n"
    headrace("health", "--redis", "http://h", cwd=tmp_path, code=2)
