"""``headrace stream``: one answer's text as it comes, or every event as JSON."""

from __future__ import annotations

import sys

from .client import Client
from .errors import InvalidRequest, StreamPositionError
from .events import Delta, Finished, Reset, event_json
from .exit_codes import FAILED_ROWS, OK
from .results import JobResult, JobState


def stream(client: Client, job_id: str, *, index: int | None, as_json: bool) -> int:
    """Follow a job to its end on standard output.

    Text is that of one answer, since the deltas of several come in turns. JSON has the deltas of all answers, unless
    one is chosen, and each says whose it is.

    Args:
        client: of the server that has the job.
        job_id: the job.
        index: which of its answers; None is the first one's text, and everybody's JSON.
        as_json: one line of JSON for each event.

    Returns:
        The exit code.

    Raises:
        InvalidRequest: where the job has no such answer.
        JobNotFound: where there is no such job.
        StreamPositionError: where its events are gone.
    """
    answers = client.request(job_id).get("n", 1)
    if index is not None and index >= answers:
        allowed = f"{answers} answers; --index must be 0 to {answers - 1}" if answers > 1 else "one answer, 0"
        raise InvalidRequest(f"job {job_id} has {allowed}", param="index")
    if index is None and not as_json:
        index = 0
        if answers > 1:
            print(f"job {job_id} has {answers} answers; this is answer 0, --index chooses another", file=sys.stderr)
    for event in client.stream(job_id):
        wanted = not isinstance(event, Delta) or index in (None, event.index)
        if as_json:
            if wanted:
                print(event_json(event), flush=True)
        elif isinstance(event, Delta):
            if wanted:
                sys.stdout.write(event.text)
                sys.stdout.flush()
        elif isinstance(event, Reset):
            print("\n[the job starts over on another worker]", file=sys.stderr)
        elif isinstance(event, Finished):
            sys.stdout.write("\n")
        if isinstance(event, Finished):
            return _report_end(event.result)
    raise StreamPositionError(f"the events of job {job_id} are gone; see `headrace status --json`")


def _report_end(result: JobResult) -> int:
    """Say how a job ended, where it has no answer; returns the exit code."""
    if result.state is JobState.SUCCEEDED:
        return OK
    reason = f": {result.error.message}" if result.error else ""
    print(f"job {result.job_id} {result.state.value}{reason}", file=sys.stderr)
    return FAILED_ROWS
