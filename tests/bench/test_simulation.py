"""What the scheduler gains, in simulated time: these figures come out the same everywhere."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from headrace.engine.policy import SRPT_MAX_SECONDS, SRPT_SECONDS_PER_TOKEN

from bench import scheduler as command
from bench.arrivals import LOADS, Arrival, Lengths, long_prompt, one_batch, recorded, shared_prefix
from bench.simulation import GPU, Outcome, Settings, simulate, simulate_static

GPU_MODEL = GPU()


def lengths(seed: int = 0) -> Lengths:
    return Lengths(random.Random(seed))


@pytest.fixture(scope="module")
def batch() -> list[Arrival]:
    return one_batch(3000, lengths())


@pytest.fixture(scope="module")
def fcfs(batch: list[Arrival]) -> Outcome:
    return simulate(batch, Settings(), GPU_MODEL)


def test_every_request_gets_all_its_tokens(batch: list[Arrival], fcfs: Outcome) -> None:
    for record in fcfs.finished:
        assert record.end >= record.first_token > 0
        assert len(record.gaps) == record.arrival.output - 1
    assert len(fcfs.finished) == len(batch)


def test_slots_are_full_while_anybody_waits(fcfs: Outcome) -> None:
    assert fcfs.slot_utilisation > 0.95


def test_little_memory_is_held_for_nothing(fcfs: Outcome) -> None:
    assert 0 < fcfs.kv_waste < 0.04


def test_static_batching_is_left_behind(batch: list[Arrival], fcfs: Outcome) -> None:
    static = simulate_static(batch, Settings(), GPU_MODEL)
    assert fcfs.throughput > 3 * static.throughput
    assert static.slot_utilisation < 0.5 < fcfs.slot_utilisation
    assert static.kv_waste > 0.3
    assert static.prefill_tokens > 2 * fcfs.prefill_tokens, "padding is computed as well"


def test_srpt_shortens_the_mean_and_keeps_its_bound(batch: list[Arrival], fcfs: Outcome) -> None:
    large = one_batch(6000, lengths())
    first, shortest = (simulate(large, Settings(policy=policy), GPU_MODEL) for policy in ("fcfs", "srpt"))
    assert shortest.mean_latency < 0.7 * first.mean_latency
    handicaps = [min(len(a.prompt) + a.output, SRPT_MAX_SECONDS / SRPT_SECONDS_PER_TOKEN) for a in large]
    order = sorted(range(len(large)), key=lambda index: shortest.finished[index].admitted)
    for earlier, later in pairwise(order):
        assert handicaps[earlier] <= handicaps[later], "a request is overtaken beyond the bound of its policy"


def p99(values: Sequence[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


def test_a_long_prompt_delays_decodes_by_no_more_than_one_budgeted_step() -> None:
    arrivals = long_prompt(0, lengths())
    alone = simulate(arrivals[:-1], Settings(), GPU_MODEL)
    together = simulate(arrivals, Settings(), GPU_MODEL)
    unchunked = simulate(arrivals, Settings(max_num_batched_tokens=1 << 30), GPU_MODEL)
    gaps = {
        name: [gap for record in outcome.finished for gap in record.gaps if record.arrival.label == "decoding"]
        for name, outcome in (("alone", alone), ("together", together), ("unchunked", unchunked))
    }
    budgeted_step = GPU_MODEL.seconds(2048, 5000 + 32 * 450)
    assert p99(gaps["together"]) <= p99(gaps["alone"]) + budgeted_step
    assert max(gaps["together"]) <= max(gaps["alone"]) + budgeted_step
    assert max(gaps["unchunked"]) > max(gaps["alone"]) + budgeted_step, "the prompt is not long enough to matter"


def test_shared_prefixes_are_computed_once() -> None:
    arrivals = shared_prefix(200, lengths())
    cached, computed = (simulate(arrivals, Settings(prefix_cache=on), GPU_MODEL) for on in (True, False))
    assert computed.prefill_tokens == sum(len(arrival.prompt) for arrival in arrivals)
    assert cached.prefill_tokens < 0.15 * computed.prefill_tokens


def test_memory_pressure_pauses_requests_and_loses_none() -> None:
    arrivals = one_batch(600, lengths())
    outcome = simulate(arrivals, Settings(num_blocks=1500), GPU_MODEL)
    assert sum(outcome.preemptions.values()) > 0
    assert all(len(record.gaps) == record.arrival.output - 1 for record in outcome.finished)


@pytest.mark.parametrize("load", [*LOADS])
def test_every_load_runs(load: str) -> None:
    arrivals = LOADS[load](60, lengths())
    outcome = simulate(arrivals, Settings(policy="fair,priority,srpt,prefix"), GPU_MODEL)
    assert all(record.end > 0 for record in outcome.finished)


def test_recorded_loads_and_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "load.json"
    path.write_text(json.dumps([{"prompt": [1, 2, 3], "out": 4}, {"prompt": [5], "out": 2, "time": 0.5}]))
    assert [arrival.time for arrival in recorded(path)] == [0.0, 0.5]
    picture = tmp_path / "out.png"
    arguments = ["--recorded", str(path), "--batch", "300", "--plot", str(picture), "--json"]
    monkeypatch.setattr(sys, "argv", ["bench.scheduler", *arguments])
    monkeypatch.setattr(command, "schedule_cost", lambda waiting, _settings: (waiting * 1e-9, waiting * 1e-9))
    command.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["fcfs"]["classes"]["all"]["requests"] == 2
    wanted = "slot_utilisation kv_waste gain_over_static srpt_latency_gain schedule_ms_p50_10k schedule_ms_p99_10k"
    assert {*wanted.split(), "schedule_ms_p50_100k"} <= set(lines[-1])
    assert picture.read_bytes().startswith(b"\x89PNG")
