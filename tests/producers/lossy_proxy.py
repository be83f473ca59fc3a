"""A way to the server on which a reply gets lost: the server has done what it was asked, and nobody hears of it."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry


class LossyProxy:
    """Passes bytes between clients and the server's Unix socket, until it is told to lose a reply.

    Args:
        server: the socket.

    Attributes:
        lost: replies that never arrived.
    """

    def __init__(self, server: Path) -> None:
        self.lost = 0
        self._server = server
        self._losing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> LossyProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            _close(connection)

    def lose_next_reply(self) -> None:
        """Cut the connection instead of passing on the reply to the next script."""
        self._losing = True

    @contextmanager
    def client(self) -> Iterator[Redis]:
        """A client that goes this way, and does not call again by itself."""
        port = self._listener.getsockname()[1]
        with Redis(port=port, decode_responses=True, retry=Retry(NoBackoff(), 0)) as connected:
            yield connected

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self._server))
            self._connections += [client, server]
            threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        loses = False
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ)
            selector.register(server, selectors.EVENT_READ)
            try:
                while True:
                    for key, _ in selector.select():
                        data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                        if not data:
                            return
                        if key.fileobj is client:
                            if self._losing and b"EVALSHA" in data:
                                self._losing, loses = False, True
                            server.sendall(data)
                        elif loses:
                            self.lost += 1
                            return
                        else:
                            client.sendall(data)
            except OSError:
                return  # one of them hung up
            finally:
                _close(client)
                _close(server)


def _close(connection: socket.socket) -> None:
    """Hang up, so that whoever waits at the other end hears of it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
