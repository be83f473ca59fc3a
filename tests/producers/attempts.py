"""A worker's hand on the ledger, without a worker: claim, write deltas, end."""

from __future__ import annotations

import json
from typing import Any

from headrace.producers.events import TERMINAL_KINDS, delta_document
from headrace.producers.keys import DEFAULT_QUEUE
from headrace.producers.ledger import Claim, Ledger, Submission
from headrace.producers.results import Choice, JobResult, JobState

LONG_MS = 600_000
"""A lease that does not run out in a test."""
PROMPT = '{"messages":[{"role":"user","content":"hi"}],"seed":1}'


def job(job_id: str, *, queue: str = DEFAULT_QUEUE, retention_s: int = 600, group: str = "") -> Submission:
    """A job to submit."""
    return Submission(job_id, PROMPT, queue, retention_s, group)


def claim_one(ledger: Ledger, worker: str = "w1", *, lease_ms: int = LONG_MS, queue: str = DEFAULT_QUEUE) -> Claim:
    """The one job that is queued."""
    [claim] = ledger.claim(worker, [queue], 1, lease_ms)
    return claim


def append(ledger: Ledger, claim: Claim, seq: int, text: str) -> int:
    """Write a delta of one token; returns the script's reply."""
    return int(_in_pipeline(ledger, "append", claim, seq, delta_document(claim.attempt, seq, text, [seq]), seq))


def finish(ledger: Ledger, claim: Claim, state: JobState = JobState.SUCCEEDED, text: str = "") -> int:
    """Write a result; returns the script's reply."""
    choices = [Choice(text=text, finish_reason="stop")]
    result = JobResult(job_id=claim.job_id, state=state, attempt=claim.attempt, model="m", choices=choices)
    return int(_in_pipeline(ledger, "finish", claim, state.value, TERMINAL_KINDS[state], result.model_dump_json()))


def _in_pipeline(ledger: Ledger, method: str, *arguments: Any) -> Any:
    with ledger.redis.pipeline(transaction=False) as pipe:
        getattr(ledger, method)(pipe, *arguments)
        return pipe.execute()[0]


def documents(ledger: Ledger, job_id: str) -> list[dict[str, Any]]:
    """The job's event log."""
    entries: Any = ledger.redis.xrange(ledger.keys.events(job_id))
    return [json.loads(fields["event"]) for _, fields in entries]


def takes_over(ledger: Ledger, claim: Claim, worker: str) -> Claim:
    """Let a lease run out, and have another worker claim the job."""
    assert ledger.renew([claim], lease_ms=0) == []
    assert ledger.reap() == [claim.job_id]
    return claim_one(ledger, worker)
