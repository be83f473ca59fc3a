"""Writes what the engine produced into the ledger: deltas as they come, results at the end.

The step loop hands over its pieces and goes on, whatever the other threads do. One thread writes them: at once where
nothing was written lately, else with what comes in the next few milliseconds, and all jobs in one pipeline. So on a
quiet worker a first token waits for nothing, and a busy one writes in larger pieces, not more often.

A lost connection loses nothing: the same writes are repeated until they succeed, and the ledger recognises a repeated
one. Jobs that are handed back go the same way, so that what they have answered is published before another worker
goes on with it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

from redis.exceptions import RedisError

from ..producers.connection import reason_of
from ..producers.ledger import GAP, Ledger
from ..producers.results import ErrorInfo, JobResult, JobState
from .answer_piece import AnswerPiece
from .inflight import InflightJobs, OwnedJob
from .retry_policy import is_transient, retry_delay
from .writes import Append, Finish, Pending, Release, Reset, Retry, Write

logger = logging.getLogger(__name__)

_RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0)
_ROUND_TRIP_WRITES = 128
"""Most writes in one pipeline: the worker claims its next jobs while the others are still being written."""


class Publisher:
    """The one writer of this worker's jobs.

    Args:
        ledger: where to write.
        inflight: the jobs that this worker owns; one that is not there any more is not written.
        model: name for the results.
        flush_s: shortest time from the beginning of one write to that of the next.
        on_ended: called in the publisher's thread with each job that this worker ended.
        on_lost: called in the publisher's thread with the request id of each job whose write was refused.

    Attributes:
        events_published: events written.
        fenced_writes: writes refused because the job was not this worker's any more.
        tokens_wasted: tokens computed for nothing, by reason: ``lost`` with a refused write, ``reset`` because the
            job started over, ``gap`` because the server lost deltas before them.
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
        self.tokens_wasted: Counter[str] = Counter(lost=0, reset=0, gap=0)
        self._ledger = ledger
        self._inflight = inflight
        self._model = model
        self._flush_s = flush_s
        self._on_ended = on_ended
        self._on_lost = on_lost
        self._random = random.Random()
        self._offered: deque[tuple[float, Iterable[AnswerPiece]]] = deque()
        self._pending: dict[str, Pending] = {}
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
        if self._thread.is_alive():
            self._thread.join()

    def offer(self, pieces: Iterable[AnswerPiece]) -> None:
        """Take a step's pieces; they are the publisher's from here on. Waits for no lock that is held for long."""
        self._offered.append((time.monotonic(), pieces))
        if not self._wake.is_set():
            self._wake.set()

    def fail(self, request_id: str, error: ErrorInfo) -> None:
        """End a job without an answer, or have it tried again where that makes sense."""
        self._end(request_id, lambda job: self._failure(job, error))

    def hand_back(self, request_id: str) -> None:
        """Give a job back to the queue with what it has answered; the delivery does not count."""
        self._end(request_id, Release)

    def hand_on(self, request_id: str, error: ErrorInfo) -> None:
        """Give a job to whoever is next, now; the delivery counts, and after too many the job fails with the error."""
        self._end(request_id, lambda job: Retry(job, error, 0.0))

    def reset(self, request_id: str) -> None:
        """Void what a job's earlier attempts have published: this one starts over."""
        with self._lock:
            self._gather_offered()
            job = self._inflight.get(request_id)
            pending = None if job is None else self._of(job)
            if job is not None and pending is not None:
                self.tokens_wasted["reset"] += job.start_over()
                pending.reset = True
        self._wake.set()

    def _end(self, request_id: str, ending: Callable[[OwnedJob], Finish | Release | Retry]) -> None:
        with self._lock:
            self._gather_offered()
            job = self._inflight.get(request_id)
            pending = None if job is None else self._of(job)
            if job is not None and pending is not None:
                pending.ending = ending(job)
                job.ended = True
        self._wake.set()

    def _of(self, job: OwnedJob) -> Pending | None:
        """Where to gather a job's writes; None once its end is on its way, whatever an engine still says of it."""
        if job.ended:
            return None
        request_id = job.claim.request_id
        if request_id not in self._pending:
            self._pending[request_id] = Pending()
        return self._pending[request_id]

    def _gather_offered(self) -> None:
        """Add what was offered to what is to be written; the lock is held."""
        while self._offered:
            at, pieces = self._offered.popleft()
            for piece in pieces:
                job = self._inflight.get(piece.request_id)
                pending = None if job is None else self._of(job)
                if job is not None and pending is not None:
                    self._gather(job, pending, piece, at)

    def _gather(self, job: OwnedJob, pending: Pending, piece: AnswerPiece, at: float) -> None:
        pending.gather(piece)
        job.take(piece, at)
        if piece.error is not None:
            pending.ending = self._failure(job, piece.error)
        elif piece.finished:
            pending.ending = Finish(job, self._result(job, JobState.SUCCEEDED, at, piece=piece))
        job.ended = pending.ending is not None

    def _failure(self, job: OwnedJob, error: ErrorInfo) -> Finish | Retry:
        if is_transient(error):
            return Retry(job, error, retry_delay(error, job.claim.deliveries, self._random))
        return Finish(job, self._result(job, JobState.FAILED, time.monotonic(), error=error))

    def _result(
        self,
        job: OwnedJob,
        state: JobState,
        at: float,
        *,
        error: ErrorInfo | None = None,
        piece: AnswerPiece | None = None,
    ) -> JobResult:
        return JobResult(
            job_id=job.claim.job_id,
            state=state,
            attempt=job.claim.attempt,
            model=self._model,
            choices=[job.choices[index] for index in sorted(job.choices)],
            prompt_tokens=piece.prompt_tokens if piece else 0,
            completion_tokens=job.completion_tokens,
            cached_tokens=piece.cached_tokens if piece else 0,
            prompt_logprobs=job.prompt_logprobs,
            first_prompt_token=piece.first_prompt_token if piece else None,
            queue_seconds=job.queue_seconds,
            ttft_seconds=job.ttft_seconds or 0.0,
            total_seconds=job.age_seconds(at),
            error=error,
        )

    def _run(self) -> None:
        next_write = time.monotonic()
        while True:
            self._wake.wait()
            self._stopping.wait(max(0.0, next_write - time.monotonic()))
            self._wake.clear()
            stopping = self._stopping.is_set()
            next_write = time.monotonic() + self._flush_s
            self._write(self._drain())
            if stopping:
                return

    def _drain(self) -> list[Write]:
        """Turn what was gathered into writes, and number the deltas."""
        with self._lock:
            self._gather_offered()
            gathered, self._pending = self._pending, {}
            writes: list[Write] = []
            for request_id, pending in gathered.items():
                job = self._inflight.get(request_id)
                if job is not None:
                    writes += pending.writes(job)
            return writes

    def _write(self, writes: list[Write]) -> None:
        """Write until Redis has taken everything, and act on its replies."""
        tries = 0
        while writes:
            batch = writes[:_ROUND_TRIP_WRITES]
            try:
                replies = self._send(batch)
            except RedisError as error:  # it is away, or full, or read-only for a while
                if self._stopping.is_set() and tries:
                    logger.error("%d writes are given up: Redis does not take them", len(writes))
                    return
                logger.warning("Redis does not take %d writes, which wait: %s", len(writes), reason_of(error))
                self._stopping.wait(_RETRY_SECONDS[min(tries, len(_RETRY_SECONDS) - 1)])
                tries += 1
                continue
            for write, reply in zip(batch, replies, strict=True):
                if reply == GAP:
                    self._go_back(write)
                else:
                    self._settle(write, accepted=reply == 1)
            writes, tries = writes[len(batch) :], 0

    def _send(self, writes: list[Write]) -> list[int]:
        def put(pipe: Any) -> None:
            for write in writes:
                write.put(self._ledger, pipe)

        return self._ledger.pipelined(put)

    def _go_back(self, write: Write) -> None:
        """Give a job back whose last deltas the server has lost: whoever is next goes on from those that are left."""
        with self._lock:
            request_id = write.job.claim.request_id
            if self._inflight.get(request_id) is write.job:
                self._pending[request_id] = Pending(ending=Release(write.job))
                write.job.ended = True
        delta = write.last if isinstance(write, Finish) else write
        self.tokens_wasted["gap"] += delta.num_tokens if isinstance(delta, Append) else 0
        logger.warning("Redis has lost deltas of job %s, which goes back to them", write.job.claim.job_id)
        self._wake.set()

    def _settle(self, write: Write, *, accepted: bool) -> None:
        claim = write.job.claim
        if accepted:
            self.events_published += isinstance(write, Append | Finish | Reset)
            self.events_published += isinstance(write, Finish) and write.last is not None
            if isinstance(write, Finish | Release | Retry):
                self._inflight.remove(claim.request_id)
            if isinstance(write, Finish):
                self._on_ended(write.result)
            elif isinstance(write, Release | Retry):
                self._on_lost(claim.request_id)
            return
        self.fenced_writes += 1
        delta = write.last if isinstance(write, Finish) else write
        self.tokens_wasted["lost"] += delta.num_tokens if isinstance(delta, Append) else 0
        if self._inflight.remove(claim.request_id):
            logger.info("job %s attempt %d is not ours any more", claim.job_id, claim.attempt)
            self._on_lost(claim.request_id)
