"""An engine in a process of its own, brought back whenever it dies.

The two talk over a socket in lines of JSON. The worker says

    {"flags": {...}}                         once: what to load
    {"add": [request_id, request, progress]}
    {"abort": request_id}

and the end of the connection means stop. The engine's process (:mod:`headrace.worker.engine_child`) says

    {"loaded": {"model": ..., "max_model_len": ..., "max_num_seqs": ...}}     or {"failed": [message, exit_code]}
    {"begun": [request_id, ...]}     before it encodes or computes them, so that a crash knows its suspects
    {"waiting": request_id}          once it is encoded and none of them any more
    {"pieces": [...]}    {"refused": [request_id, error]}    {"restarted": request_id}
    {"figures": {...}}   now and then
"""

from __future__ import annotations

import json
import logging
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, Any

from pydantic import TypeAdapter

from ..producers.results import ErrorInfo
from .answer_piece import AnswerPiece, HostListener, Progress

logger = logging.getLogger(__name__)

PIECES = TypeAdapter(list[AnswerPiece])
_BACKOFF_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
_STABLE_SECONDS = 60.0
"""An engine that lived so long was fine: the next death is the first again."""
_STOP_SECONDS = 10.0
_STEP_FACTOR = 10
"""A step may take so many times longer than an engine may be silent: a large model on a slow machine is not hanging."""


class EngineLoadError(Exception):
    """The engine cannot be started.

    Attributes:
        exit_code: what the command line should exit with.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class EngineProcess:
    """An :class:`EngineHost` around a child process. Its death takes nothing with it but the engine.

    Args:
        flags: the engine's settings, as :class:`headrace.producers.engine_flags.EngineFlags` has them.
        silent_s: an engine that has said nothing for so long hangs, and is ended.
    """

    restarts = True

    def __init__(self, flags: Mapping[str, Any], *, silent_s: float = 30.0) -> None:
        self._flags = dict(flags)
        self._silent_s = silent_s
        self._listener: HostListener | None = None
        self._outbox: queue.SimpleQueue[bytes | None] | None = None
        self._heard_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._figures: dict[str, str | int] = {}
        self._stopping = threading.Event()
        self._loaded = threading.Event()
        self._failure: EngineLoadError | None = None
        self._thread = threading.Thread(target=self._supervise, name="headrace-engine-process", daemon=True)

    @property
    def ready(self) -> bool:
        """Whether there is an engine that takes requests."""
        return self._outbox is not None and self._listener is not None

    @property
    def pid(self) -> int | None:
        """Process id of the engine, while there is one."""
        return None if self._process is None else self._process.pid

    def load(self) -> None:
        """Start the process and wait until the model is loaded.

        Raises:
            EngineLoadError: where it cannot be.
        """
        self._thread.start()
        self._loaded.wait()
        if self._failure is not None:
            raise self._failure

    def start(self, listener: HostListener) -> None:
        """Take requests."""
        self._listener = listener
        listener.on_ready()

    def add(self, request_id: str, request: str, progress: Progress | None) -> bool:
        """Have a request answered."""
        resumed = None if progress is None else [progress.token_ids, progress.texts]
        return self._send({"add": [request_id, request, resumed]})

    def abort(self, request_id: str) -> None:
        """Drop a request."""
        self._send({"abort": request_id})

    def describe(self) -> dict[str, str | int]:
        """The figures that the engine gave last."""
        return {**self._figures, "engine_pid": self.pid or 0}

    def stop(self) -> None:
        """End the process after its current step."""
        self._stopping.set()
        if (outbox := self._outbox) is not None:
            outbox.put(None)
        elif (process := self._process) is not None:
            process.kill()  # it is loading
        if self._thread.is_alive():
            self._thread.join()

    def _send(self, message: Mapping[str, Any]) -> bool:
        """Have a message sent; returns whether there is an engine to send it to."""
        outbox = self._outbox
        if outbox is None:
            return False
        outbox.put(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        return True

    def _supervise(self) -> None:
        """Start the engine, read what it says until it dies, and again; in a thread."""
        deaths = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            reason = self._run_once()
            if self._stopping.is_set():
                return
            if not self._loaded.is_set():
                self._failure = self._failure or EngineLoadError(reason, 1)
                self._loaded.set()
                return
            deaths = 1 if time.monotonic() - started > _STABLE_SECONDS else deaths + 1
            delay = _BACKOFF_SECONDS[min(deaths - 1, len(_BACKOFF_SECONDS) - 1)]
            logger.error("%s; starting it again in %.0f s", reason, delay)
            if self._listener is not None:
                self._listener.on_crash(reason)
            self._stopping.wait(delay)

    def _run_once(self) -> str:
        """One life of the engine's process; returns how it ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", "headrace.worker.engine_child", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal drains the worker; the engine goes on till then
            )
        outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        outbox.put(json.dumps({"flags": self._flags}).encode() + b"\n")
        threads = [
            threading.Thread(target=_send_all, args=(ours, outbox), name="headrace-to-engine", daemon=True),
            threading.Thread(target=self._watch, args=(process,), name="headrace-watchdog", daemon=True),
        ]
        self._heard_at = time.monotonic()
        for thread in threads:
            thread.start()
        with ours.makefile("rb") as lines:
            try:
                self._read(outbox, lines)
            except OSError as error:
                logger.debug("the connection to the engine broke: %s", error)
        self._outbox, self._figures = None, {}
        outbox.put(None)
        try:
            status = process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        for thread in threads:
            thread.join()
        ours.close()
        self._process = None
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        return f"the engine's process {how}"

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """End an engine that says nothing any more, or whose step does not end; in a thread."""
        while process.poll() is None:
            silent = time.monotonic() - self._heard_at
            in_step = int(self._figures.get("step_seconds", 0))
            if (
                self._loaded.is_set()
                and self._outbox is not None
                and max(silent, in_step / _STEP_FACTOR) > self._silent_s
            ):
                logger.error("the engine has said nothing for %.0f s, in a step of %d s; ending it", silent, in_step)
                process.kill()
                return
            time.sleep(0.2)

    def _read(self, outbox: queue.SimpleQueue[bytes | None], lines: IO[bytes]) -> None:
        for line in lines:
            self._heard_at = time.monotonic()
            message: dict[str, Any] = json.loads(line) if not line.startswith(b'{"pieces":') else {}
            if not message:
                self._told().on_pieces(PIECES.validate_json(line[len(b'{"pieces":') : -2]))
            elif "begun" in message:
                self._told().on_begun(message["begun"])
            elif "waiting" in message:
                self._told().on_waiting(message["waiting"])
            elif "figures" in message:
                self._figures = message["figures"]
            elif "refused" in message:
                request_id, error = message["refused"]
                self._told().on_refused(request_id, ErrorInfo.model_validate(error))
            elif "restarted" in message:
                self._told().on_restarted(message["restarted"])
            elif "loaded" in message:
                self._take_loaded(outbox, message["loaded"])
            elif "failed" in message:
                self._failure = EngineLoadError(*message["failed"])

    def _told(self) -> HostListener:
        assert self._listener is not None, "the engine speaks of requests before there are any"
        return self._listener

    def _take_loaded(self, outbox: queue.SimpleQueue[bytes | None], loaded: Mapping[str, Any]) -> None:
        self.model: str = loaded["model"]
        self.max_model_len: int = loaded["max_model_len"]
        self.max_num_seqs: int = loaded["max_num_seqs"]
        self._outbox = outbox
        if self._stopping.is_set():
            outbox.put(None)
        again = self._loaded.is_set()
        self._loaded.set()
        if again and self._listener is not None:
            self._listener.on_ready()


def _send_all(connection: socket.socket, outbox: queue.SimpleQueue[bytes | None]) -> None:
    """Send messages until there is None, then hang up; in a thread."""
    try:
        while (line := outbox.get()) is not None:
            connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        logger.debug("the engine takes no messages: %s", error)  # the reader sees its end
