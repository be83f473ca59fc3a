"""Writes what the engine produced into the ledger: deltas as they come, results at the end.

The step loop hands over its outputs and goes on. One thread coalesces them for a few milliseconds and writes
all jobs in one pipeline. A lost connection loses nothing: the same writes are repeated until they succeed, and
the ledger recognises a repeated one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from redis.exceptions import RedisError

from ..engine import FinishReason, RequestOutput
from ..producers.connection import reason_of
from ..producers.events import TERMINAL_KINDS, delta_document
from ..producers.ledger import Ledger
from ..producers.results import ErrorInfo, JobResult, JobState, TokenLogprob
from .answers import take_output, token_logprobs
from .inflight import InflightJobs, OwnedJob

logger = logging.getLogger(__name__)

_RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0)


@dataclass
class _Piece:
    """What is still to be written of one answer."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None


@dataclass
class _Pending:
    """What is still to be written of one job."""

    pieces: dict[int, _Piece] = field(default_factory=dict)
    """By the answer's index."""
    result: JobResult | None = None


@dataclass(frozen=True)
class _Write:
    """One command of the pipeline, with the job that it is about."""

    job: OwnedJob
    document: str
    seq: int = 0
    result: JobResult | None = None
    """None for a delta."""


class Publisher:
    """The one writer of this worker's jobs.

    Args:
        ledger: where to write.
        inflight: the jobs that this worker owns; one that is not there any more is not written.
        model: name for the results.
        flush_s: how long outputs are gathered before they are written.
        on_ended: called in the publisher's thread with each job that this worker ended.
        on_lost: called in the publisher's thread with the request id of each job whose write was refused.
    """

    def __init__(
        self,
        ledger: Ledger,
        inflight: InflightJobs,
        *,
        model: str,
        flush_s: float,
        on_ended: Callable[[JobResult], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.events_published = 0
        self.fenced_writes = 0
        self._ledger = ledger
        self._inflight = inflight
        self._model = model
        self._flush_s = flush_s
        self._on_ended = on_ended
        self._on_lost = on_lost
        self._pending: dict[str, _Pending] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-publisher", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is there and end. Writes that Redis does not take are given up after one more try."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()

    def offer(self, outputs: Iterable[RequestOutput]) -> None:
        """Take a step's outputs. Never blocks on Redis."""
        with self._lock:
            for output in outputs:
                job = self._inflight.get(output.request_id)
                if job is not None:
                    self._gather(job, output)
        self._wake.set()

    def fail(self, request_id: str, error: ErrorInfo) -> None:
        """End a job without an answer."""
        with self._lock:
            job = self._inflight.get(request_id)
            if job is not None:
                pending = self._pending.setdefault(request_id, _Pending())
                pending.result = self._result(job, JobState.FAILED, error=error)
        self._wake.set()

    def _gather(self, job: OwnedJob, output: RequestOutput) -> None:
        pending = self._pending.setdefault(output.request_id, _Pending())
        text = output.text if output.index in job.choices else job.echo + output.text
        logprobs = token_logprobs(output.logprobs)
        piece = pending.pieces.setdefault(output.index, _Piece())
        piece.text += text
        piece.token_ids += output.token_ids
        if logprobs is not None:
            piece.logprobs = (piece.logprobs or []) + logprobs
        take_output(job, output, text, logprobs)
        if output.finish_reason is FinishReason.ERROR:
            error = ErrorInfo(code="engine_error", message=output.error or "the engine failed")
            pending.result = self._result(job, JobState.FAILED, error=error, output=output)
        elif output.finished:
            pending.result = self._result(job, JobState.SUCCEEDED, output=output)

    def _result(
        self,
        job: OwnedJob,
        state: JobState,
        *,
        error: ErrorInfo | None = None,
        output: RequestOutput | None = None,
    ) -> JobResult:
        return JobResult(
            job_id=job.claim.job_id,
            state=state,
            attempt=job.claim.attempt,
            model=self._model,
            choices=[job.choices[index] for index in sorted(job.choices)],
            prompt_tokens=output.prompt_tokens if output else 0,
            completion_tokens=job.completion_tokens,
            cached_tokens=output.cached_tokens if output else 0,
            prompt_logprobs=job.prompt_logprobs,
            queue_seconds=job.queue_seconds,
            ttft_seconds=job.ttft_seconds or 0.0,
            total_seconds=job.age_seconds,
            error=error,
        )

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            stopping = self._stopping.is_set()
            if not stopping:
                time.sleep(self._flush_s)
            self._write(self._drain())
            if stopping:
                return

    def _drain(self) -> list[_Write]:
        """Turn what was gathered into writes, and number the deltas."""
        with self._lock:
            pending, self._pending = self._pending, {}
            writes: list[_Write] = []
            for request_id, parts in pending.items():
                job = self._inflight.get(request_id)
                if job is None:
                    continue
                for index, piece in parts.pieces.items():
                    if piece.text or piece.token_ids:
                        writes.append(_delta(job, index, piece))
                if parts.result is not None:
                    writes.append(_Write(job, parts.result.model_dump_json(), result=parts.result))
            return writes

    def _write(self, writes: list[_Write]) -> None:
        """Write until Redis has taken everything, then act on its replies."""
        tries = 0
        while writes:
            try:
                replies = self._send(writes)
            except RedisError as error:  # it is away, or full, or read-only for a while
                if self._stopping.is_set() and tries:
                    logger.error("%d writes are given up: Redis does not take them", len(writes))
                    return
                logger.warning("Redis does not take %d writes, which wait: %s", len(writes), reason_of(error))
                self._stopping.wait(_RETRY_SECONDS[min(tries, len(_RETRY_SECONDS) - 1)])
                tries += 1
                continue
            for write, reply in zip(writes, replies, strict=True):
                self._settle(write, accepted=reply == 1)
            return

    def _send(self, writes: list[_Write]) -> list[int]:
        with self._ledger.redis.pipeline(transaction=False) as pipe:
            for write in writes:
                claim = write.job.claim
                if write.result is None:
                    self._ledger.append(pipe, claim, write.seq, write.document, write.job.completion_tokens)
                else:
                    state = write.result.state
                    self._ledger.finish(pipe, claim, state.value, TERMINAL_KINDS[state], write.document)
            replies: list[int] = pipe.execute()
            return replies

    def _settle(self, write: _Write, *, accepted: bool) -> None:
        claim = write.job.claim
        if accepted:
            self.events_published += 1
            if write.result is not None:
                self._inflight.remove(claim.request_id)
                self._on_ended(write.result)
        else:
            self.fenced_writes += 1
            if self._inflight.remove(claim.request_id):
                logger.info("job %s attempt %d is not ours any more", claim.job_id, claim.attempt)
                self._on_lost(claim.request_id)


def _delta(job: OwnedJob, index: int, piece: _Piece) -> _Write:
    """The write of an answer's next piece."""
    job.seq += 1
    document = delta_document(job.claim.attempt, job.seq, piece.text, piece.token_ids, index, piece.logprobs)
    return _Write(job, document, seq=job.seq)
