"""An engine in this process: one thread encodes requests, one computes."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ..engine import Engine, RequestError
from ..producers.errors import InvalidRequest
from ..producers.results import ErrorInfo
from ..producers.schema import GenerationRequest
from .answer_piece import HostListener, Progress
from .engine_request import RequestTranslator
from .engine_thread import EngineThread, bad_request, crash_reason

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Waiting:
    request_id: str
    request: str
    progress: Progress | None


class LocalEngine:
    """An :class:`EngineHost` around an engine of this process. After a crash it is of no use any more.

    Args:
        load: loads the engine and its model; called once, in the engine's thread.

    Raises:
        EngineError: where the engine cannot be loaded.
    """

    restarts = False

    def __init__(self, load: Callable[[], Engine]) -> None:
        self._thread = EngineThread(load, self._crash)
        self._engine = engine = self._thread.load()
        self.model = engine.name
        self.max_model_len = engine.max_model_len
        self.max_num_seqs = engine.scheduler.max_num_seqs
        self._translator = RequestTranslator(engine)
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._encoder = threading.Thread(target=self._encode_all, name="headrace-encoder", daemon=True)
        self._dropped: set[str] = set()
        self._encoding: set[str] = set()
        self._lock = threading.Lock()
        self._crashed = False

    @property
    def ready(self) -> bool:
        """Whether the engine steps."""
        return not self._crashed

    def start(self, listener: HostListener) -> None:
        """Begin to encode and to step."""
        self._listener = listener
        self._thread.start(listener)
        self._encoder.start()
        listener.on_ready()

    def add(self, request_id: str, request: str, progress: Progress | None) -> bool:
        """Have a request answered. Prompts and grammars are seen to in a thread of their own, not in the step loop."""
        with self._lock:
            self._encoding.add(request_id)
        self._waiting.put(_Waiting(request_id, request, progress))
        return not self._crashed

    def abort(self, request_id: str) -> None:
        """Drop a request."""
        with self._lock:
            if request_id in self._encoding:
                self._dropped.add(request_id)
        self._thread.abort(request_id)

    def stop(self) -> None:
        """End after the current step."""
        self._waiting.put(None)
        self._encoder.join()
        self._thread.stop()

    def describe(self) -> dict[str, str | int]:
        """The engine's and its scheduler's figures; reading them needs no lock."""
        engine, scheduler = self._engine.stats, self._engine.scheduler
        stats = scheduler.stats
        return {
            "generation_tokens": engine.generation_tokens,
            "prompt_tokens": engine.prompt_tokens,
            "forced_tokens": engine.forced_tokens,
            "peak_running": engine.peak_running,
            "engine_steps": engine.steps,
            "step_seconds": self._thread.step_seconds,
            "engine_running": len(scheduler.running),
            "engine_waiting": len(scheduler.waiting),
            "engine_preempted": len(scheduler.preempted),
            "kv_blocks_used": scheduler.pool.num_held,
            "kv_blocks": scheduler.pool.num_blocks,
            "prefix_cache_queries": stats.prefix_cache_queries,
            "prefix_cache_hits": stats.prefix_cache_hits,
            **{f"preemptions_{method.value}": count for method, count in stats.preemptions.items()},
        }

    def _encode_all(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            self._encode(waiting)

    def _encode(self, waiting: _Waiting) -> None:
        request_id = waiting.request_id
        self._listener.on_begun([request_id])
        try:
            translated = self._translator.translate(GenerationRequest.model_validate_json(waiting.request))
        except (RequestError, InvalidRequest) as error:
            self._listener.on_refused(request_id, bad_request(error))
        except Exception as error:
            # Whatever a prompt may do to a template or a tokenizer, it must not stop the others. Its text stays
            # out of the log: the messages of such errors may quote it.
            logger.error("request %s cannot be encoded: %s", request_id, type(error).__name__)
            message = f"the request cannot be encoded: {type(error).__name__}: {error}"
            self._listener.on_refused(request_id, ErrorInfo(code="encoding_failed", message=message, status_code=422))
        else:
            with self._lock:
                self._encoding.discard(request_id)
                dropped = request_id in self._dropped
            if not dropped:
                self._thread.add(request_id, translated, waiting.progress)
        finally:
            with self._lock:
                self._encoding.discard(request_id)
                self._dropped.discard(request_id)

    def _crash(self, error: BaseException) -> None:
        self._crashed = True
        self._listener.on_crash(f"the engine failed: {crash_reason(error)}")
