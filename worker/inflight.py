"""The jobs that this worker owns."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..producers.ledger import Claim
from ..producers.results import Choice, TokenLogprob
from .answer_piece import AnswerPiece, Progress


@dataclass(eq=False)
class OwnedJob:
    """A claimed job, and what it has answered so far. Changed by the publisher alone once it is in the engine."""

    claim: Claim
    claimed_at: float = field(default_factory=time.monotonic)
    choices: dict[int, Choice] = field(default_factory=dict)
    """The answers by index."""
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    """What earlier attempts have published of each answer."""
    completion_tokens: int = 0
    prompt_logprobs: list[TokenLogprob | None] | None = None
    seq: int = 0
    """Deltas written, those of earlier attempts too."""
    begun: bool = False
    """Whether it is being encoded or computed, so that a crash of the engine may be its fault."""
    ended: bool = False
    """Whether its end, or its way back to the queue, is being written."""
    queue_seconds: float = 0.0
    ttft_seconds: float | None = None

    def age_seconds(self, at: float) -> float:
        """Time from the job's submission to a time of the monotonic clock."""
        return self.claim.waited_ms / 1000 + at - self.claimed_at

    @property
    def progress(self) -> Progress | None:
        """Where the engine has to go on; None from the start."""
        if not self.token_ids:
            return None
        return Progress(self.token_ids, {index: choice.text for index, choice in self.choices.items()})

    def take(self, piece: AnswerPiece, at: float) -> None:
        """Add what a step that ended at a time of the monotonic clock gave to one of the answers."""
        choice = self.choices.get(piece.index)
        if choice is None:
            choice = self.choices[piece.index] = Choice(index=piece.index)
        choice.text += piece.text
        if piece.logprobs is not None:
            choice.logprobs = (choice.logprobs or []) + piece.logprobs
        self.completion_tokens += len(piece.token_ids)
        if piece.prompt_logprobs is not None:
            self.prompt_logprobs = piece.prompt_logprobs
        if self.ttft_seconds is None:
            self.ttft_seconds = self.age_seconds(at)
            self.queue_seconds = max(0.0, self.ttft_seconds - (piece.ttft_seconds - piece.queue_seconds))
        if piece.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = piece.finish_reason, piece.stop_reason
            if piece.tool_calls is not None:
                choice.tool_calls, choice.text = piece.tool_calls, piece.content or ""

    def start_over(self) -> int:
        """Forget all answers; returns how many of their tokens are void."""
        void, self.completion_tokens = self.completion_tokens, 0
        self.choices, self.token_ids, self.seq = {}, {}, 0
        self.prompt_logprobs = self.ttft_seconds = None
        return void


class InflightJobs:
    """Jobs from claim to end, by request id. Thread-safe; the one place that knows what this worker owns."""

    def __init__(self) -> None:
        self._jobs: dict[str, OwnedJob] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: OwnedJob) -> None:
        """Take a job that was just claimed."""
        with self._lock:
            self._jobs[job.claim.request_id] = job

    def get(self, request_id: str) -> OwnedJob | None:
        """A job, or None where it is not this worker's any more."""
        with self._lock:
            return self._jobs.get(request_id)

    def remove(self, request_id: str) -> OwnedJob | None:
        """Forget a job that ended or was lost; returns it, or None where it was forgotten already."""
        with self._lock:
            return self._jobs.pop(request_id, None)

    def mark_begun(self, request_ids: Iterable[str]) -> None:
        """Note that the engine encodes or computes these jobs."""
        with self._lock:
            for request_id in request_ids:
                if job := self._jobs.get(request_id):
                    job.begun = True

    def mark_waiting(self, request_id: str) -> None:
        """Note that the engine has taken a job and does nothing about it yet."""
        with self._lock:
            if job := self._jobs.get(request_id):
                job.begun = False

    def jobs(self) -> list[OwnedJob]:
        """All jobs owned now."""
        with self._lock:
            return list(self._jobs.values())

    def claims(self) -> list[Claim]:
        """Claims of all jobs owned now."""
        return [job.claim for job in self.jobs()]

    def claims_of(self, job_id: str) -> list[Claim]:
        """Claims of one job that are owned now: one, or none."""
        return [claim for claim in self.claims() if claim.job_id == job_id]
