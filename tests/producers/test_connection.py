"""URLs and what is said when nothing good is behind them; a password is never said."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from headrace.producers import BrokerUnavailable, Client, MalformedUrl
from headrace.producers.celery_broker import celery_url
from headrace.producers.connection import connect, connect_async, without_password
from headrace.producers.hints import VISIBILITY_SECONDS, HintSender, celery_settings
from headrace.producers.server_url import parse_server_url
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
        ("redis://h:1/0?password=SEC@RET", "redis://h:1/0?password=***"),
        ("rediss://h/0?ssl_password=SECRET&ssl_check=1", "rediss://h/0?ssl_password=***&ssl_check=1"),
        ("sentinel://user:SECRET@a:1,b:2/main", "sentinel://user:***@a:1,b:2/main"),
        ("sentinel://:SEC@RET@a,b/main?db=1", "sentinel://:***@a,b/main?db=1"),
        (
            "sentinel://a:1,b:2/main?sentinel_password=SEC@RET&db=1",
            "sentinel://a:1,b:2/main?sentinel_password=***&db=1",
        ),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
    try:
        connect(url).close()
    except BrokerUnavailable as error:
        assert "SEC" not in str(error)
        assert "RET" not in str(error)


@pytest.mark.parametrize(
    "url",
    [
        "http://h/0",
        "localhost:6379",
        "",
        "redis://h:port/0",
        "redis://h:99999999/0",
        "redis://h/production",
        "redis://h?db=-1",
        "redis://h?bogus=1",
        "redis://h?ssl_ca_certs=/tmp",
        "rediss://h?ssl_cert_reqs=perhaps",
        "unix://",
        "sentinel://h",
        "sentinel://h:26379/",
        "sentinel:///main",
        "sentinel://h,/main",
        "sentinel://h:0/main",
        "sentinel://h:port/main",
        "sentinel://h/main/0",
        "sentinel://h/main?db=x",
        "sentinel://h/main?bogus=1",
        "sentinel://h/main?sentinel_db=1",
        "sentinel://h/main?ssl=perhaps",
    ],
)
def test_what_is_no_redis_url_is_said_to_be_none(url: str) -> None:
    for attempt in (connect, connect_async, celery_settings):
        with pytest.raises(MalformedUrl, match="is no Redis URL"):
            attempt(url)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(MalformedUrl, match=r"'rediss://:\*\*\*@h\?ssl_ca_certs=/no/where': there is no /no/where"):
        connect("rediss://:SECRET@h?ssl_ca_certs=/no/where")


def test_a_sentinel_url_in_full() -> None:
    query = "db=4&sentinel_username=watch&sentinel_password=q%26r&ssl=true&ssl_ca_certs=/c"
    url = f"sentinel://user:p%40w@a,b:2,[::1]:3/my%20main?{query}"
    parsed = parse_server_url(url)
    assert (parsed.sentinels, parsed.primary, parsed.tls) == ((("a", 26379), ("b", 2), ("::1", 3)), "my main", True)
    assert parsed.options == {"username": "user", "password": "p@w", "db": 4, "ssl_ca_certs": "/c"}
    assert parsed.sentinel_options == {"username": "watch", "password": "q&r", "ssl_ca_certs": "/c"}
    assert "p@w" not in repr(parsed) and "q&r" not in repr(parsed)
    settings = celery_settings(url)
    login = "sentinel://user:p%40w@"
    assert settings["broker_url"] == f"{login}a:26379/4;{login}b:2/4;{login}[::1]:3/4"
    assert settings["result_backend"] == settings["broker_url"]
    for options in (settings["broker_transport_options"], settings["result_backend_transport_options"]):
        assert options["master_name"] == "my main"
        assert parsed.sentinel_options.items() <= options["sentinel_kwargs"].items()
        assert options["sentinel_kwargs"]["ssl"] is True
    for certificates in (settings["broker_use_ssl"], settings["redis_backend_use_ssl"]):
        assert certificates == {"ssl_ca_certs": "/c", "ssl_cert_reqs": ssl.CERT_REQUIRED}
    assert settings["broker_transport_options"]["visibility_timeout"] == VISIBILITY_SECONDS


def test_no_sentinel_answers() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    url = f"sentinel://:SECRET@127.0.0.1:{port}/main"
    with Client(url) as client, pytest.raises(BrokerUnavailable, match="no sentinel answers") as refused:
        client.status("j")
    assert len(str(refused.value)) < 200 and "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://:pw@h:1/2", "redis://:pw@h:1/2"),
        ("redis://h?db=3", "redis://h:6379/3"),
        ("redis://user:p%40w@[::1]/2?health_check_interval=5", "redis://user:p%40w@[::1]:6379/2"),
        ("redis://h?username=user&password=p/w", "redis://user:p%2Fw@h:6379/0"),
        ("rediss://h", "rediss://h:6379/0?ssl_cert_reqs=required"),
        (
            "rediss://h/1?ssl_cert_reqs=none&ssl_ca_certs=/c a",
            "rediss://h:6379/1?ssl_cert_reqs=none&ssl_ca_certs=%2Fc+a",
        ),
        ("sentinel://:pw@a,b:2/main?db=4", "sentinel://:pw@a:26379/4;sentinel://:pw@b:2/4"),
        ("unix://user:p%40w@/tmp/a%20b?db=1", "redis+socket://user:p%40w@/tmp/a%20b?virtual_host=1"),
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


def test_a_hint_that_cannot_be_sent_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    hints = HintSender("redis://:SECRET@127.0.0.1:1/0")
    hints.send("default")
    hints.close()
    assert "no hint was sent" in caplog.text
    assert "SECRET" not in caplog.text


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
    # Clients look how full it is about once a second; between, or where they may not look, the server itself refuses.
    redis.hset("headrace:limits", "memory_percent", "inf")
    redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(BrokerUnavailable, match="used memory"):
            client.submit("hi")
    finally:
        redis.config_set("maxmemory", "0")
    assert client.submit("hi")
