"""A short run of the benchmark of faults, over the cluster that is there: nothing is lost, doubled or broken."""

from __future__ import annotations

from bench import faults

from .scenes import Scene

NUM_FAULTS = 8


def test_random_faults_lose_and_double_nothing(scene: Scene) -> None:
    record = faults.run(scene.cluster, NUM_FAULTS, in_flight=4, seed=13)
    assert record["lost"] == record["duplicated"] == record["broken_text"] == 0, record
    assert sum(record["faults"].values()) == NUM_FAULTS
    assert record["jobs"] > NUM_FAULTS
    assert record["unexpected_exits"] == 0
    assert record["resumed"] > 0, "no job was interrupted in mid-sentence"
