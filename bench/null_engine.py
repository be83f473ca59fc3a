"""An engine without a model: it answers at once, or one token a step. What is measured around it is the queue."""

from __future__ import annotations

import json
import queue
import threading
import time
from dataclasses import dataclass

from headrace.worker.answer_piece import AnswerPiece, HostListener, Progress

from .report import percentile

MODEL = "null"
_WORDS = (" the", " river", " of", " and", " water", " a", " under", ".", " stone", " in", " mill", " that", " runs")
_FIRST_ID, _NUM_IDS = 1_000, 48_000
"""Token ids are as long as a language model's."""


def token_id(position: int) -> int:
    """The token at a place of an answer."""
    return _FIRST_ID + position * 7919 % _NUM_IDS


def token_text(position: int) -> str:
    """Its text: four characters and a half on average."""
    return _WORDS[position % len(_WORDS)]


@dataclass
class _Answer:
    request_id: str
    length: int
    """Tokens that it will have."""
    given: int = 0


class NullEngine:
    """An :class:`headrace.worker.answer_piece.EngineHost` that computes nothing.

    Args:
        step_s: shortest time between two steps, each of which gives each request one token; None gives whole answers
            at once.
        max_num_seqs: as an engine's; a worker owns four times as many jobs.

    A request's ``max_tokens`` is the length of its answer.
    """

    restarts = False
    model = MODEL
    max_model_len = 1 << 20

    def __init__(self, *, step_s: float | None = None, max_num_seqs: int = 256) -> None:
        self.max_num_seqs = max_num_seqs
        self._step_s = step_s
        self._running: dict[str, _Answer] = {}
        self._inbox: queue.SimpleQueue[_Answer | str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="null-engine", daemon=True)
        self._tokens = 0
        self._peak_running = 0
        self._told_s: list[float] = []

    @property
    def ready(self) -> bool:
        """Always."""
        return True

    def start(self, listener: HostListener) -> None:
        """Begin to answer."""
        self._listener = listener
        self._thread.start()
        listener.on_ready()

    def add(self, request_id: str, request: str, progress: Progress | None) -> bool:  # noqa: ARG002
        """Have a request answered, from its beginning."""
        self._inbox.put(_Answer(request_id, json.loads(request)["max_tokens"]))
        return True

    def abort(self, request_id: str) -> None:
        """Drop a request."""
        self._inbox.put(request_id)

    def stop(self) -> None:
        """End after the current step."""
        self._inbox.put(None)
        self._thread.join()

    def describe(self) -> dict[str, str | int]:
        """Tokens so far, and how long the listener has kept the steps, in microseconds."""
        told = list(self._told_s)
        return {
            "generation_tokens": self._tokens,
            "peak_running": self._peak_running,
            "steps": len(told),
            "blocked_us_max": round(max(told, default=0) * 1e6),
            "blocked_us_p99": round(percentile(told, 99) * 1e6) if told else 0,
        }

    def _run(self) -> None:
        due = time.monotonic()
        while self._take_messages():
            due = max(due + (self._step_s or 0.0), time.monotonic())
            pieces = [self._piece(answer) for answer in self._running.values()]
            self._running = {name: answer for name, answer in self._running.items() if answer.given < answer.length}
            # The time of this thread alone would leave out what matters most: waiting for a lock.
            began = time.perf_counter()
            self._listener.on_pieces(pieces)
            self._told_s.append(time.perf_counter() - began)
            if self._step_s is not None:
                time.sleep(max(0.0, due - time.monotonic()))

    def _take_messages(self) -> bool:
        """Act on all messages that are there, waiting for one if there is nothing to do; False ends the thread."""
        begun = []
        while not (self._running and self._inbox.empty()):
            message = self._inbox.get()
            if message is None:
                return False
            if isinstance(message, str):
                self._running.pop(message, None)
                continue
            self._running[message.request_id] = message
            begun.append(message.request_id)
        if begun:
            self._listener.on_begun(begun)
            self._peak_running = max(self._peak_running, len(self._running))
        return True

    def _piece(self, answer: _Answer) -> AnswerPiece:
        """The next token of an answer, or all of it."""
        end = answer.length if self._step_s is None else answer.given + 1
        places = range(answer.given, end)
        answer.given = end
        self._tokens += len(places)
        finished = end == answer.length
        return AnswerPiece(
            answer.request_id,
            text="".join(map(token_text, places)),
            token_ids=list(map(token_id, places)),
            finish_reason="length" if finished else None,
            finished=finished,
            prompt_tokens=8,
        )
