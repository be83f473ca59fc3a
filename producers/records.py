"""From what users write to ledger records, and from records back to what users read.

Shared by the sync client, the async client, the dataset runner and the workers.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import InvalidRequest, JobNotFound
from .keys import DEFAULT_QUEUE
from .ledger import Submission
from .results import JobResult, JobState, JobStatus
from .schema import GenerationRequest
from .tenants import Access

DEFAULT_RETENTION_S = 86_400
"""Life of a job's record and log after its end: one day."""

MAX_REQUEST_BYTES = 8 << 20
"""Most that a request may have as JSON: several times what the longest contexts hold as text."""

PRIORITY_STRIDE = 1000
"""A level of priority yields to the next thousand jobs. So the last level, 9, waits for 9,000 later ones at most."""

_JOB_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def request_from(request: Any, parameters: dict[str, Any]) -> GenerationRequest:
    """The request behind what a caller passed.

    Args:
        request: a :class:`GenerationRequest`, a text (one user message), a list of messages, a body in OpenAI's
            form, or what an earlier ``generate`` in a chain returned, whose text becomes the user message.
        parameters: added to the body.

    Raises:
        InvalidRequest: where that makes no request.
    """
    if isinstance(request, GenerationRequest):
        return GenerationRequest.parse({**request.model_dump(exclude_unset=True), **parameters})
    if isinstance(request, dict) and "job_id" in request and "text" in request:
        request = request["text"]
    if isinstance(request, str):
        body: dict[str, Any] = {"messages": [{"role": "user", "content": request}]}
    elif isinstance(request, list):
        body = {"messages": request}
    elif isinstance(request, dict):
        body = dict(request)
    elif request is None:
        body = {}
    else:
        raise InvalidRequest("the request must be a text, a list of messages, or a body", code="invalid_type")
    return GenerationRequest.parse({**body, **parameters})


def submission(
    request: GenerationRequest,
    *,
    job_id: str | None = None,
    group: str = "",
    retention_s: int = DEFAULT_RETENTION_S,
) -> Submission:
    """The ledger record for a request. A seed is drawn here, once, where the user gave none.

    Raises:
        InvalidRequest: where the job id cannot be part of a key, the retention is not positive, or the request is
            too large.
    """
    job_id = uuid.uuid4().hex if job_id is None else job_id
    if not _JOB_ID.fullmatch(job_id):
        raise InvalidRequest(
            f"the job id {job_id!r} is refused; ids are 1 to 128 letters, digits, dots, dashes and underscores",
            param="job_id",
        )
    if retention_s < 1:
        raise InvalidRequest(f"retention_s is {retention_s}; it must be at least 1", param="retention_s")
    # Only what was asked for: a record is kept long, and most fields are never set.
    document = request.with_seed().model_dump_json(exclude_unset=True, exclude_none=True)
    if (size := len(document.encode())) > MAX_REQUEST_BYTES:
        raise InvalidRequest(
            f"the request has {size:,} bytes; at most {MAX_REQUEST_BYTES:,} are taken", code="request_too_large"
        )
    return Submission(
        job_id=job_id,
        request=document,
        queue=request.model or DEFAULT_QUEUE,
        retention_s=retention_s,
        group=group,
        handicap=request.priority * PRIORITY_STRIDE,
        tenant=request.tenant,
        ttl_ms=0 if request.ttl is None else round(request.ttl * 1000),
    )


def submissions(
    requests: Iterable[Any],
    parameters: dict[str, Any],
    *,
    job_ids: Iterable[str] | None,
    group: str,
    retention_s: int,
    access: Access,
) -> list[Submission]:
    """Ledger records for what a client was given; all are checked before any is returned.

    Raises:
        InvalidRequest: naming the parameter at fault.
        AccessDenied: where one names a tenant that is not the caller.
    """
    parsed = [access.stamped(request_from(request, parameters)) for request in requests]
    ids = [None] * len(parsed) if job_ids is None else list(job_ids)
    return [
        submission(request, job_id=job_id, group=group, retention_s=retention_s)
        for request, job_id in zip(parsed, ids, strict=True)
    ]


def job_not_found(job_id: str) -> JobNotFound:
    """The error for a job that is not there."""
    return JobNotFound(f"there is no job {job_id}, or its record has outlived its retention")


STATE_FIELDS = ["state", "deadline_ms"]
"""Fields of a record that :func:`may_have_expired` looks at."""


def may_have_expired(record: Mapping[str, str | None]) -> bool:
    """Whether a record is one of a job that has a deadline and has not ended, as far as the record says."""
    state = record.get("state")
    return state is not None and record.get("deadline_ms") is not None and not JobState(state).ended


def parse_request(job_id: str, document: Any) -> dict[str, Any]:
    """A job's body from its JSON document.

    Raises:
        JobNotFound: where there is none.
    """
    if document is None:
        raise job_not_found(job_id)
    body: dict[str, Any] = json.loads(document)
    return body


def parse_status(job_id: str, record: Mapping[str, str]) -> JobStatus:
    """A job's status from its hash.

    Raises:
        JobNotFound: where the hash is empty.
    """
    if not record:
        raise job_not_found(job_id)
    result = record.get("result")
    return JobStatus(
        job_id=job_id,
        state=JobState(record["state"]),
        attempt=int(record["attempt"]),
        completion_tokens=int(record.get("completion_tokens", 0)),
        worker=record.get("worker"),
        result=JobResult.model_validate_json(result) if result else None,
    )


@dataclass(frozen=True)
class WorkerInfo:
    """What a live worker says about itself."""

    worker_id: str
    model: str
    state: str
    """``ready``, ``draining``, or ``restarting`` while its engine comes back."""
    running: int
    """Requests in the engine."""
    generation_tokens: int
    """Tokens since the worker's start."""
    peak_running: int
    """Most requests computed in one step."""

    @classmethod
    def parse(cls, worker_id: str, fields: Mapping[str, str]) -> WorkerInfo:
        """From the worker's hash."""
        return cls(
            worker_id=worker_id,
            model=fields["model"],
            state=fields["state"],
            running=int(fields["running"]),
            generation_tokens=int(fields.get("generation_tokens", 0)),  # none while its engine comes back
            peak_running=int(fields.get("peak_running", 0)),
        )
