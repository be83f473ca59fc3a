"""A server and a worker of one's own, for the length of a run, in a process beside this one."""

from __future__ import annotations

import importlib.util
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .engine_flags import EngineFlags
from .errors import HeadraceError
from .exit_codes import NO_WORKER

_STOP_SECONDS = 30.0


class LocalStackError(HeadraceError):
    """The server or the worker did not start, or died.

    Attributes:
        exit_code: for the command that needed it.
    """

    def __init__(self, message: str, exit_code: int = NO_WORKER) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class LocalStack:
    """Starts ``headrace.worker.embedded_host`` and talks to it; see there for the protocol.

    The other process has its own session, so Ctrl-C reaches only this one, and it ends when this one does.

    Args:
        directory: for the server's data and the log; a later stack over the same directory finds the jobs again.
        flags: the engine's.
    """

    def __init__(self, directory: Path, flags: EngineFlags) -> None:
        self.directory = directory
        self.log = directory / "worker.log"
        self._flags = flags
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def start(self) -> str:
        """Start both, and wait for the server.

        Returns:
            The server's URL. The worker loads its model meanwhile; see :meth:`poll`.

        Raises:
            LocalStackError: where the parts are not installed, or do not start.
        """
        missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
        if missing:
            raise LocalStackError(
                f"this machine has no {' and no '.join(missing)}, so it cannot run a model: install "
                "headrace[worker,embedded], or give --redis the URL of a Redis whose workers can"
            )
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = [sys.executable, "-m", "headrace.worker.embedded_host", "--directory", str(self.directory)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *self._flags.arguments()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._read, name="headrace-stack", daemon=True).start()
        line = self._checked(self._lines.get())
        while line["state"] != "server":
            line = self._checked(self._lines.get())
        return str(line["url"])

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def wait_until_ready(self, given_up: Callable[[], bool]) -> str | None:
        """Wait until the model is loaded.

        Args:
            given_up: asked a few times a second; ends the wait when true.

        Returns:
            The model's name, or None where the wait was given up.

        Raises:
            LocalStackError: where the worker failed or died.
        """
        while not given_up():
            try:
                line = self._checked(self._lines.get(timeout=0.2))
            except queue.Empty:
                continue
            if line["state"] == "ready":
                return str(line["model"])
        return None

    def poll(self) -> str | None:
        """The next thing that the other process said: ``ready``, ``drained``, or None.

        Raises:
            LocalStackError: where it failed or died.
        """
        try:
            return str(self._checked(self._lines.get_nowait())["state"])
        except queue.Empty:
            return None

    def _checked(self, line: dict[str, Any] | None) -> dict[str, Any]:
        """A line that is no bad news; None is the end of all lines."""
        if line is None:
            raise self._died()
        if line["state"] == "failed":
            raise LocalStackError(line["message"], line["exit_code"])
        return line

    def _died(self) -> LocalStackError:
        assert self._process is not None
        status = self._process.wait()
        return LocalStackError(f"the worker died (status {status}); its log is {self.log}")

    def drain(self) -> None:
        """Have the worker start nothing more; :meth:`poll` gives ``drained`` when nothing runs."""
        self._say("drain")

    def _say(self, word: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(word + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None

    def stop(self) -> None:
        """Stop both. The data stays. Stopping twice is harmless."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
