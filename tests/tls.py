"""TLS in front of a real server, as a terminator does it: the embedded server is built without."""

from __future__ import annotations

import contextlib
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def self_signed(directory: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that is its own authority, and its key; skips where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on the PATH makes certificates")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-out", certificate, "-keyout", key], check=True, capture_output=True)
    return certificate, key


@contextmanager
def tls_in_front_of(port: int, certificate: Path, key: Path) -> Iterator[int]:
    """A loopback port that speaks TLS and passes everything on to another one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    class Terminator(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as plain:
                self.request.settimeout(10)
                with context.wrap_socket(self.request, server_side=True) as encrypted:
                    encrypted.settimeout(None)
                    back = threading.Thread(target=_pass_on, args=(plain, encrypted), daemon=True)
                    back.start()
                    _pass_on(encrypted, plain)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Terminator) as listener:
        listener.daemon_threads = True
        listener.block_on_close = False
        threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield listener.server_address[1]
        finally:
            listener.shutdown()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until one side is done; then end both."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
