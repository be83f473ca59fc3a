"""Output lines in OpenAI's batch form.

A row that failed carries both a 4xx or 5xx response with an error object and a non-null ``error``, so that a
reader who looks at either reaches the same verdict. A row that was cancelled or expired has no response.
"""

from __future__ import annotations

import json
from typing import Any

from .answer_body import answer_body, error_body
from .batch_input import Row
from .results import JobResult, JobState

_NEVER_ANSWERED = {JobState.CANCELLED: "batch_cancelled", JobState.EXPIRED: "batch_expired"}


def output_line(row: Row, result: JobResult | None) -> str:
    """The line for a row and its job's result; None for a bad row, which had no job."""
    response: dict[str, Any] | None
    error: dict[str, Any] | None = None
    if result is None or result.error is not None:
        failure = row.error if result is None else result.error
        assert failure is not None, "a row without a result is a bad row"
        request_id = row.row_id if result is None else result.job_id
        response = {"status_code": failure.status_code, "request_id": request_id, "body": error_body(failure)}
        error = {"code": failure.code, "message": failure.message}
    elif result.state in _NEVER_ANSWERED:
        response = None
        error = {"code": _NEVER_ANSWERED[result.state], "message": f"the job was {result.state.value}"}
    else:
        assert row.request is not None, "a row with a result had a request"
        response = {"status_code": 200, "request_id": result.job_id, "body": answer_body(row.request, result)}
    line = {"id": row.row_id, "custom_id": row.custom_id, "response": response, "error": error}
    # ASCII only: an id may hold a lone surrogate, which JSON can spell and UTF-8 cannot.
    return json.dumps(line, allow_nan=False)
