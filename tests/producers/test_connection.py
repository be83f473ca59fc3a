"""URLs and what is said when nothing good is behind them; a password is never said."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from headrace.producers import BrokerUnavailable, Client
from headrace.producers.connection import celery_url, connect, without_password
from headrace.worker.embedded import EmbeddedServer
from redis import Redis


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://:SECRET@h:6379/0", "redis://:***@h:6379/0"),
        ("rediss://user:SECRET@h/0?ssl=1", "rediss://user:***@h/0?ssl=1"),
        ("redis://user:SEC@RET@h", "redis://user:***@h"),
        ("redis://:SEC#RET@h/0", "redis://:***@h/0"),
        ("redis://:SEC/RET@h/0", "redis://:***@h/0"),
        ("redis://:SEC?RET@h/0", "redis://:***@h/0"),
        ("user:SECRET@h:6379", "user:***@h:6379"),
        ("redis://h/0?password=SECRET", "redis://h/0?password=***"),
        ("unix:///tmp/s?db=1&password=SECRET&x=1", "unix:///tmp/s?db=1&password=***&x=1"),
        ("unix:///tmp/a@b/s?db=0", "unix:///tmp/a@b/s?db=0"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
    try:
        connect(url).close()
    except BrokerUnavailable as error:
        assert "SEC" not in str(error)
        assert "RET" not in str(error)


@pytest.mark.parametrize("url", ["http://h/0", "localhost:6379", "", "redis://h:port/0", "redis://h:99999999/0"])
def test_what_is_no_redis_url_is_said_to_be_none(url: str) -> None:
    with pytest.raises(BrokerUnavailable, match="is no Redis URL"):
        connect(url)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://:pw@h:1/2", "redis://:pw@h:1/2"),
        ("unix:///tmp/s", "redis+socket:///tmp/s?virtual_host=0"),
        ("unix:///tmp/s?db=3", "redis+socket:///tmp/s?virtual_host=3"),
    ],
)
def test_celerys_spelling(url: str, expected: str) -> None:
    assert celery_url(url) == expected


def test_nobody_listens() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    with Client(f"redis://:SECRET@127.0.0.1:{port}/0") as client:
        for call in (lambda: client.submit("hi"), lambda: client.status("j"), lambda: list(client.stream("j"))):
            with pytest.raises(BrokerUnavailable, match=rf"no Redis answers at redis://:\*\*\*@127\.0\.0\.1:{port}/0"):
                call()


@pytest.fixture
def web_server() -> Iterator[int]:
    """A port on which something answers that is no Redis."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_something_else_listens(web_server: int) -> None:
    with Client(f"redis://127.0.0.1:{web_server}/0") as client, pytest.raises(BrokerUnavailable, match="Redis"):
        client.status("j")


def test_the_server_refuses(server: EmbeddedServer, redis: Redis) -> None:
    redis.config_set("requirepass", "right")
    try:
        with connect(server.url) as other, Client(server.url) as client:
            with pytest.raises(BrokerUnavailable, match="refuses"):
                client.status("j")
            del other
    finally:
        with Redis(unix_socket_path=str(server.socket), password="right") as privileged:
            privileged.config_set("requirepass", "")


def test_a_server_that_is_full_is_said_to_refuse(redis: Redis, client: Client) -> None:
    redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(BrokerUnavailable, match="used memory"):
            client.submit("hi")
    finally:
        redis.config_set("maxmemory", "0")
    assert client.submit("hi")
