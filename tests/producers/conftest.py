"""One real server for all tests here; each test finds it empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace.producers import Client
from headrace.producers.connection import connect
from headrace.producers.keys import Keys
from headrace.producers.ledger import Ledger
from headrace.worker.embedded import EmbeddedServer
from redis import Redis

from ..tiny_model import save_tiny_model


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A Valkey server."""
    with EmbeddedServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def redis(server: EmbeddedServer) -> Iterator[Redis]:
    """A connection to the server, which is empty."""
    connection = connect(server.url)
    connection.flushall()
    yield connection
    connection.close()


@pytest.fixture
def url(server: EmbeddedServer, redis: Redis) -> str:
    """Address of the server, which is empty."""
    return server.url


@pytest.fixture
def ledger(redis: Redis) -> Ledger:
    """The ledger under the default prefix."""
    return Ledger(redis, Keys())


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """A client of the server."""
    with Client(url) as connected:
        yield connected


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model that loads in no time."""
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
