"""``headrace run``: files, server, worker, signals and summary around a :class:`Runner`."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from .batch_input import read_rows
from .client import Client
from .dataset import Interrupt, Plan, Runner, scan, wait_for_workers
from .engine_flags import EngineFlags
from .errors import AccessDenied, BrokerUnavailable, HeadraceError, MalformedUrl
from .exit_codes import ACCESS_DENIED, BAD_INPUT, FAILED_ROWS, INTERRUPTED, LEDGER_MISMATCH, NO_BROKER, NO_WORKER, OK
from .local_stack import LocalStack, LocalStackError
from .output_file import LedgerMismatch, OutputFile
from .progress import BarReporter, LineReporter, Reporter, RunCounts
from .run_record import RunRecord, record_path
from .server_url import without_password

_WORKER_SECONDS = 5.0
"""How long a run waits for a worker of a given Redis to show up."""


@dataclass(frozen=True)
class RunOptions:
    """What the command line said."""

    source: Path
    output: Path
    redis: str | None
    fresh: bool
    retry_failed: bool
    flags: EngineFlags


def run(options: RunOptions) -> int:
    """Run a file of prompts and return the exit code; every error is one sentence on standard error."""
    try:
        with _only_run_of(options.output):
            return _run(options)
    except LedgerMismatch as error:
        return _fail(error, LEDGER_MISMATCH)
    except LocalStackError as error:
        return _fail(error, error.exit_code)
    except BrokerUnavailable as error:
        return _fail(error, BAD_INPUT if isinstance(error, MalformedUrl) else NO_BROKER)
    except AccessDenied as error:
        return _fail(error, ACCESS_DENIED)
    except (HeadraceError, OSError) as error:
        return _fail(error, BAD_INPUT)


def _fail(error: Exception, code: int) -> int:
    _say(f"headrace run: {error}")
    return code


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _only_run_of(output: Path) -> Iterator[None]:
    """Keep a second run away from an output file: it would cut and double lines, or delete the first one's data.

    Raises:
        HeadraceError: where there is another run.
    """
    digest = hashlib.sha256(os.fsencode(output.resolve())).hexdigest()[:32]
    path = _cache_directory() / "locks" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HeadraceError(f"another run is using {output}; wait for it, or write to another file") from error
        yield


def _run(options: RunOptions) -> int:
    if options.output.is_dir():
        raise HeadraceError(f"{options.output} is a directory; name a file")
    if options.output.exists() and options.output.samefile(options.source):
        raise HeadraceError(f"{options.output} is the input; write to another file")
    if not options.output.parent.is_dir():
        raise HeadraceError(f"the directory {options.output.parent} of the output file does not exist")
    if options.fresh:
        _forget_earlier_run(options)
    record = RunRecord.resume(options.source, options.output) or RunRecord.new(options.source, options.output)
    output = OutputFile(options.output)
    written = output.read()
    plan = scan(options.source, written)
    if options.retry_failed and written.failed:
        output.drop(written.failed)
        _forget_jobs(record)  # they have failed for good: the rows get jobs with new ids
        record = RunRecord.new(options.source, options.output)
        written = output.read()
        plan = scan(options.source, written)
    _announce(options, plan)
    record.counts = RunCounts(total=plan.total, resumed=plan.resumed, resumed_failed=plan.failed_before)
    record.save()
    complete = plan.to_go == 0
    if plan.to_go:
        with _interrupts() as interrupt:
            complete = _run_rows(options, record, output, written.done, interrupt)
    return _conclude(options, record, complete)


def _forget_earlier_run(options: RunOptions) -> None:
    if earlier := RunRecord.resume(options.source, options.output):
        _forget_jobs(earlier)
    options.output.unlink(missing_ok=True)
    record_path(options.output).unlink(missing_ok=True)


def _forget_jobs(record: RunRecord) -> None:
    """Delete the data of a run's own server, where it had one."""
    shutil.rmtree(_stack_directory(record), ignore_errors=True)


def _announce(options: RunOptions, plan: Plan) -> None:
    if plan.resumed:
        answered = plan.resumed - plan.failed_before
        retry = f", --retry-failed includes the {plan.failed_before}" if plan.failed_before else ""
        _say(
            f"Resuming {options.output}: {answered} done, {plan.failed_before} failed, {plan.to_go} to go. "
            f"--fresh starts over{retry}."
        )
    if plan.bad:
        _say(f"{plan.bad} of {plan.total} lines are no requests; their reasons go to {options.output}.")


def _run_rows(options: RunOptions, record: RunRecord, output: OutputFile, done: set[str], interrupt: Interrupt) -> bool:
    """Bring up what is needed, run the rows, and stop what was started; returns whether all are written."""
    started = time.monotonic()
    with _reporter() as reporter:
        stack = None if options.redis else LocalStack(_stack_directory(record), options.flags)
        try:
            url = _start(stack, reporter) if stack else str(options.redis)
            with Client(url) as client:
                models = _models(client, stack, interrupt)
                runner = Runner(client, record, output, reporter, interrupt, models, stack)
                complete = bool(models) and runner.run(read_rows(options.source), done)
        finally:
            record.wall_s = time.monotonic() - started
            if stack:
                stack.stop()
    if complete:
        _forget_jobs(record)
    return complete


def _start(stack: LocalStack, reporter: Reporter) -> str:
    reporter.note("Starting a server and a worker; the model is loading.")
    return stack.start()


def _models(client: Client, stack: LocalStack | None, interrupt: Interrupt) -> set[str]:
    """Names of the models that are served; none where the user gave up waiting.

    Raises:
        LocalStackError: where no worker is there.
    """
    if stack:
        model = stack.wait_until_ready(given_up=lambda: interrupt.count > 0)
        return {model} if model else set()
    if not wait_for_workers(client, _WORKER_SECONDS):
        raise LocalStackError(
            f"no worker listens at {without_password(client.url)}; start one with `headrace worker`", NO_WORKER
        )
    return {worker.model for worker in client.workers()}


def _stack_directory(record: RunRecord) -> Path:
    """Where the run's own server keeps its data, so that an interrupted run finds its jobs again."""
    return _cache_directory() / "runs" / record.run_id


def _cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


@contextmanager
def _reporter() -> Iterator[Reporter]:
    console = Console(stderr=True)
    reporter: Reporter = BarReporter(console) if console.is_terminal else LineReporter(_say)
    with reporter:
        yield reporter


@contextmanager
def _interrupts() -> Iterator[Interrupt]:
    """Count Ctrl-C and SIGTERM instead of dying of them."""
    interrupt = Interrupt()

    def count(_number: int, _frame: Any) -> None:
        interrupt.count += 1

    previous = {number: signal.signal(number, count) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _conclude(options: RunOptions, record: RunRecord, complete: bool) -> int:
    """Print the summary and choose the exit code."""
    if not complete:
        record.exit_code = INTERRUPTED
    else:
        record.exit_code = FAILED_ROWS if record.counts.failed or record.counts.resumed_failed else OK
    record.save()
    for line in record.summary():
        _say(line)
    if not complete:
        _say(f"Interrupted. Nothing finished is lost; to go on: {shlex.join(_resume_command(options))}")
    elif record.exit_code == FAILED_ROWS:
        _say(f"To try the failed rows again: {shlex.join([*_resume_command(options), '--retry-failed'])}")
    return record.exit_code


def _resume_command(options: RunOptions) -> list[str]:
    command = ["headrace", "run", str(options.source), "-o", str(options.output)]
    if options.redis:
        return [*command, "--redis", without_password(options.redis)]
    defaults = set(EngineFlags().arguments())
    return command + [flag for flag in options.flags.arguments() if flag not in defaults]
