"""Requests that are taken back."""

from __future__ import annotations

import random
from collections import Counter

from headrace.engine import FinishReason
from headrace.engine.invariants import check_scheduler

from .runs import assert_idle, drain, greedy, requests_of, run
from .scripted import ScriptedModel, constant, scripted_engine


def state_of(engine_id: str, waiting: set[str], decoding: set[str], known: set[str]) -> str:
    if engine_id not in known:
        return "gone"
    if engine_id in waiting:
        return "waiting"
    return "decoding" if engine_id in decoding else "prefilling"


def test_b7_aborts_at_random_points_leave_nothing_behind() -> None:
    engine = scripted_engine(ScriptedModel(constant(7)), blocks=40, max_num_seqs=6, max_num_batched_tokens=12)
    generator = random.Random(11)
    names = [f"r{index}" for index in range(200)]
    to_add, to_abort = list(names), set(names)
    added: set[str] = set()
    ended: Counter[str] = Counter()
    aborted_in: Counter[str] = Counter()
    while to_add or engine.has_work:
        if to_add and generator.random() < 0.4:
            name = to_add.pop()
            prompt = [generator.randint(3, 250) for _ in range(generator.randint(1, 50))]
            engine.add(name, prompt, greedy(generator.randint(1, 12)))
            added.add(name)
        for name in sorted(added & to_abort):
            if generator.random() < 0.04:
                waiting = {request.request_id for request in engine.scheduler.waiting}
                decoding = {r.request_id for r in engine.scheduler.running if r.output_token_ids}
                state = state_of(name, waiting, decoding, set(requests_of(engine)))
                aborted_in[state] += 1
                assert engine.abort(name) == (state != "gone")
                assert not engine.abort(name), "a second abort found it again"
                to_abort.remove(name)
                check_scheduler(engine.scheduler)
        for output in engine.step():
            assert output.request_id in added
            assert output.request_id in to_abort or not output.token_ids, "an aborted request went on"
            ended[output.request_id] += output.finish_reason is not None
        check_scheduler(engine.scheduler)
    for state in ("waiting", "prefilling", "decoding", "gone"):
        assert aborted_in[state] >= 5, aborted_in
    assert set(ended.values()) <= {0, 1}
    stopped = sum(count for state, count in aborted_in.items() if state != "gone")
    assert engine.stats.finished[FinishReason.ABORT.value] == stopped
    assert sum(engine.stats.finished.values()) == len(names)
    assert_idle(engine)
    assert run(engine, {"fresh": [5]}, greedy(3))["fresh"].token_ids == [7, 7, 7]


def test_b7_unknown_and_finished_requests_are_no_error() -> None:
    engine = scripted_engine(ScriptedModel(constant(7)))
    assert not engine.abort("unknown")
    run(engine, {"done": [5]}, greedy(1))
    assert not engine.abort("done")
    assert engine.stats.finished["abort"] == 0


def test_b7_an_id_can_be_used_again_right_after_its_abort() -> None:
    engine = scripted_engine(ScriptedModel(constant(7)))
    engine.add("r", [5, 6], greedy(9))
    engine.step()
    assert engine.abort("r")
    engine.add("r", [5], greedy(2))
    assert drain(engine)["r"].token_ids == [7, 7]
    assert_idle(engine)


def test_b7_the_neighbours_go_on() -> None:
    engine = scripted_engine(ScriptedModel(constant(7)))
    for name in "abc":
        engine.add(name, [5, 6], greedy(6))
    engine.step()
    engine.abort("b")
    answers = drain(engine)
    assert {name: len(answer.token_ids) for name, answer in answers.items()} == {"a": 5, "c": 5}
    assert_idle(engine)
