"""What may be queued: limits of queues, tenants and memory, as clients, commands and runs meet them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from headrace.producers import AsyncClient, Client, QueueFull, memory_guard
from headrace.producers.ledger import Ledger
from headrace.producers.limits import Limits, clear_limits, read_limits, set_limits
from headrace.producers.records import MAX_REQUEST_BYTES
from redis import Redis

from ..support import headrace, started, wait_until
from ..worker.services import service
from .attempts import claim_one, finish
from .run_files import RunFiles, row


def submit_async(url: str, *prompts: str, **options: str) -> list[str]:
    """Submit through the asyncio client."""

    async def submit() -> list[str]:
        async with AsyncClient(url) as client:
            return await client.submit_many(prompts, **options)

    return asyncio.run(submit())


@contextmanager
def maxmemory(redis: Redis, factor: float) -> Iterator[None]:
    """Let the memory that is used now be such a part of what may be used."""
    used = redis.info("memory")["used_memory"]
    redis.config_set("maxmemory", int(used / factor))
    try:
        yield
    finally:
        redis.config_set("maxmemory", 0)


@pytest.fixture(autouse=True)
def always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests change the memory faster than clients look at it."""
    monkeypatch.setattr(memory_guard, "CACHE_SECONDS", 0.0)


def test_limits_are_written_and_read_again(ledger: Ledger) -> None:
    assert read_limits(ledger) == Limits()
    limits = Limits(queue=5, tenant=3, tenants={"a": 2, "b=c": 0}, memory_percent=75.5)
    set_limits(ledger, limits)
    assert read_limits(ledger) == limits
    set_limits(ledger, Limits(queue=0))
    assert read_limits(ledger) == Limits(0, 3, limits.tenants, 75.5)
    clear_limits(ledger)
    assert read_limits(ledger) == Limits()


def test_a_full_queue_refuses_and_names_what_it_took(client: Client, url: str, ledger: Ledger) -> None:
    set_limits(ledger, Limits(queue=3))
    with pytest.raises(QueueFull, match=r"job d is refused: the queue 'default' is full \(3 jobs wait\)") as refused:
        client.submit_many(["one"] * 5, job_ids=["a", "b", "c", "d", "e"])
    assert refused.value.accepted_ids == {"a", "b", "c"}
    assert refused.value.num_accepted == 3
    with pytest.raises(QueueFull, match="'default' is full"):
        client.submit("one more")
    with pytest.raises(QueueFull, match="'default' is full"):
        submit_async(url, "one more")
    assert client.submit("again", job_id="a") == "a", "an id that is there is no new job"
    client.submit("elsewhere", model="tiny")
    claim_one(ledger)
    client.submit("in the place of the one that runs")


def test_tenants_have_parts_of_their_own(client: Client, url: str, ledger: Ledger) -> None:
    set_limits(ledger, Limits(tenant=1, tenants={"big": 2}))
    client.submit_many(["one", "two"], tenant="big")
    client.submit("one", tenant="small")
    with pytest.raises(QueueFull, match="2 jobs of the tenant 'big' wait, and no more may"):
        client.submit("three", tenant="big")
    with pytest.raises(QueueFull, match="1 jobs of the tenant 'small' wait"):
        submit_async(url, "two", tenant="small")
    client.submit("one", tenant="other")


def test_no_new_jobs_where_redis_is_nearly_full(client: Client, url: str, ledger: Ledger, redis: Redis) -> None:
    with maxmemory(redis, 0.8):
        client.submit("there is room")
        set_limits(ledger, Limits(memory_percent=70))
        with pytest.raises(QueueFull, match=r"Redis uses (79|80|81|82) % of its memory, .* up to 70 %"):
            client.submit("there is none")
        with pytest.raises(QueueFull, match="up to 70 %"):
            submit_async(url, "there is none")
        claim = claim_one(ledger)
        assert finish(ledger, claim) == 1, "workers have the rest"
        clear_limits(ledger)
        client.submit("there is room")
    with maxmemory(redis, 0.95), pytest.raises(QueueFull, match="up to 90 %"):
        client.submit("there is none")
    client.submit("no maxmemory, no limit")


def test_memory_is_read_about_once_a_second(
    client: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr(memory_guard, "CACHE_SECONDS", 1.0)
    before = redis.info("commandstats").get("cmdstat_info", {"calls": 0})["calls"]
    for _ in range(20):
        client.submit("hi")
    after = redis.info("commandstats")["cmdstat_info"]["calls"]
    assert 1 <= after - before - 1 <= 3


def test_the_command_shows_and_changes_limits(tmp_path: Path, url: str, ledger: Ledger) -> None:
    shown = headrace("limits", "--redis", url, cwd=tmp_path, code=0).stdout
    assert shown == "queue\tno limit\ntenant\tno limit\nmemory\t90 %\n"
    arguments = ["--queue", "9", "--tenant", "5", "--tenant", "a=7", "--memory-percent", "80"]
    headrace("limits", "set", *arguments, "--redis", url, cwd=tmp_path, code=0)
    assert read_limits(ledger) == Limits(9, 5, {"a": 7}, 80)
    headrace("limits", "set", "--queue", "8", "--redis", url, cwd=tmp_path, code=0)
    shown = headrace("limits", "--redis", url, cwd=tmp_path, code=0).stdout
    assert shown == "queue\t8\ntenant\t5\ntenant a\t7\nmemory\t80 %\n"
    as_json = json.loads(headrace("limits", "--json", "--redis", url, cwd=tmp_path, code=0).stdout)
    assert as_json == {"queue": 8, "tenant": 5, "tenants": {"a": 7}, "memory_percent": 80}
    headrace("limits", "clear", "--redis", url, cwd=tmp_path, code=0)
    assert read_limits(ledger) == Limits()


@pytest.mark.parametrize(
    "arguments",
    [
        ("set",),
        ("set", "--queue", "-1"),
        ("set", "--tenant", "a=b"),
        ("set", "--tenant", "=4"),
        ("set", "--memory-percent", "101"),
    ],
)
def test_wrong_limits_are_2_and_set_nothing(
    tmp_path: Path, url: str, ledger: Ledger, arguments: tuple[str, ...]
) -> None:
    headrace("limits", *arguments, "--redis", url, cwd=tmp_path, code=2)
    assert read_limits(ledger) == Limits()


def test_the_address_stands_after_the_command_that_uses_it(tmp_path: Path, url: str) -> None:
    done = headrace("limits", "--redis", url, "clear", cwd=tmp_path, code=2)
    assert "stands after" in done.stderr


def test_submit_to_a_full_queue_is_6(tmp_path: Path, url: str, ledger: Ledger, redis: Redis) -> None:
    set_limits(ledger, Limits(queue=0))
    done = headrace("submit", "hi", "--redis", url, cwd=tmp_path, code=8)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("headrace: job ")
    assert "the queue 'default' is full (0 jobs wait); try again later" in done.stderr
    clear_limits(ledger)
    with maxmemory(redis, 0.95):
        done = headrace("submit", "hi", "--redis", url, cwd=tmp_path, code=8)
    assert done.stderr.startswith("headrace: Redis uses 9")


def test_a_run_waits_for_room_and_answers_every_row_once(
    tmp_path: Path, url: str, ledger: Ledger, tiny_model: Path
) -> None:
    set_limits(ledger, Limits(queue=2))
    files = RunFiles(tmp_path, ("--redis", url))
    files.write(*[row(f"r{number}", max_tokens=3) for number in range(12)])
    with service(url, tiny_model, step_seconds=0.02, max_num_seqs=1):
        said = files.run(code=0)
    assert set(files.answers()) == {f"r{number}" for number in range(12)}
    assert said.count("Waiting for room: job ") == 1
    assert "the queue 'default' is full (2 jobs wait)" in said
    assert said.count("Going on: there is room again.") == 1


def test_a_run_that_waits_for_room_can_be_interrupted_and_goes_on(
    tmp_path: Path, url: str, ledger: Ledger, tiny_model: Path
) -> None:
    files = RunFiles(tmp_path, ("--redis", url))
    files.write(*[row(f"r{number}", max_tokens=3) for number in range(4)])
    set_limits(ledger, Limits(queue=0))
    with service(url, tiny_model):
        with started(*files.command(), cwd=tmp_path, variables=files.variables) as process:
            assert process.stderr is not None
            line = ""
            while "Waiting for room" not in line:
                line = process.stderr.readline()
                assert line, "it ended"
            process.send_signal(2)
            assert process.wait(60) == 130
        assert files.lines() == []
        clear_limits(ledger)
        files.run(code=0)
    assert set(files.answers()) == {f"r{number}" for number in range(4)}


def test_a_request_that_is_too_large_is_refused_by_the_worker(
    url: str, client: Client, redis: Redis, ledger: Ledger, tiny_model: Path
) -> None:
    job_id = client.submit("small")
    # Not JSON at all: it is refused before anybody reads it.
    redis.hset(ledger.keys.job(job_id), "request", "ä" * (MAX_REQUEST_BYTES // 2 + 1))
    with service(url, tiny_model):
        result = client.result(job_id, timeout=60)
        assert result.error is not None
        assert (result.error.code, result.error.status_code) == ("request_too_large", 413)
        assert f"at most {MAX_REQUEST_BYTES:,} are taken" in result.error.message
        after = client.submit({"prompt": "after it", "max_tokens": 2})
        assert client.result(after, timeout=60).completion_tokens
    begun = time.monotonic()
    wait_until(lambda: not redis.zcard(ledger.keys.running), "nothing is left", seconds=5)
    assert time.monotonic() - begun < 5
