"""Real servers on loopback ports, with settings of one's own; a primary with a replica and sentinels."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.worker.embedded import server_binary
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError
from redis.retry import Retry

from .support import wait_until


def free_port() -> int:
    """A loopback port on which nobody listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port: int = listener.getsockname()[1]
    return port


@dataclass
class PortServer:
    """A server that listens on a loopback port."""

    port: int
    process: subprocess.Popen[bytes]
    user: str | None
    password: str | None

    def client(self) -> Redis:
        """A connection as the user who started it; nothing is tried twice."""
        return Redis(
            port=self.port,
            username=self.user,
            password=self.password or "",
            decode_responses=True,
            retry=Retry(NoBackoff(), 0),
        )


@contextmanager
def port_server(
    directory: Path,
    settings: dict[str, str],
    *arguments: str,
    user: str | None = None,
    password: str | None = None,
    loaded: bool = True,
) -> Iterator[PortServer]:
    """Start a server and wait until it answers a user; it is killed at the end, if it lives.

    Args:
        settings: lines of its configuration.
        loaded: wait until it has loaded its data as well.
    """
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    lines = {"port": str(port), "bind": "127.0.0.1", "dir": str(directory), **settings}
    if password:
        lines["requirepass"] = password
    configuration = directory / "server.conf"
    configuration.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [server_binary(), str(configuration), *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    server = PortServer(port, process, user, password)
    try:

        def answers() -> bool:
            assert process.poll() is None, (directory / "server.log").read_text()
            with server.client() as client:
                try:
                    return bool(client.ping())
                except AuthenticationError:
                    raise
                except RedisError as error:
                    return isinstance(error, BusyLoadingError) and not loaded

        wait_until(answers, f"the server on port {port} answers")
        yield server
    finally:
        process.kill()
        process.wait()


@dataclass
class Failover:
    """A primary, its replica, and a sentinel that makes one of the other."""

    NAME = "main"
    primary: PortServer
    replica: PortServer
    sentinel: PortServer

    def where_is_the_primary(self) -> int:
        """The primary's port as the sentinel names it."""
        with self.sentinel.client() as client:
            found = client.sentinel_get_master_addr_by_name(self.NAME)
        return int(found[1])


@contextmanager
def failover_servers(directory: Path, password: str, sentinel_password: str) -> Iterator[Failover]:
    """Start the three, and wait until the sentinel could promote the replica."""
    data = {"save": '""', "masterauth": password, "repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}
    with ExitStack() as stack:
        primary = stack.enter_context(port_server(directory / "primary", data, password=password))
        following = {**data, "replicaof": f"127.0.0.1 {primary.port}"}
        replica = stack.enter_context(port_server(directory / "replica", following, password=password))
        with replica.client() as client:
            wait_until(lambda: client.info("replication")["master_link_status"] == "up", "the replica follows")
        watching = {
            "sentinel monitor": f"{Failover.NAME} 127.0.0.1 {primary.port} 1",
            "sentinel auth-pass": f"{Failover.NAME} {password}",
            "sentinel down-after-milliseconds": f"{Failover.NAME} 500",
            "sentinel failover-timeout": f"{Failover.NAME} 3000",
        }
        sentinel = stack.enter_context(
            port_server(directory / "sentinel", watching, "--sentinel", password=sentinel_password)
        )
        with sentinel.client() as client:

            def knows_the_replica() -> bool:
                known = client.sentinel_slaves(Failover.NAME)
                return bool(known) and all(each["master-link-status"] == "ok" for each in known)

            wait_until(knows_the_replica, "the sentinel knows the replica")
        yield Failover(primary, replica, sentinel)
