"""One cluster of real processes for all tests here: whatever a test kills is started again for the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from headrace.producers import Client

from bench.fault_cluster import Cluster, ClusterSettings

from ..tiny_model import save_tiny_model
from .scenes import MAX_DELIVERIES, Scene


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server and two workers, with engines in processes of their own."""
    directory = tmp_path_factory.mktemp("faults")
    settings = ClusterSettings(workers=2, lease_s=2.0, drain_grace_s=2.0, max_deliveries=MAX_DELIVERIES)
    with Cluster(directory, save_tiny_model(directory / "tiny"), settings) as running:
        yield running


@pytest.fixture(scope="session")
def client(cluster: Cluster) -> Iterator[Client]:
    """A client of the server."""
    with Client(cluster.server.url) as connected:
        yield connected


@pytest.fixture(scope="session")
def whole_scene(cluster: Cluster, client: Client) -> Scene:
    """The cluster, and the text that a long job has where nothing happens."""
    cluster.wait_until_ready()
    return Scene.undisturbed(cluster, client)


@pytest.fixture
def scene(whole_scene: Scene) -> Scene:
    """The same, with all workers up and idle."""
    whole_scene.wait_until_idle()
    return whole_scene
