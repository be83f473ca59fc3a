"""What a worker may write about a job that it owns, and what it gathers before it does."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..producers.events import TERMINAL_KINDS, delta_document, reset_document
from ..producers.ledger import Ledger
from ..producers.results import ErrorInfo, JobResult, TokenLogprob
from .answer_piece import AnswerPiece
from .inflight import OwnedJob


@dataclass(frozen=True)
class Append:
    """The next piece of an answer."""

    job: OwnedJob
    seq: int
    document: str
    completion_tokens: int
    num_tokens: int

    def put(self, ledger: Ledger, pipe: Any) -> None:
        """Put the write into a pipeline."""
        ledger.append(pipe, self.job.claim, self.seq, self.document, self.completion_tokens)


@dataclass(frozen=True)
class Reset:
    """The job starts over."""

    job: OwnedJob

    def put(self, ledger: Ledger, pipe: Any) -> None:
        """Put the write into a pipeline."""
        ledger.reset(pipe, self.job.claim, reset_document(self.job.claim.attempt))


@dataclass(frozen=True)
class Finish:
    """The job's end."""

    job: OwnedJob
    result: JobResult
    num_deltas: int = 0
    """All that the log must have, with the last."""
    last: Append | None = None
    """The last piece of an answer, written with the end."""

    def put(self, ledger: Ledger, pipe: Any) -> None:
        """Put the write into a pipeline."""
        state, last = self.result.state, self.last
        document = self.result.model_dump_json(exclude_defaults=True)
        last_delta = None if last is None else (last.document, last.completion_tokens)
        kind = TERMINAL_KINDS[state]
        ledger.finish(pipe, self.job.claim, state.value, kind, document, self.num_deltas, last_delta)


@dataclass(frozen=True)
class Release:
    """The job goes back, and the delivery does not count."""

    job: OwnedJob

    def put(self, ledger: Ledger, pipe: Any) -> None:
        """Put the write into a pipeline."""
        ledger.release(pipe, self.job.claim)


@dataclass(frozen=True)
class Retry:
    """The job is to be tried again, and the delivery counts."""

    job: OwnedJob
    error: ErrorInfo
    delay_s: float

    def put(self, ledger: Ledger, pipe: Any) -> None:
        """Put the write into a pipeline."""
        error = self.error.model_dump_json(exclude_none=True)
        ledger.retry(pipe, self.job.claim, round(self.delay_s * 1000), error)


Write = Append | Reset | Finish | Release | Retry


@dataclass
class _Delta:
    """What is still to be written of one answer."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None


@dataclass
class Pending:
    """What is still to be written of one job."""

    reset: bool = False
    deltas: dict[int, _Delta] = field(default_factory=dict)
    """By the answer's index."""
    ending: Finish | Release | Retry | None = None

    def gather(self, piece: AnswerPiece) -> None:
        """Add a piece to what waits already."""
        delta = self.deltas.get(piece.index)
        if delta is None:
            delta = self.deltas[piece.index] = _Delta()
        delta.text += piece.text
        delta.token_ids += piece.token_ids
        if piece.logprobs is not None:
            delta.logprobs = (delta.logprobs or []) + piece.logprobs

    def writes(self, job: OwnedJob) -> list[Write]:
        """The writes, in their order; the deltas get their numbers here."""
        writes: list[Write] = [Reset(job)] if self.reset else []
        for index, delta in self.deltas.items():
            if delta.text or delta.token_ids:
                writes.append(_append(job, index, delta))
        if isinstance(self.ending, Finish):
            last = writes.pop() if writes and isinstance(writes[-1], Append) else None
            assert last is None or isinstance(last, Append)
            writes.append(replace(self.ending, num_deltas=job.seq, last=last))
        elif self.ending is not None:
            writes.append(self.ending)
        return writes


def _append(job: OwnedJob, index: int, delta: _Delta) -> Append:
    job.seq += 1
    timings = None
    if job.seq == 1:
        timings = {"queue_seconds": round(job.queue_seconds, 6), "ttft_seconds": round(job.ttft_seconds or 0.0, 6)}
    document = delta_document(job.claim.attempt, job.seq, delta.text, delta.token_ids, index, delta.logprobs, timings)
    return Append(job, job.seq, document, job.completion_tokens, len(delta.token_ids))
