"""The jobs that this worker owns."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from ..engine.tool_calls import ToolFormat
from ..producers.ledger import Claim
from ..producers.results import Choice, TokenLogprob


@dataclass(eq=False)
class OwnedJob:
    """A claimed job, and what it has answered so far."""

    claim: Claim
    claimed_at: float = field(default_factory=time.monotonic)
    echo: str = ""
    """What each answer's text begins with."""
    tool_format: ToolFormat | None = None
    """How the answers spell tool calls."""
    choices: dict[int, Choice] = field(default_factory=dict)
    """The answers by index."""
    completion_tokens: int = 0
    prompt_logprobs: list[TokenLogprob | None] | None = None
    seq: int = 0
    """Deltas written."""
    queue_seconds: float = 0.0
    ttft_seconds: float | None = None

    @property
    def age_seconds(self) -> float:
        """Time since the job was submitted."""
        return self.claim.waited_ms / 1000 + time.monotonic() - self.claimed_at


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

    def unstarted(self) -> list[Claim]:
        """Claims of the jobs that have no token yet."""
        with self._lock:
            return [job.claim for job in self._jobs.values() if job.ttft_seconds is None]

    def claims(self) -> list[Claim]:
        """Claims of all jobs owned now."""
        with self._lock:
            return [job.claim for job in self._jobs.values()]
