"""Engines killed and frozen under their workers, which live on."""

from __future__ import annotations

import signal
import time

from headrace.producers import JobState

from bench.fault_kinds import signal_engine

from .scenes import LONG, MAX_DELIVERIES, SHORT, Scene


def test_a_frozen_engine_costs_time_and_nothing_else(scene: Scene) -> None:
    """The worker renews the lease for as long as it waits."""
    job_id = scene.client.submit(LONG)
    worker = scene.owner_of(job_id)
    renewals = worker.count("lease_renewals")
    assert signal_engine(worker, signal.SIGSTOP)
    try:
        before = scene.client.status(job_id).completion_tokens
        time.sleep(1.5 * scene.cluster.settings.lease_s)
        assert scene.client.status(job_id).completion_tokens - before < LONG["max_tokens"] / 2, "it is not frozen"
    finally:
        assert signal_engine(worker, signal.SIGCONT)
    scene.check_resumed(job_id, attempts=1)
    scene.wait_for(lambda: worker.count("lease_renewals") > renewals, "leases were renewed")
    assert worker.count("engine_crashes") == 0


def test_a_killed_engines_job_goes_on_at_once(scene: Scene) -> None:
    job_id = scene.client.submit(LONG)
    worker = scene.owner_of(job_id)
    engine = worker.engine_pid
    crashes = worker.count("engine_crashes")
    assert signal_engine(worker, signal.SIGKILL)
    scene.check_resumed(job_id)
    assert scene.deliveries(job_id) == 2
    scene.wait_for(lambda: worker.count("engine_crashes") == crashes + 1, "the crash is counted")
    assert worker.alive
    scene.wait_for(lambda: worker.engine_pid not in (None, engine), "the worker has another engine")


def test_c3_a_job_in_which_engines_die_is_given_up_and_its_neighbour_is_not(scene: Scene) -> None:
    poison, neighbour = scene.client.submit_many([LONG, {**SHORT, "max_tokens": 400}])
    for death in range(1, MAX_DELIVERIES + 1):
        worker = scene.owner_of(poison, attempt=death)
        scene.wait_for(lambda worker=worker: worker.engine_pid, "its engine is known")  # type: ignore[misc]
        assert signal_engine(worker, signal.SIGKILL)
    given_up = scene.client.result(poison, timeout=60)
    assert given_up.state is JobState.FAILED
    assert given_up.error is not None
    assert given_up.error.code == "too_many_deliveries"
    assert "the engine's process was killed by signal 9" in given_up.error.message
    assert scene.cluster.redis.zrange(scene.client.keys.dead, 0, -1) == [poison]
    assert scene.client.result(neighbour, timeout=60).state is JobState.SUCCEEDED
