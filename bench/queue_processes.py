"""The processes beside a measurement of the queue: a whole worker around a null engine, a reader of many streams."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from headrace.producers.client import BLOCK_MS, Client
from headrace.producers.connection import connect
from headrace.producers.events import START, Delta, DeltaOrder, Finished, parse_event
from headrace.producers.keys import Keys
from headrace.worker.app import HeadraceApp
from headrace.worker.service import WorkerService
from headrace.worker.settings import WorkerSettings
from redis import Redis

from .null_engine import NullEngine

WORKER_ID = "null-worker"
READ_EVERY_S = 0.02
"""How often a reader of many streams reads them."""
_SPAWN = multiprocessing.get_context("spawn")
_START_S, _STOP_S = 60.0, 30.0


def _work(url: str, engine: dict[str, Any], settings: dict[str, Any]) -> None:
    service = WorkerService(WorkerSettings(redis_url=url, worker_id=WORKER_ID, **settings), NullEngine(**engine))
    raise SystemExit(HeadraceApp(service).run())


@contextmanager
def worker(
    url: str, redis: Redis, *, step_s: float | None = None, max_num_seqs: int = 256, **settings: Any
) -> Iterator[int]:
    """A worker with Celery and all, in a process of its own for the length of a block; its process id.

    Args:
        url: of the server.
        redis: a connection to it.
        step_s, max_num_seqs: of the :class:`NullEngine`.
        settings: other ones of :class:`WorkerSettings`.
    """
    process = _SPAWN.Process(target=_work, args=(url, {"step_s": step_s, "max_num_seqs": max_num_seqs}, settings))
    process.start()
    assert process.pid is not None
    try:
        deadline = time.monotonic() + _START_S
        while not worker_says(redis):
            if not process.is_alive() or time.monotonic() > deadline:
                raise RuntimeError(f"the worker did not start (exit status {process.exitcode})")
            time.sleep(0.02)
        yield process.pid
    finally:
        if process.is_alive():
            os.kill(process.pid, signal.SIGTERM)
        process.join(_STOP_S)
        if process.is_alive():
            process.kill()
            process.join()


def worker_says(redis: Redis) -> dict[str, str]:
    """The last heartbeat of the worker, which is at most a second old; empty where there is none."""
    said: Any = redis.hgetall(Keys().worker(WORKER_ID))
    return dict(said)


def read_all(url: str, job_ids: Sequence[str]) -> tuple[int, int, float, float]:
    """Follow the streams of many jobs to their ends, all over one connection.

    Returns:
        Tokens and deltas that came, and when (by the monotonic clock) the first and the last of them did.
    """
    keys = Keys()
    redis = connect(url)
    positions: dict[Any, Any] = {keys.events(job_id): START for job_id in job_ids}
    orders = {key: DeltaOrder(START) for key in positions}
    tokens = deltas = 0
    first = last = 0.0
    while positions:
        reply: Any = redis.xread(positions, block=BLOCK_MS)
        began = time.monotonic()
        for key, entries in reply:
            for position, fields in entries:
                event = orders[key].checked(parse_event(position, fields["event"]))
                if isinstance(event, Delta):
                    tokens += len(event.token_ids)
                    deltas += 1
            if entries and isinstance(event, Finished):
                del positions[key]
            elif entries:
                positions[key] = entries[-1][0]
        last = time.monotonic()
        first = first or (last if deltas else 0.0)
        # Reading so many streams costs the server much; what comes meanwhile is read in one reply.
        time.sleep(max(0.0, began + READ_EVERY_S - time.monotonic()))
    redis.close()
    return tokens, deltas, first, last


def _read(url: str, job_ids: Sequence[str], answer: Connection) -> None:
    answer.send("ready")
    answer.send(read_all(url, job_ids))


@contextmanager
def reader(url: str, job_ids: Sequence[str]) -> Iterator[Connection]:
    """A reader in a process of its own, ready to read; what :func:`read_all` returns comes over the connection."""
    ours, theirs = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_read, args=(url, job_ids, theirs))
    process.start()
    try:
        ours.recv()
        yield ours
    finally:
        process.join(_STOP_S)
        if process.is_alive():
            process.kill()
            process.join()


def wait_for_endings(client: Client, group: str, count: int) -> None:
    """Wait until so many jobs of a group have ended."""
    position = START
    while count > 0:
        endings = client.endings(group, after=position)
        if endings:
            position = endings[-1][0]
        count -= len(endings)
