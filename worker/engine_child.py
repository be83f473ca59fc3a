"""The engine's own process: loads a model, answers requests, and tells the worker; see :mod:`.engine_process`."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..producers.engine_flags import EngineFlags
from ..producers.exit_codes import BAD_INPUT
from ..producers.results import ErrorInfo
from .answer_piece import AnswerPiece, Progress
from .engine_process import PIECES

logger = logging.getLogger(__name__)

FIGURES_SECONDS = 0.5
_BUFFER_BYTES = 4 << 20
_PR_SET_PDEATHSIG = 1


class Connection:
    """The worker's end of the line, as an :class:`HostListener`. What a step produced is sent by another thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._pieces: queue.SimpleQueue[list[AnswerPiece] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send_pieces, name="headrace-pieces", daemon=True)
        self._thread.start()

    def say(self, message: dict[str, Any]) -> None:
        """Send one message; a worker that is gone ends this process."""
        self._send(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def on_pieces(self, pieces: list[AnswerPiece]) -> None:
        """Have what a step produced sent, without waiting for it."""
        self._pieces.put(pieces)

    def on_begun(self, request_ids: list[str]) -> None:
        """Say it now: what is computed next may be the end of this process."""
        self.say({"begun": request_ids})

    def on_waiting(self, request_id: str) -> None:
        """Say that a request waits for its turn."""
        self.say({"waiting": request_id})

    def on_refused(self, request_id: str, error: ErrorInfo) -> None:
        """Say that the model cannot answer a request."""
        self.say({"refused": [request_id, error.model_dump(exclude_none=True)]})

    def on_restarted(self, request_id: str) -> None:
        """Say that a request begins again."""
        self.say({"restarted": request_id})

    def on_ready(self) -> None:
        """The worker knows from what is said when the model is loaded."""

    def on_crash(self, reason: str) -> None:
        """End this process, with all that was produced before said."""
        logger.error("%s", reason)
        self._pieces.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(5)
        os._exit(1)

    def _send_pieces(self) -> None:
        while (pieces := self._pieces.get()) is not None:
            self._send(b'{"pieces":' + PIECES.dump_json(pieces, exclude_defaults=True) + b"}\n")

    def _send(self, line: bytes) -> None:
        with self._lock:
            try:
                self._connection.sendall(line)
            except OSError:
                os._exit(0)  # nobody is there to answer for


def main() -> int:
    """Serve the worker at the other end of the socket until it hangs up."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the worker decides when this process ends
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    lines = connection.makefile("rb")
    flags = EngineFlags(**json.loads(lines.readline())["flags"])
    if flags.tenants is not None:
        flags = replace(flags, tenants=Path(flags.tenants))
    worker = Connection(connection)

    from ..engine import Engine, EngineError  # noqa: PLC0415  # the slow part, once the worker is heard
    from .engine_settings import engine_config  # noqa: PLC0415
    from .local_engine import LocalEngine  # noqa: PLC0415

    try:
        engine = LocalEngine(lambda: Engine.load(engine_config(flags)))
    except EngineError as error:
        worker.say({"failed": [str(error), BAD_INPUT]})
        return BAD_INPUT
    engine.start(worker)
    worker.say(
        {
            "loaded": {
                "model": engine.model,
                "max_model_len": engine.max_model_len,
                "max_num_seqs": engine.max_num_seqs,
            }
        }
    )
    threading.Thread(target=_tell_figures, args=(worker, engine), daemon=True).start()
    for line in lines:
        message = json.loads(line)
        if "add" in message:
            request_id, request, resumed = message["add"]
            engine.add(request_id, request, _progress(resumed))
        else:
            engine.abort(message["abort"])
    return 0


def _progress(resumed: list[dict[str, Any]] | None) -> Progress | None:
    """Where a request stands; JSON has made texts of the indexes."""
    if resumed is None:
        return None
    token_ids, texts = resumed
    return Progress({int(index): ids for index, ids in token_ids.items()}, {int(i): t for i, t in texts.items()})


def _tell_figures(worker: Connection, engine: Any) -> None:
    while True:
        worker.say({"figures": engine.describe()})
        time.sleep(FIGURES_SECONDS)


if __name__ == "__main__":
    # What is still being computed is the worker's no more: it has hung up.
    status = main()
    logging.shutdown()
    os._exit(status)
