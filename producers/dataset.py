"""A file of prompts through the queue, and back as a file of answers.

Rows are submitted in a window, so that memory does not grow with the file, and written as their jobs end. A row
is known by its content (:class:`Row.row_id`), a job by run and row; so the same command, run again after
anything, writes each row once and does again only what was not finished.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from .batch_input import Row, check_ids, read_rows
from .batch_output import output_line
from .client import Client
from .errors import AccessDenied, InvalidRequest, QueueFull
from .events import START
from .local_stack import LocalStack
from .output_file import OutputFile, Written
from .progress import LiveTokens, Reporter
from .results import ErrorInfo, JobResult
from .run_record import RunRecord
from .tenants import Access

WINDOW = 1024
"""Most rows in flight."""
CHUNK = 128
"""Rows submitted at once."""
POLL_MS = 200
FULL_SECONDS = (0.5, 1.0, 2.0, 5.0)
"""Waits between tries while the queue is full; the last one is repeated."""


@dataclass
class Interrupt:
    """What the user asked for with Ctrl-C: once to drain, twice to stop now. Set by a signal handler."""

    count: int = 0


@dataclass(frozen=True)
class Plan:
    """What is to be done, known before anything is started."""

    total: int
    bad: int
    resumed: int
    failed_before: int

    @property
    def to_go(self) -> int:
        """Rows that still have to end."""
        return self.total - self.resumed


def scan(source: Path, written: Written) -> Plan:
    """Read the whole input once, checking its ids and that the output belongs to it.

    Raises:
        BadIds: where the custom_ids are missing or not unique.
        InvalidRequest: where the file holds no request.
        LedgerMismatch: where the output holds rows that the input does not.
        OSError: where the file cannot be read.
    """
    total = bad = 0
    done = written.done
    found: set[str] = set()
    for row in check_ids(source.name, read_rows(source)):
        total += 1
        bad += row.error is not None
        if row.row_id in done:
            found.add(row.row_id)
    if total == 0:
        raise InvalidRequest(f"{source} holds no requests", code="empty_file")
    written.check("the output file", found)
    return Plan(total, bad, len(found), len(written.failed))


class Runner:
    """Drives one run over a client.

    Args:
        client: of the server that the workers use.
        record: the run's identity and counts.
        output: where lines go.
        reporter: what the user sees.
        interrupt: what the user asked for.
        models: names of the models that are served; a row that names another is refused.
        stack: the run's own server and worker, where it has them.
    """

    def __init__(
        self,
        client: Client,
        record: RunRecord,
        output: OutputFile,
        reporter: Reporter,
        interrupt: Interrupt,
        models: set[str],
        stack: LocalStack | None = None,
    ) -> None:
        self._client = client
        self._record = record
        self._output = output
        self._reporter = reporter
        self._interrupt = interrupt
        self._stack = stack
        self._pending: dict[str, Row] = {}
        self._refused: dict[str, Row] = {}
        """Those of the pending that the queue had no room for."""
        self._full_tries = 0
        self._next_try = 0.0
        self._position = START
        self._models = models
        self._draining = self._drained = False
        self._live = LiveTokens(client.url, client.keys, record.run_id)

    def run(self, rows: Iterable[Row], done: set[str]) -> bool:
        """Submit and write rows until all are written, or the user had enough.

        Args:
            rows: the input.
            done: ids of rows that are in the output already.

        Returns:
            Whether every row is written.

        Raises:
            BrokerUnavailable: where Redis stays away.
            LocalStackError: where the run's own worker died.
        """
        todo = (row for row in rows if row.row_id not in done)
        exhausted = False
        try:
            while not (exhausted and not self._pending):
                if self._interrupt.count > 1 or self._drained:
                    break
                if self._interrupt.count:
                    self._drain()
                elif self._refused:
                    self._submit_again()
                elif len(self._pending) <= WINDOW - CHUNK:
                    exhausted = not self._submit(todo)
                self._collect()
                self._check_stack()
                self._report()
            self._collect(block_ms=1)
        finally:
            self._live.stop()
            self._output.close()
        return exhausted and not self._pending

    def _submit(self, todo: Iterator[Row]) -> bool:
        """Submit the next rows; returns whether there were any."""
        chunk = list(islice(todo, CHUNK))
        if not chunk:
            return False
        access = self._client.access()
        chunk = [self._checked_tenant(self._checked_model(row), access) for row in chunk]
        self._write([(row, None) for row in chunk if row.error is not None])
        jobs = {self._job_id(row): row for row in chunk if row.error is None}
        # An earlier run of this record may have submitted them; what has ended since is not announced again.
        self._pending.update(jobs)
        self._finish(self._client.results(list(jobs)))
        self._queue({job_id: row for job_id, row in jobs.items() if job_id in self._pending})
        return True

    def _queue(self, jobs: dict[str, Row]) -> None:
        """Submit jobs; those that the queue has no room for wait for :meth:`_submit_again`."""
        try:
            self._client.submit_many([row.request for row in jobs.values()], job_ids=jobs, group=self._record.run_id)
        except QueueFull as error:
            if not self._refused:
                self._reporter.note(f"Waiting for room: {error}.")
            self._refused = {job_id: row for job_id, row in jobs.items() if job_id not in error.accepted_ids}
            self._full_tries = 0 if error.accepted_ids else self._full_tries + 1
            self._next_try = time.monotonic() + FULL_SECONDS[min(self._full_tries, len(FULL_SECONDS) - 1)]
        else:
            if self._refused:
                self._reporter.note("Going on: there is room again.")
            self._refused = {}
            self._full_tries = 0

    def _submit_again(self) -> None:
        """Submit what was refused, once it is time."""
        if time.monotonic() >= self._next_try:
            self._queue(self._refused)

    def _job_id(self, row: Row) -> str:
        return f"{self._record.run_id}-{row.row_id.removeprefix('batch_req_')}"

    def _checked_model(self, row: Row) -> Row:
        """The row, or a bad row where it names a model that nobody serves: its job would wait for ever."""
        model = row.request.model if row.request else None
        if model is None or model in self._models:
            return row
        served = " or ".join(sorted(self._models))
        message = f"the model {model!r} is not served; name {served}, or leave model out of the body"
        error = ErrorInfo(code="model_not_found", message=self._located(row, message), param="model", status_code=404)
        return replace(row, request=None, error=error)

    def _checked_tenant(self, row: Row, access: Access) -> Row:
        """The row, or a bad row where it names a tenant in whose name this run may not submit."""
        if row.request is None:
            return row
        try:
            access.stamped(row.request)
        except AccessDenied as denied:
            message = self._located(row, str(denied))
            error = ErrorInfo(code="access_denied", message=message, param="tenant", status_code=403)
            return replace(row, request=None, error=error)
        return row

    def _collect(self, block_ms: int = POLL_MS) -> None:
        """Write the rows whose jobs ended."""
        endings = self._client.endings(self._record.run_id, after=self._position, block_ms=block_ms)
        if endings:
            self._position = endings[-1][0]
            self._finish(self._client.results([job_id for _, job_id in endings if job_id in self._pending]))

    def _finish(self, results: dict[str, JobResult]) -> None:
        ended = [(self._pending.pop(job_id), result) for job_id, result in results.items()]
        self._write([(row, self._with_location(row, result)) for row, result in ended])

    def _with_location(self, row: Row, result: JobResult) -> JobResult:
        """The result; where the worker refused the row, its reason begins with ``file:line`` like any bad row's."""
        error = result.error
        if error is None or error.status_code >= 500:
            return result
        located = error.model_copy(update={"message": self._located(row, error.message)})
        return result.model_copy(update={"error": located})

    def _located(self, row: Row, reason: str) -> str:
        return f"{Path(self._record.input).name}:{row.line}: {reason}"

    def _write(self, ended: list[tuple[Row, JobResult | None]]) -> None:
        self._output.append(output_line(row, result) for row, result in ended)
        for row, result in ended:
            self._record.take(result, _error_code(row, result))

    def _drain(self) -> None:
        """Start nothing more; what runs may end. Over when nothing is in flight, or our own worker says so."""
        if not self._draining:
            self._draining = True
            for job_id in self._refused:  # they are no jobs, and nothing would end them
                self._pending.pop(job_id, None)
            self._reporter.note("Stopping: waiting for what is running. Ctrl-C again stops now.")
            if self._stack is not None:
                self._stack.drain()
        if not self._pending:
            self._drained = True

    def _check_stack(self) -> None:
        if self._stack is not None and self._stack.poll() == "drained":
            self._drained = True

    def _report(self) -> None:
        self._record.counts.in_flight = len(self._pending)
        self._reporter.update(self._record.counts, self._live)


def _error_code(row: Row, result: JobResult | None) -> str | None:
    """Why a row has no answer; None where it has one."""
    error: ErrorInfo | None = row.error if result is None else result.error
    if error is not None:
        return error.code
    return None if result is None or result.finish_reason is not None else result.state.value


def wait_for_workers(client: Client, seconds: float) -> bool:
    """Whether a worker is alive, or shows up in time."""
    deadline = time.monotonic() + seconds
    while not client.workers():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.2)
    return True
