"""What a worker asks of its server: to evict nothing, to keep a log, and to have loaded its data."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace.producers import BrokerUnavailable
from headrace.producers.connection import connect
from headrace.producers.server_checks import check_server
from redis import Redis
from redis.exceptions import BusyLoadingError

from ..servers import port_server
from ..support import headrace


@pytest.fixture
def changeable(redis: Redis) -> Iterator[Redis]:
    """The server; its settings are put back at the end."""
    yield redis
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("maxmemory", 0)
    redis.config_set("appendonly", "yes")


def test_a_server_that_forgets_nothing_passes(redis: Redis, url: str, caplog: pytest.LogCaptureFixture) -> None:
    check_server(redis, url)
    assert caplog.text == ""


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_a_server_that_evicts_is_refused(
    changeable: Redis, url: str, policy: str, limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    changeable.config_set("maxmemory-policy", policy)
    changeable.config_set("maxmemory", limit)
    with pytest.raises(BrokerUnavailable, match=f"maxmemory-policy {policy}.*noeviction.*--allow-eviction"):
        check_server(changeable, url)
    assert caplog.text == ""
    check_server(changeable, url, allow_eviction=True)
    assert f"maxmemory-policy {policy}" in caplog.text


def test_a_server_without_a_log_gets_a_warning(changeable: Redis, url: str, caplog: pytest.LogCaptureFixture) -> None:
    changeable.config_set("appendonly", "no")
    check_server(changeable, url)
    assert "appendonly off" in caplog.text


def test_where_info_is_forbidden_the_checks_are_left_out(
    redis: Redis, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    commands = ["+@all", "-info", "-config"]
    redis.acl_setuser("blind", enabled=True, nopass=True, keys=["*"], channels=["*"], commands=commands)
    try:
        with connect(f"{url}&username=blind&password=any") as blind:
            check_server(blind, url)
    finally:
        redis.acl_deluser("blind")
    assert "INFO is refused" in caplog.text


def test_a_server_that_loads_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with port_server(tmp_path, {"save": '""'}) as filled, filled.client() as redis:
        with redis.pipeline(transaction=False) as pipe:
            for number in range(1000):
                pipe.set(f"key:{number}", os.urandom(200).hex())
            pipe.execute()
        redis.save()
    # 2 ms a key; it answers in between.
    slow = {"save": '""', "key-load-delay": "2000", "loading-process-events-interval-bytes": "1024"}
    with port_server(tmp_path, slow, loaded=False) as server, server.client() as redis:
        url = f"redis://127.0.0.1:{server.port}"
        with pytest.raises(BusyLoadingError):
            redis.get("key:1")
        with pytest.raises(BrokerUnavailable, match="still loads its data"):
            check_server(redis, url, loading_seconds=0.1)
        with caplog.at_level(logging.INFO):
            check_server(redis, url)
        assert redis.dbsize() == 1000
    assert "is loading its data (" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "words"),
    [
        ((), {}, 3, "maxmemory-policy allkeys-lfu"),
        (("--allow-eviction", "--model", "./nowhere"), {}, 2, "no model './nowhere'"),
        (("--model", "./nowhere"), {"HEADRACE_ALLOW_EVICTION": "1"}, 2, "no model './nowhere'"),
        (("--redis", "sentinel://:SECRET@h"), {}, 2, "'sentinel://:***@h' is no Redis URL"),
    ],
)
def test_the_worker_command_checks(
    changeable: Redis,
    url: str,
    tmp_path: Path,
    arguments: tuple[str, ...],
    variables: dict[str, str],
    code: int,
    words: str,
) -> None:
    changeable.config_set("maxmemory-policy", "allkeys-lfu")
    done = headrace("worker", *arguments, cwd=tmp_path, variables={"HEADRACE_REDIS_URL": url, **variables}, code=code)
    assert words in done.stderr.splitlines()[-1]
    assert "SECRET" not in done.stderr
