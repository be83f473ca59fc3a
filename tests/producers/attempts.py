"""A worker's hand on the ledger, without a worker: claim, write deltas, end."""

from __future__ import annotations

import json
from typing import Any

from headrace.producers.events import TERMINAL_KINDS, delta_document, reset_document
from headrace.producers.keys import DEFAULT_QUEUE
from headrace.producers.ledger import Claim, Ledger, Submission
from headrace.producers.results import Choice, ErrorInfo, JobResult, JobState

LONG_MS = 600_000
"""A lease that does not run out in a test."""
MODEL = "m"
PROMPT = '{"messages":[{"role":"user","content":"hi"}],"seed":1}'


def job(
    job_id: str,
    *,
    queue: str = DEFAULT_QUEUE,
    retention_s: int = 600,
    group: str = "",
    tenant: str = "",
    ttl_ms: int = 0,
) -> Submission:
    """A job to submit."""
    return Submission(job_id, PROMPT, queue, retention_s, group, tenant=tenant, ttl_ms=ttl_ms)


def claim_one(ledger: Ledger, worker: str = "w1", *, lease_ms: int = LONG_MS, queue: str = DEFAULT_QUEUE) -> Claim:
    """The one job that is queued."""
    [claim] = ledger.claim(worker, MODEL, [queue], 1, lease_ms)
    return claim


def append(ledger: Ledger, claim: Claim, seq: int, text: str, index: int = 0) -> int:
    """Write a delta of one token of an answer; returns the script's reply."""
    document = delta_document(claim.attempt, seq, text, [seq], index)
    return int(_in_pipeline(ledger, "append", claim, seq, document, seq))


def finish(
    ledger: Ledger, claim: Claim, state: JobState = JobState.SUCCEEDED, text: str = "", *, num_deltas: int = 0
) -> int:
    """Write a result; returns the script's reply."""
    choices = [Choice(text=text, finish_reason="stop")]
    result = JobResult(job_id=claim.job_id, state=state, attempt=claim.attempt, model="m", choices=choices)
    ending = (state.value, TERMINAL_KINDS[state], result.model_dump_json(), num_deltas)
    return int(_in_pipeline(ledger, "finish", claim, *ending))


def release(ledger: Ledger, claim: Claim) -> int:
    """Hand a job back; returns the script's reply."""
    return int(_in_pipeline(ledger, "release", claim))


def reset(ledger: Ledger, claim: Claim) -> int:
    """Start a job over; returns the script's reply."""
    return int(_in_pipeline(ledger, "reset", claim, reset_document(claim.attempt)))


def retry(ledger: Ledger, claim: Claim, delay_ms: int = 0, message: str = "it broke") -> int:
    """Have a job tried again; returns the script's reply."""
    error = ErrorInfo(code="broken", message=message).model_dump_json()
    return int(_in_pipeline(ledger, "retry", claim, delay_ms, error))


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
    assert ledger.reap().taken_over == 1
    return claim_one(ledger, worker)
