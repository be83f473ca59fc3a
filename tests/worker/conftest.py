"""One real server and one tiny model for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace.producers import Client
from headrace.producers.connection import connect
from headrace.worker.embedded import EmbeddedServer
from redis import Redis

from ..tiny_model import save_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model that loads in no time."""
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A Valkey server; each module has its own, so that no worker of another one takes its jobs."""
    with EmbeddedServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def redis(server: EmbeddedServer) -> Iterator[Redis]:
    """A connection to the server."""
    connection = connect(server.url)
    yield connection
    connection.close()


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[Client]:
    """A client of the server."""
    with Client(server.url) as connected:
        yield connected
