"""`headrace run`'s other half: an embedded server and a worker in one process of their own.

The parent talks to it in lines. It writes JSON to standard output:

    {"state": "server", "url": ...}      the server answers; jobs can be submitted
    {"state": "ready", "model": ...}     the model is loaded; jobs run
    {"state": "drained"}                 the answer to "drain": nothing runs any more
    {"state": "failed", "message": ..., "exit_code": ...}

and reads ``drain`` and ``stop`` from standard input. The end of standard input means ``stop``, so that nothing
is left behind when the parent dies, however it dies.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from ..producers.engine_flags import EngineFlags, with_engine_flags
from ..producers.exit_codes import BAD_INPUT, NO_BROKER
from ..producers.keys import Keys
from .embedded import EmbeddedServer, EmbeddedServerError
from .settings import WorkerSettings

logger = logging.getLogger(__name__)
cli = typer.Typer(add_completion=False)

STOP_AGAIN_SECONDS = 0.5


class _Parent:
    """The lines to and from the parent. Only this writes to the real standard output."""

    def __init__(self) -> None:
        self._output: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print goes to the log
        self._lock = threading.Lock()

    def say(self, state: str, **details: Any) -> None:
        """Send one line; a parent that is gone is no error, its silence ends us."""
        with self._lock:
            try:
                print(json.dumps({"state": state, **details}), file=self._output, flush=True)
            except BrokenPipeError:
                logger.warning("the parent is gone; %s is not said", state)


@cli.command()
@with_engine_flags
def main(
    *,
    directory: Annotated[Path, typer.Option("--directory")],
    engine: EngineFlags,
) -> None:
    """Run an embedded server and a worker for the parent process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Until Celery takes over, a stop unwinds this function, so that the server is stopped and waited for.
    signal.signal(signal.SIGTERM, _unwind)
    parent = _Parent()
    server = EmbeddedServer(directory)
    try:
        server.start()
    except EmbeddedServerError as error:
        parent.say("failed", message=str(error), exit_code=NO_BROKER)
        raise typer.Exit(NO_BROKER) from error
    try:
        parent.say("server", url=server.url)
        _serve(parent, server.url, engine)
    finally:
        # A stop that comes now must not interrupt the stopping.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.stop()


def _unwind(_number: int, _frame: Any) -> None:
    raise SystemExit(0)  # no library takes it for an error of its own


def _serve(parent: _Parent, url: str, engine_flags: EngineFlags) -> None:
    """Load the model and run a worker until the parent says stop."""
    # The engine is imported here: the server is up, and the parent busy submitting, while torch loads.
    from ..engine import Engine, EngineError  # noqa: PLC0415
    from .app import HeadraceApp  # noqa: PLC0415
    from .engine_settings import engine_config  # noqa: PLC0415
    from .local_engine import LocalEngine  # noqa: PLC0415
    from .service import WorkerService  # noqa: PLC0415

    stopped = threading.Event()
    service: list[WorkerService] = []
    threading.Thread(target=_listen, args=(parent, service, stopped), daemon=True).start()
    try:
        engine = LocalEngine(lambda: Engine.load(engine_config(engine_flags)))
    except EngineError as error:
        parent.say("failed", message=str(error), exit_code=BAD_INPUT)
        raise typer.Exit(BAD_INPUT) from error
    settings = WorkerSettings(redis_url=url, prefix=Keys.chosen().prefix, drain_grace_s=0)
    service.append(WorkerService(settings, engine))
    parent.say("ready", model=engine.model, max_model_len=engine.max_model_len)
    if not stopped.is_set():
        raise typer.Exit(HeadraceApp(service[0]).run())


def _listen(parent: _Parent, service: list[Any], stopped: threading.Event) -> None:
    """Act on the parent's lines; in a thread."""
    for line in sys.stdin:
        if line.strip() == "drain":
            if service:
                service[0].drain(grace_s=float("inf"))
            parent.say("drained")
        elif line.strip() == "stop":
            break
    stopped.set()
    while True:
        # Again and again: what the handler raises is lost where it interrupts a finaliser or a callback.
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(STOP_AGAIN_SECONDS)


if __name__ == "__main__":
    cli()
