"""Throughput and latency of the engine alone: token ids in, greedy, all requests at once.

python -m bench.engine
python -m bench.engine --workload FILE --max-num-batched-tokens 2048 --json
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from headrace.engine import Engine, EngineConfig, EngineError, SamplingParams

from . import report, workload
from .workload import Job

WARM_UP_JOBS = 4
_FLAGS = ("dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_memory", "device")


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--workload", type=Path, metavar="FILE", help="JSON list of {prompt: [ids], out: n}; default: 128 made-up jobs"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N jobs")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    group = parser.add_argument_group("engine", "see headrace.engine.EngineConfig")
    defaults = {field.name: field.default for field in fields(EngineConfig)}
    group.add_argument("--model", default=defaults["model"], help="default: %(default)s")
    for name in _FLAGS:
        default = defaults[name]
        kind = int if name not in ("dtype", "device") else str
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, help="default: %(default)s")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 2 where the settings or the model are impossible."""
    options = _parser().parse_args(arguments)
    jobs = workload.load(options.workload) if options.workload else workload.generate()
    jobs = jobs[: options.limit]
    try:
        config = EngineConfig(**{name: getattr(options, name) for name in ("model", *_FLAGS)})
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
            "workload": str(options.workload or "generated"),
        },
        "versions": report.versions(["headrace", "torch", "transformers"]),
        "machine": report.machine(),
    }
    report.print_record(record, as_json=options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
