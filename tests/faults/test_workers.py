"""Workers killed, frozen, and told to stop, with jobs in mid-sentence."""

from __future__ import annotations

import signal
import time

import pytest
from headrace.producers import Delta, JobState, Started

from bench.fault_cluster import WorkerProcess

from ..support import alive
from .scenes import LONG, SHORT, Scene, freeze, milliseconds, thaw

CLAIM_MS = 1000
"""A worker that was told to stop claims nothing after so long."""
SLACK_S = 3.0
"""For a loaded machine, beside what is promised."""


def test_c2_a_frozen_worker_loses_its_job_and_its_writes_are_refused(scene: Scene) -> None:
    job_id = scene.client.submit(LONG)
    frozen = scene.owner_of(job_id)
    [other] = scene.others(frozen)
    before, refused = scene.refusals(other), scene.refusals(frozen)
    freeze(frozen)
    try:
        scene.wait_for(lambda: scene.client.status(job_id).attempt == 2, "another worker has taken the job")
        assert scene.owner_of(job_id, attempt=2) is other
    finally:
        thaw(frozen)
    assert scene.client.status(job_id).state is JobState.RUNNING, "the second attempt is not over when the first wakes"
    scene.wait_for(lambda: scene.refusals(frozen) > refused, "the first owner was refused")
    scene.check_resumed(job_id)
    assert scene.deliveries(job_id) == 2
    assert scene.refusals(other) == before
    scene.wait_for(lambda: frozen.count("running") == frozen.count("engine_running") == 0, "it has dropped the job")
    assert frozen.alive, "it is of use again"


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_c5_a_job_ends_while_its_worker_is_frozen(scene: Scene, how: str) -> None:
    """The end does not wait for the worker, and nothing follows it."""
    job_id = scene.client.submit({**LONG, "ttl": 3} if how == "expired" else LONG)
    frozen = scene.owner_of(job_id)
    refused = scene.refusals(frozen)
    freeze(frozen)
    try:
        if how == "cancelled":
            assert scene.client.cancel(job_id) is JobState.CANCELLED
        result = scene.client.result(job_id, timeout=60)
        events = list(scene.client.stream(job_id))
    finally:
        thaw(frozen)
    assert result.state.value == how
    scene.wait_for(lambda: scene.refusals(frozen) > refused, "it was refused")
    scene.wait_for(lambda: frozen.count("running") == frozen.count("engine_running") == 0, "it has dropped the job")
    assert list(scene.client.stream(job_id)) == events, "something was written after the end"
    deltas = [event for event in events if isinstance(event, Delta)]
    assert deltas
    assert scene.text.startswith("".join(delta.text for delta in deltas))


def test_a_killed_workers_job_goes_on_in_another(scene: Scene) -> None:
    job_id = scene.client.submit(LONG)
    killed = scene.owner_of(job_id)
    engine = killed.engine_pid
    assert engine is not None
    killed.signal(signal.SIGKILL)
    scene.check_resumed(job_id)
    assert scene.deliveries(job_id) == 2
    assert scene.client.status(job_id).worker != killed.worker_id
    assert not alive(engine), "the engine outlived its worker"


def stop_in_order(scene: Scene, stopped: WorkerProcess, long: str, *, times: int, within_s: float) -> None:
    """SIGTERM a worker that runs a long job: it claims nothing, and gives the job back with its progress."""
    [other] = scene.others(stopped)
    told_ms = int(time.time() * 1000)
    stopped.signal(signal.SIGTERM)
    # The other is frozen still, so that nobody else could take these.
    late = scene.client.submit_many([SHORT] * 3)
    for _ in range(times - 1):
        time.sleep(0.3)
        stopped.signal(signal.SIGTERM)
    scene.wait_for(lambda: scene.client.status(long).state is JobState.QUEUED, "the job is handed back")
    assert time.time() * 1000 - told_ms < (within_s + SLACK_S) * 1000
    assert scene.deliveries(long) == 0, "what is handed back in order does not count"
    thaw(other)
    events = scene.check_resumed(long)
    assert scene.client.status(long).worker == other.worker_id
    assert any(isinstance(event, Delta) and event.attempt == 1 for event in events)
    assert stopped.process.wait(within_s + SLACK_S) == 0
    for job_id in late:
        assert scene.client.result(job_id, timeout=60).state is JobState.SUCCEEDED
        for event in scene.client.stream(job_id):
            if isinstance(event, Started) and event.worker == stopped.worker_id:
                assert milliseconds(event) < told_ms + CLAIM_MS, "a worker that was told to stop claimed a job"


def test_c4_sigterm_lets_short_jobs_finish_and_hands_back_a_long_one(scene: Scene) -> None:
    stopped = scene.cluster.workers[0]
    try:
        long, short = scene.submit_to_one(LONG, SHORT, worker=stopped)
        stop_in_order(scene, stopped, long, times=1, within_s=scene.cluster.settings.drain_grace_s)
    finally:
        thaw(*scene.cluster.workers)
    finished = scene.client.result(short, timeout=60)
    assert (finished.state, finished.attempt, finished.completion_tokens) == (JobState.SUCCEEDED, 1, 20)


def test_c4_a_second_sigterm_hands_back_at_once(scene: Scene) -> None:
    """Its grace time is far longer than the test."""
    stopped = scene.cluster.renew(scene.cluster.workers[0], drain_grace_s=300.0)
    scene.wait_until_idle()
    try:
        [long] = scene.submit_to_one(LONG, worker=stopped)
        stop_in_order(scene, stopped, long, times=2, within_s=2.0)
    finally:
        thaw(*scene.cluster.workers)
