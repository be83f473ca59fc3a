"""Throughput and latency of the engine alone: token ids in, greedy, all requests at once.

python -m bench.engine
python -m bench.engine --workload FILE --max-num-batched-tokens 2048 --json
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict

from headrace.engine import Engine, EngineError, SamplingParams
from headrace.worker.engine_settings import engine_config

from . import options, report
from .workload import Job

WARM_UP_JOBS = 4


def run(engine: Engine, jobs: Sequence[Job]) -> report.Record:
    """Answer all jobs and measure.

    Returns:
        Throughput, and percentiles over requests of the time to the first token and over tokens of the time
        between two.
    """
    steps_before = engine.stats.steps
    start = time.perf_counter()
    for index, job in enumerate(jobs):
        params = SamplingParams(max_tokens=job.out, temperature=0, ignore_eos=True)
        engine.add(str(index), job.prompt, params)
    token_times: dict[str, list[float]] = defaultdict(list)
    while engine.has_work:
        outputs = engine.step()
        now = time.perf_counter()
        for output in outputs:
            token_times[output.request_id] += [now] * len(output.token_ids)
    wall_s = time.perf_counter() - start
    first = [times[0] - start for times in token_times.values()]
    between = [later - earlier for times in token_times.values() for earlier, later in itertools.pairwise(times)]
    out_tokens = sum(map(len, token_times.values()))
    return {
        **report.throughput(sum(len(job.prompt) for job in jobs), out_tokens, wall_s),
        **report.percentiles("ttft_s", first),
        **report.percentiles("itl_s", between),
        "requests": len(jobs),
        "steps": engine.stats.steps - steps_before,
        "peak_running": engine.stats.peak_running,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 2 where the settings or the model are impossible."""
    asked = options.parser("bench.engine", __doc__).parse_args(arguments)
    jobs = options.jobs(asked)
    try:
        config = engine_config(options.engine_flags(asked))
        engine = Engine.load(config)
        run(engine, jobs[:WARM_UP_JOBS])
        figures = run(engine, jobs)
    except EngineError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    record: report.Record = {
        "benchmark": "engine",
        **figures,
        "peak_rss_mb": report.peak_rss_mb(),
        "settings": {
            **asdict(config),
            "dtype": str(engine.kv_cache.data.dtype).removeprefix("torch."),
            "device": str(engine.kv_cache.data.device),
            "max_model_len": engine.max_model_len,
            "kv_blocks": engine.pool.num_blocks,
            "workload": str(asked.workload or "generated"),
        },
        "versions": report.versions(["headrace", "torch", "transformers"]),
        "machine": report.machine(),
    }
    report.print_record(record, as_json=asked.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
