"""The embedded server: private, alone in its directory, and gone with its parent."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
from pathlib import Path

import pytest
from headrace.producers.connection import connect
from headrace.worker.embedded import EmbeddedServer, EmbeddedServerError

from ..support import alive, started, wait_until


def sockets_of(pid: int) -> set[str]:
    """Inodes of a process's open sockets."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            kind, _, inode = str(entry.readlink()).partition(":")
        except FileNotFoundError:  # closed meanwhile
            continue
        if kind == "socket":
            inodes.add(inode.strip("[]"))
    return inodes


def internet_sockets_of(pid: int) -> set[str]:
    """Those of them that are TCP."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        if path.exists():
            inodes |= {line.split()[9] for line in path.read_text().splitlines()[1:]}
    return inodes & sockets_of(pid)


def test_the_check_for_open_ports_sees_open_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)):
        assert internet_sockets_of(os.getpid())


def test_it_opens_no_port_and_its_directory_is_private(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data") as server:
        assert server.pid is not None
        assert sockets_of(server.pid)
        assert internet_sockets_of(server.pid) == set()
        for place in (server.directory, server.socket.parent):
            assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
    assert not server.socket.exists()


def test_a_directory_that_was_open_is_closed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    with EmbeddedServer(tmp_path / "data") as server:
        assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700


def test_a_path_too_long_for_a_socket(tmp_path: Path) -> None:
    directory = tmp_path / ("deep" * 20) / ("deeper" * 10)
    with EmbeddedServer(directory) as server, connect(server.url) as redis:
        assert directory not in server.socket.parents
        assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
        redis.set("key", "value")
        assert EmbeddedServer(directory).url == server.url
    with EmbeddedServer(directory) as server, connect(server.url) as redis:
        assert redis.get("key") == "value"


def test_a_second_server_on_the_directory_is_refused(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data") as server:
        second = EmbeddedServer(tmp_path / "data")
        with pytest.raises(EmbeddedServerError, match=r"^another run is using [^\n]*data; wait for it, or [^\n]*$"):
            second.start()
        second.stop()
        with connect(server.url) as redis:
            assert redis.ping(), "the first one is not harmed"
    second.start()
    second.stop()


def test_data_survives_a_restart_and_a_kill(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "data")
    for number, number_of_signal in enumerate((signal.SIGTERM, signal.SIGKILL)):
        server.start()
        with connect(server.url) as redis:
            assert redis.dbsize() == number
            redis.set(f"key{number}", "value")
        assert server.pid is not None
        os.kill(server.pid, number_of_signal)
        wait_until(lambda: not alive(server.pid or 0), "the server has ended")
        server.stop()
    with server, connect(server.url) as redis:
        assert redis.mget("key0", "key1") == ["value", "value"]


def test_a_server_that_cannot_start_says_where_its_log_is(tmp_path: Path) -> None:
    (tmp_path / "data" / "appendonlydir").mkdir(parents=True)
    (tmp_path / "data" / "appendonlydir" / "appendonly.aof.manifest").write_text("broken\n")
    with pytest.raises(EmbeddedServerError, match=r"did not start; its log is .*server\.log"):
        EmbeddedServer(tmp_path / "data").start()


PARENT = """
import sys, time
from pathlib import Path
from headrace.worker.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""


def test_it_ends_with_its_parent_however_that_ends(tmp_path: Path) -> None:
    with started(sys.executable, "-c", PARENT, tmp_path / "data", cwd=tmp_path) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
        parent.wait()
        wait_until(lambda: not alive(pid), "the server is gone")
    with EmbeddedServer(tmp_path / "data"):
        """The directory is free again."""
