"""The engine in a thread of its own, fed through an inbox."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ..engine import Engine, EngineStats, RequestError, RequestOutput
from ..engine.scheduler import Scheduler
from .engine_request import EngineRequest

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Add:
    request_id: str
    request: EngineRequest


@dataclass(frozen=True)
class _Abort:
    request_id: str


class EngineThread:
    """Runs an engine's steps and never waits for anything but work.

    Args:
        engine: used by this thread alone from :meth:`start` on, except for its encoder.
        on_outputs: called in this thread after each step; must not block.
        on_refused: called in this thread with a request that the engine refused.
        on_crash: called once, in this thread, if a step raises; no step follows.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        on_outputs: Callable[[list[RequestOutput]], None],
        on_refused: Callable[[str, RequestError], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._engine = engine
        self._on_outputs = on_outputs
        self._on_refused = on_refused
        self._on_crash = on_crash
        self._inbox: queue.SimpleQueue[_Add | _Abort | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headrace-engine", daemon=True)

    @property
    def stats(self) -> EngineStats:
        """The engine's counters; reading them needs no lock."""
        return self._engine.stats

    @property
    def scheduler(self) -> Scheduler:
        """The engine's scheduler, for reading its lengths and counters only."""
        return self._engine.scheduler

    def start(self) -> None:
        """Begin to step."""
        self._thread.start()

    def add(self, request_id: str, request: EngineRequest) -> None:
        """Hand a request to the engine."""
        self._inbox.put(_Add(request_id, request))

    def abort(self, request_id: str) -> None:
        """Have the engine drop a request, in whatever state it is."""
        self._inbox.put(_Abort(request_id))

    def stop(self) -> None:
        """End after the current step."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._take_messages():
                if outputs := self._engine.step():
                    self._on_outputs(outputs)
        except BaseException as error:
            logger.exception("the engine crashed")
            self._on_crash(error)

    def _take_messages(self) -> bool:
        """Act on all messages that are there, waiting for one if the engine is idle; False ends the thread."""
        while not (self._engine.has_work and self._inbox.empty()):
            message = self._inbox.get()
            if message is None:
                return False
            if isinstance(message, _Abort):
                self._engine.abort(message.request_id)
                continue
            try:
                request = message.request
                self._engine.add(message.request_id, request.prompt_token_ids, request.params, request.options)
            except RequestError as error:
                self._on_refused(message.request_id, error)
        return True
