"""What a URL says besides the host: TLS, user, password and database, for clients, worker and Celery alike."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from headrace.producers import AsyncClient, BrokerUnavailable, Client, JobState
from headrace.producers.connection import connect
from headrace.producers.hints import celery_settings
from headrace.producers.server_checks import check_server

from ..servers import PortServer, port_server
from ..support import wait_until
from ..tls import self_signed, tls_in_front_of
from .services import worker_process

SHORT: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True}
PREFIX = "mine"
DATABASE = 3


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PortServer]:
    """A server that lets one user in, who may do no more than the README asks for."""
    user = {"user app": "on >p@ss/SECRET ~* &* +@all -@admin -@dangerous +info", "user default": "off"}
    admin = {"user admin": "on nopass ~* &* +@all"}
    with port_server(tmp_path_factory.mktemp("logins"), {**user, **admin}, user="admin") as running:
        yield running


@pytest.fixture(scope="module")
def plain_url(logins: PortServer) -> str:
    return f"redis://app:p%40ss%2FSECRET@127.0.0.1:{logins.port}/{DATABASE}"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def tls_port(logins: PortServer, certificate: tuple[Path, Path]) -> Iterator[int]:
    with tls_in_front_of(logins.port, *certificate) as port:
        yield port


@pytest.fixture(scope="module")
def tls_url(tls_port: int, certificate: tuple[Path, Path]) -> str:
    return (
        f"rediss://127.0.0.1:{tls_port}?db={DATABASE}&username=app&password=p@ss/SECRET&ssl_ca_certs={certificate[0]}"
    )


async def generate(url: str) -> JobState:
    async with AsyncClient(url, prefix=PREFIX) as client:
        return (await client.result(await client.submit("hi", **SHORT), timeout=30)).state


@pytest.mark.parametrize("kind", ["plain_url", "tls_url"])
def test_user_password_database_and_prefix(
    kind: str, request: pytest.FixtureRequest, logins: PortServer, tiny_model: Path, tmp_path: Path
) -> None:
    url = request.getfixturevalue(kind)
    with (
        connect(url) as redis,
        worker_process("w", url, redis, tiny_model, tmp_path, prefix=PREFIX) as worker,
        Client(url, prefix=PREFIX) as client,
        Celery("plain", set_as_current=False) as app,
    ):
        wait_until(lambda: client.workers() or worker.process.poll() is not None, "the worker is ready")
        job_id = client.submit("hi", **SHORT)
        assert client.result(job_id, timeout=30).state is JobState.SUCCEEDED, worker.log.read_text()
        assert asyncio.run(generate(url)) is JobState.SUCCEEDED
        app.conf.update(celery_settings(url))
        sent = app.send_task("headrace.generate", ["hi"], SHORT, queue="headrace")
        assert sent.get(timeout=30)["state"] == "succeeded"
        assert redis.exists(f"{PREFIX}:job:{job_id}", f"celery-task-meta-{sent.id}") == 2
        with logins.client() as admin:
            assert set(admin.info("keyspace")) == {f"db{DATABASE}"}, "nothing went to another database"
            assert all(each["user"] in {"app", "admin"} for each in admin.client_list())
        assert "SECRET" not in worker.log.read_text()


def test_a_certificate_that_nobody_vouches_for_is_refused(tls_port: int) -> None:
    url = f"rediss://app:p%40ss%2FSECRET@127.0.0.1:{tls_port}/{DATABASE}"
    with Client(url) as client, pytest.raises(BrokerUnavailable, match="certificate"):
        client.workers()
    with Celery("plain", set_as_current=False) as app:
        app.conf.update(celery_settings(url))
        with app.connection() as connection, pytest.raises(Exception, match="certificate"):
            connection.connect()
    unchecked = f"{url}?ssl_cert_reqs=none&ssl_check_hostname=false"
    with Client(unchecked) as client:
        assert client.workers() == []


def test_a_wrong_password_is_said_and_not_shown(logins: PortServer) -> None:
    with Client(f"redis://app:SECRET@127.0.0.1:{logins.port}") as client:
        with pytest.raises(BrokerUnavailable, match="refuses the login") as refused:
            client.workers()
        assert "SECRET" not in str(refused.value)


def test_the_checks_need_no_config_command(plain_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with connect(plain_url) as redis, caplog.at_level(logging.WARNING):
        with pytest.raises(Exception, match="no permissions"):
            redis.config_get("maxmemory-policy")
        check_server(redis, plain_url)
    assert "appendonly" in caplog.text
