"""The engine in a thread of its own, fed through an inbox.

That thread loads the model as well. OpenMP keeps a team of threads for every thread that has ever computed, and once
there are more of them than cores it has them sleep between any two operations instead of waiting awake: with a team
of the loading thread beside it, a small model on two cores is a fifth slower.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from ..engine import Engine, RequestError
from ..engine.resumption import CANNOT_RESUME
from ..producers.errors import InvalidRequest
from ..producers.results import ErrorInfo
from .answer_book import AnswerBook
from .answer_piece import HostListener, Progress
from .engine_request import EngineRequest

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Add:
    request_id: str
    request: EngineRequest
    progress: Progress | None


@dataclass(frozen=True)
class _Abort:
    request_id: str


class EngineThread:
    """Loads an engine, runs its steps, and never waits for anything but work.

    Args:
        load: called once, in this thread. The engine is used by this thread alone, except for its encoder.
        on_crash: called once, in this thread, if a step raises; no step follows.
    """

    def __init__(self, load: Callable[[], Engine], on_crash: Callable[[BaseException], None]) -> None:
        self._load = load
        self._loaded: Future[Engine] = Future()
        self._on_crash = on_crash
        self._book = AnswerBook()
        self._step_began: float | None = None
        self._inbox: queue.SimpleQueue[_Add | _Abort | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headrace-engine", daemon=True)

    @property
    def step_seconds(self) -> int:
        """How long the current step has been taking; 0 between two."""
        began = self._step_began
        return 0 if began is None else int(time.monotonic() - began)

    def load(self) -> Engine:
        """Start the thread and wait until it has the engine.

        Raises:
            EngineError: where the engine cannot be loaded.
        """
        self._thread.start()
        return self._loaded.result()

    def start(self, listener: HostListener) -> None:
        """Take requests, and tell of outputs, refusals and requests begun, in this thread."""
        self._listener = listener
        self._loaded.result().on_begun = listener.on_begun

    def add(self, request_id: str, request: EngineRequest, progress: Progress | None = None) -> None:
        """Hand a request to the engine."""
        self._inbox.put(_Add(request_id, request, progress))

    def abort(self, request_id: str) -> None:
        """Have the engine drop a request, in whatever state it is."""
        self._inbox.put(_Abort(request_id))

    def stop(self) -> None:
        """End after the current step."""
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._engine = self._load()
        except BaseException as error:
            self._loaded.set_exception(error)
            return
        self._loaded.set_result(self._engine)
        self._step_until_stopped()

    def _step_until_stopped(self) -> None:
        try:
            while self._take_messages():
                self._step_began = time.monotonic()
                outputs = self._engine.step()
                self._step_began = None
                if outputs:
                    self._listener.on_pieces(self._book.pieces(outputs))
        except BaseException as error:
            # Its message may quote a prompt, anybody's, so it is for those who ask for everything.
            where = "".join(traceback.format_tb(error.__traceback__))
            logger.error("the engine crashed: %s\n%s", crash_reason(error), where.rstrip())
            logger.debug("the engine crashed", exc_info=True)
            self._on_crash(error)

    def _take_messages(self) -> bool:
        """Act on all messages that are there, waiting for one if the engine is idle; False ends the thread."""
        while not (self._engine.has_work and self._inbox.empty()):
            message = self._inbox.get()
            if message is None:
                return False
            if isinstance(message, _Abort):
                self._engine.abort(message.request_id)
                self._book.close(message.request_id)
                continue
            try:
                self._add(message)
            except RequestError as error:
                self._listener.on_refused(message.request_id, bad_request(error))
        return True

    def _add(self, message: _Add) -> None:
        try:
            self._add_from(message, message.progress)
        except RequestError as error:
            if error.code != CANNOT_RESUME:
                raise
            logger.warning("request %s starts over: %s", message.request_id, error.message)
            self._listener.on_restarted(message.request_id)
            self._add_from(message, None)

    def _add_from(self, message: _Add, progress: Progress | None) -> None:
        request = message.request
        published = None if progress is None else progress.token_ids
        self._engine.add(message.request_id, request.prompt_token_ids, request.params, request.options, published)
        self._book.open(message.request_id, request, progress)
        self._listener.on_waiting(message.request_id)


def crash_reason(error: BaseException) -> str:
    """What may be said of a crash to everybody: its kind, and of memory that ran out how much was wanted."""
    kind = type(error).__name__
    return f"{kind}: {error}" if isinstance(error, torch.OutOfMemoryError) else kind


def bad_request(error: RequestError | InvalidRequest) -> ErrorInfo:
    """A refusal in the form that results carry."""
    return ErrorInfo(code=error.code, message=error.message, param=error.param, status_code=400)
