"""Simulate the scheduler over synthetic or recorded arrivals and say what each technique gains.

    python -m bench.scheduler                       a table for every load
    python -m bench.scheduler --json                one JSON object a load, the figures of merit in the last line
    python -m bench.scheduler --load bursts --policy priority,srpt --plot out.png

The scheduler, block pool and prefix cache are the real ones; a cost model stands for the GPU. Beside the policy that
was asked for it runs, on the same arrivals, static batching, and first come first served without chunked prefill.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from headrace.engine.scheduler import Scheduler

from .arrivals import LOADS, Arrival, Lengths, recorded
from .report import percentile
from .simulation import GPU, Finished, Outcome, Settings, as_request, by_label, simulate, simulated_scheduler
from .simulation import simulate_static as static

UNLIMITED = 1 << 30


def measure(arrivals: Sequence[Arrival], settings: Settings, gpu: GPU) -> dict[str, Outcome]:
    """The chosen policy and its rivals on the same arrivals."""
    plain = replace(settings, policy="fcfs")
    return {
        settings.policy: simulate(arrivals, settings, gpu),
        "fcfs": simulate(arrivals, plain, gpu),
        "srpt": simulate(arrivals, replace(settings, policy="srpt"), gpu),
        "fcfs without chunking": simulate(arrivals, replace(plain, max_num_batched_tokens=UNLIMITED), gpu),
        "fcfs without prefix cache": simulate(arrivals, replace(plain, prefix_cache=False), gpu),
        "static batching": static(arrivals, settings, gpu),
    }


def describe(outcome: Outcome) -> dict[str, Any]:
    """Figures of one simulation; times in seconds."""
    steps = outcome.step_seconds or [0.0]
    figures: dict[str, Any] = {
        "output_tok_s": round(outcome.throughput, 1),
        "seconds": round(outcome.seconds, 3),
        "slot_utilisation": round(outcome.slot_utilisation, 4),
        "kv_waste": round(outcome.kv_waste, 4),
        "prefill_tokens": outcome.prefill_tokens,
        "preemptions": outcome.preemptions,
        "step_s_max": round(max(steps), 5),
        "classes": {label: describe_class(records) for label, records in by_label(outcome.finished).items()},
    }
    if outcome.schedule_seconds:
        figures["schedule_ms_p50"] = round(1e3 * percentile(outcome.schedule_seconds, 50), 3)
        figures["schedule_ms_p99"] = round(1e3 * percentile(outcome.schedule_seconds, 99), 3)
    return figures


def describe_class(records: Sequence[Finished]) -> dict[str, float]:
    """Latency figures of one class of requests, in seconds."""
    gaps = [gap for record in records for gap in record.gaps] or [0.0]
    samples = {
        "ttft_s": [record.ttft for record in records],
        "itl_s": gaps,
        "latency_s": [record.latency for record in records],
    }
    figures = {
        f"{name}_p{rank}": round(percentile(values, rank), 5) for name, values in samples.items() for rank in (50, 99)
    }
    latencies = samples["latency_s"]
    return {"requests": len(records), "latency_s_mean": round(sum(latencies) / len(latencies), 4), **figures}


def schedule_cost(waiting: int, settings: Settings, steps: int = 500) -> tuple[float, float]:
    """Median and 99th percentile of ``schedule()`` in ms, with a full batch running and ``waiting`` in the queue."""
    scheduler = simulated_scheduler(settings, GPU().cost_model(settings.block_size))
    lengths = Lengths(random.Random(7))
    for index in range(waiting + settings.max_num_seqs):
        scheduler.add(as_request(index, Arrival(index * 1e-4, lengths.tokens(100), 300)))
    gc.collect()
    gc.freeze()  # the queue's objects are the load's, not the scheduler's
    costs = _timed_steps(scheduler, steps)
    gc.unfreeze()
    return 1e3 * percentile(costs, 50), 1e3 * percentile(costs, 99)


def _timed_steps(scheduler: Scheduler, steps: int) -> list[float]:
    costs = []
    for step in range(steps + 50):
        began = perf_counter()
        plan = scheduler.schedule()
        if step >= 50:  # the first steps only fill the batch
            costs.append(perf_counter() - began)
        scheduler.commit(plan)
        for chunk in plan.chunks:
            if chunk.samples:
                chunk.request.append_token(1)
                if chunk.request.finish_reason:
                    scheduler.finish(chunk.request)
    return costs


def figures_of_merit(count: int, settings: Settings, gpu: GPU) -> dict[str, float]:
    """What the scheduler is judged by: one batch of log-normal requests, and its own cost."""
    batch = LOADS["batch"](count, Lengths(random.Random(0)))
    outcomes = {policy: simulate(batch, replace(settings, policy=policy), gpu) for policy in ("fcfs", "srpt")}
    fcfs, srpt, plain = outcomes["fcfs"], outcomes["srpt"], static(batch, settings, gpu)
    prefix = LOADS["prefix"](300, Lengths(random.Random(0)))
    cached, computed = simulate(prefix, settings, gpu), simulate(prefix, replace(settings, prefix_cache=False), gpu)
    cost = replace(settings, num_blocks=1 << 17)
    p50_10k, p99_10k = schedule_cost(10_000, cost)
    p50_100k, p99_100k = schedule_cost(100_000, cost)
    return {
        "slot_utilisation": round(fcfs.slot_utilisation, 4),
        "kv_waste": round(fcfs.kv_waste, 4),
        "gain_over_static": round(fcfs.throughput / plain.throughput, 2),
        "srpt_latency_gain": round(1 - srpt.mean_latency / fcfs.mean_latency, 4),
        "prefix_tokens_saved": round(1 - cached.prefill_tokens / computed.prefill_tokens, 4),
        "schedule_ms_p50_10k": round(p50_10k, 3),
        "schedule_ms_p99_10k": round(p99_10k, 3),
        "schedule_ms_p50_100k": round(p50_100k, 3),
        "schedule_ms_p99_100k": round(p99_100k, 3),
    }


def plot(path: Path, loads: dict[str, dict[str, Outcome]]) -> None:
    """Running requests over time, and the distribution of latencies, for each load and each way to schedule."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # only who wants a picture needs it

    figure = Figure(figsize=(12, 4 * len(loads)), layout="constrained")
    for row, (load, outcomes) in zip(figure.subplots(len(loads), 2, squeeze=False), loads.items(), strict=True):
        _plot_load(row[0], row[1], load, outcomes)
    figure.savefig(path, dpi=100)


def _plot_load(running: Any, latency: Any, load: str, outcomes: dict[str, Outcome]) -> None:
    for name, outcome in outcomes.items():
        times, now = [], 0.0
        for step in outcome.step_seconds:
            now += step
            times.append(now)
        if times:
            running.plot(times, outcome.running, label=name, linewidth=0.8)
        values = sorted(record.latency for record in outcome.finished)
        latency.plot(values, [index / len(values) for index in range(len(values))], label=name)
    running.set(title=f"{load}: requests running", xlabel="s", ylabel="requests")
    latency.set(title=f"{load}: latency", xlabel="s", ylabel="share ended by then")
    latency.legend()


def _table(load: str, outcomes: dict[str, Outcome]) -> None:
    print(f"\n{load}")
    print(f"  {'':28}{'tok/s':>8}{'slots':>8}{'waste':>8}{'prefill':>10}{'mean s':>9}{'p99 s':>9}{'paused':>8}")
    for name, outcome in outcomes.items():
        figures = describe(outcome)
        every = figures["classes"]["all"]
        print(
            f"  {name:28}{figures['output_tok_s']:8.0f}{figures['slot_utilisation']:8.3f}{figures['kv_waste']:8.3f}"
            f"{figures['prefill_tokens']:10}{every['latency_s_mean']:9.2f}{every['latency_s_p99']:9.2f}"
            f"{sum(outcome.preemptions.values()):8}"
        )


def main() -> None:
    """Parse the command line, simulate, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.scheduler", description=__doc__.split("\n")[0])
    parser.add_argument("--load", choices=[*LOADS], action="append", help="which loads; all by default")
    parser.add_argument("--recorded", type=Path, help="a JSON list of {prompt, out, time} to replay instead")
    parser.add_argument("--requests", type=int, default=1000, help="requests a load")
    parser.add_argument("--batch", type=int, default=10_000, help="requests behind the figures of merit")
    parser.add_argument("--policy", default="fair,priority,srpt,prefix", help="as the worker's --policy")
    parser.add_argument("--blocks", type=int, default=Settings.num_blocks, help="KV blocks of 16 tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, help="draw the loads into this PNG")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    settings = Settings(policy=options.policy, num_blocks=options.blocks)
    loads: dict[str, dict[str, Outcome]] = {}
    names = ["recorded"] if options.recorded else options.load or [*LOADS]
    for name in names:
        lengths = Lengths(random.Random(options.seed))
        arrivals = recorded(options.recorded) if options.recorded else LOADS[name](options.requests, lengths)
        outcomes = loads[name] = measure(arrivals, settings, GPU())
        if options.json:
            print(json.dumps({"load": name, **{key: describe(outcome) for key, outcome in outcomes.items()}}))
        else:
            _table(name, outcomes)
    if options.plot:
        plot(options.plot, loads)
    merit = figures_of_merit(options.batch, replace(settings, policy="fcfs"), GPU())
    print(json.dumps(merit) if options.json else "\n" + "\n".join(f"  {k:24}{v}" for k, v in merit.items()))


if __name__ == "__main__":
    main()
