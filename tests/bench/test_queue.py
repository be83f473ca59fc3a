"""The benchmark of the queue runs, and says all that it should. What it measures is not checked here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ..support import environment

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--jobs", "40", "--streams", "4", "--tokens", "20", "--kept", "10", "--queued", "60")
FIGURES = {
    "submit_many_per_s",
    "submit_ms_p50",
    "jobs_per_s_chunked",
    "jobs_per_s_single",
    "first_token_ms_p50",
    "event_tok_per_s",
    "step_blocked_ms_max",
    "step_blocked_ms_p99",
    "redis_bytes_per_job",
    "redis_bytes_per_job_one_token_deltas",
    "ledger_us_at_1k",
    "ledger_us_at_100k",
}


def test_a_tiny_run_prints_all_figures() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.queue", *TINY, "--json"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    assert record["benchmark"] == "queue"
    assert record.keys() >= FIGURES | {"settings", "versions", "machine"}
    assert all(record[name] >= 0 for name in FIGURES)
    assert all(record[name] > 0 for name in FIGURES - {"step_blocked_ms_max", "step_blocked_ms_p99"})
    assert record["settings"]["streams"] == 4
    assert record["redis_bytes_per_job_one_token_deltas"] > record["redis_bytes_per_job"]
    assert record["one_token_log_length"] > 52, "deltas of about one token"
