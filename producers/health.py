"""Whether jobs can be answered now: what the workers of a Redis last said of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from redis import Redis

from .keys import Keys


class Health(StrEnum):
    """How it stands, the best first."""

    READY = "ready"
    STARTING = "starting"
    """A worker loads its model, or starts its engine again."""
    DRAINING = "draining"
    """The only workers finish their jobs and take no more."""
    NO_WORKER = "no worker"
    NO_REDIS = "no redis"


@dataclass(frozen=True)
class WorkerHealth:
    """A worker that reported not long ago."""

    worker_id: str
    model: str
    state: str
    """Its own word: ``ready``, ``draining``, ``starting``, ``restarting``; ``gone`` once its heartbeat has run out."""
    running: int
    """Jobs that it owns."""
    heard_s: float
    """Seconds since it last reported, as far as its clock and Redis' agree."""

    @property
    def health(self) -> Health:
        """What that means for jobs."""
        if self.state == "gone":
            return Health.NO_WORKER
        return {"ready": Health.READY, "draining": Health.DRAINING}.get(self.state, Health.STARTING)


def read_workers(redis: Redis, keys: Keys) -> list[WorkerHealth]:
    """All workers that reported within the last leases, also those that have gone since.

    Raises:
        RedisError: where Redis does not answer.
    """
    reported: Any = redis.zrange(keys.workers, 0, -1, withscores=True)
    with redis.pipeline(transaction=False) as pipe:
        pipe.time()
        for worker_id, _ in reported:
            pipe.hgetall(keys.worker(worker_id))
            pipe.pttl(keys.worker(worker_id))
        (seconds, microseconds), *replies = pipe.execute()
    now = seconds + microseconds / 1e6
    return [
        # A hash that never expires is what a worker left that died in the middle of its first heartbeat.
        _parse(worker_id, fields if left_ms > 0 else {}, max(0.0, now - last_ms / 1000))
        for (worker_id, last_ms), fields, left_ms in zip(reported, replies[::2], replies[1::2], strict=True)
    ]


def _parse(worker_id: str, fields: dict[str, str], heard_s: float) -> WorkerHealth:
    return WorkerHealth(
        worker_id=worker_id,
        model=fields.get("model", ""),
        state=fields.get("state", "gone"),
        running=int(fields.get("running", 0)),
        heard_s=round(heard_s, 1),
    )


def chosen(workers: Sequence[WorkerHealth], *, worker: str | None, model: str | None) -> list[WorkerHealth]:
    """Those that are asked for, the best first.

    Args:
        worker: an id, or its beginning up to a dash, such as the name of the worker's host.
        model: a model's name; a worker that is gone counts, since it cannot say what it served.
    """
    found = [
        each
        for each in workers
        if (worker is None or each.worker_id == worker or each.worker_id.startswith(f"{worker.rstrip('-')}-"))
        and (model is None or each.model == model or each.state == "gone")
    ]
    order = list(Health)
    return sorted(found, key=lambda each: (order.index(each.health), each.worker_id))


def advice(found: Sequence[WorkerHealth], *, worker: str | None, model: str | None) -> str | None:
    """One sentence: what is wrong and what to do; None where all is well."""
    start = f"`headrace worker{f' --model {model}' if model else ''}`"
    if not found:
        which = (f" {worker}" if worker else "") + (f" for model {model}" if model else "")
        return f"no worker{which} has reported; start one with {start}"
    best = found[0]
    match best.health:
        case Health.READY:
            return None
        case Health.STARTING:
            return f"worker {best.worker_id} is {best.state}; wait, and look at its log where it goes on"
        case Health.DRAINING:
            return f"worker {best.worker_id} is draining and takes no more jobs; start another with {start}"
        case _:
            recent = min(found, key=lambda each: each.heard_s)
            return (
                f"worker {recent.worker_id} was last heard {recent.heard_s:.0f} s ago and is gone; "
                f"look at its log, and start one with {start}"
            )
