"""Requests join and leave while others run."""

from __future__ import annotations

from headrace.engine import Engine
from headrace.engine.hf_model import TransformersModel

from .runs import Answer, collect, drain, greedy, requests_of, run
from .scripted import ScriptedModel, constant, scripted_engine
from .tiny_models import tiny_engine


def test_sixty_four_prompts_run_at_once(tiny_llama: TransformersModel) -> None:
    engine = tiny_engine(tiny_llama, max_num_seqs=64)
    prompts = {str(index): [3 + index, 4 + index, 5 + index] for index in range(64)}
    answers = run(engine, prompts, greedy(12))
    assert engine.stats.peak_running > 32
    assert engine.stats.steps < 2 * 12
    assert all(len(answer.token_ids) == 12 for answer in answers.values())


def test_a_late_short_prompt_answers_before_an_earlier_long_one_ends() -> None:
    engine = scripted_engine(ScriptedModel(constant(7), max_len=200))
    engine.add("long", [5] * 10, greedy(100))
    for _ in range(5):
        engine.step()
    engine.add("late", [5] * 3, greedy(4))
    first = engine.step()
    assert [(output.request_id, output.token_ids) for output in first] == [("long", (7,)), ("late", (7,))]
    answers: dict[str, Answer] = {}
    for _ in range(3):
        collect(engine.step(), answers)
    assert answers["late"].finish_reason is not None
    assert answers["long"].finish_reason is None
    assert len(drain(engine, answers)["long"].token_ids) == 100 - 6


def test_a_long_prompt_does_not_hold_up_those_that_answer() -> None:
    engine = scripted_engine(ScriptedModel(constant(7), max_len=400), blocks=128, max_num_batched_tokens=16)
    engine.add("answering", [5] * 3, greedy(60))
    engine.step()
    engine.add("long", [5] * 300, greedy(4))
    steps = 0
    while requests_of(engine)["long"].num_computed_tokens < 300:
        tokens = {output.request_id: output.token_ids for output in engine.step()}
        assert tokens["answering"] == (7,)
        steps += 1
    assert steps == 20


def test_a_seat_that_frees_is_taken_in_the_next_step() -> None:
    engine = scripted_engine(ScriptedModel(constant(7)), max_num_seqs=2)
    for name, tokens in (("a", 2), ("b", 9), ("c", 2)):
        engine.add(name, [5], greedy(tokens))
    seen = [[output.request_id for output in engine.step()] for _ in range(4)]
    assert seen == [["a", "b"], ["a", "b"], ["b", "c"], ["b", "c"]]


def test_counters_and_times_of_an_output() -> None:
    engine = scripted_engine(ScriptedModel(constant(7)), max_num_seqs=1)
    engine.add("first", [5] * 3, greedy(2))
    engine.add("second", [5] * 4, greedy(1))
    [output] = engine.step()
    assert (output.prompt_tokens, output.completion_tokens, output.finish_reason) == (3, 1, None)
    answers = drain(engine)
    first, second = answers["first"].last, answers["second"].last
    assert first is not None
    assert second is not None
    assert first.ttft_seconds == output.ttft_seconds, "the first token's time moved"
    assert 0 <= first.queue_seconds <= first.ttft_seconds
    assert second.queue_seconds > first.ttft_seconds
    assert (engine.stats.prompt_tokens, engine.stats.generation_tokens) == (7, 3)
    assert engine.stats.finished == {"stop": 0, "length": 2, "abort": 0, "error": 0}


def token_counts(engine: Engine) -> list[int]:
    """Tokens computed in each of the steps still to come."""
    counts = []
    while engine.has_work:
        before = sum(r.num_computed_tokens for r in requests_of(engine).values())
        held = list(requests_of(engine).values())
        engine.step()
        counts.append(sum(r.num_computed_tokens for r in held) - before)
    return counts


def test_no_step_computes_more_than_the_budget() -> None:
    engine = scripted_engine(ScriptedModel(constant(7)), max_num_batched_tokens=16)
    for index in range(6):
        engine.add(str(index), [5 + index] * (7 * index + 1), greedy(5))
    counts = token_counts(engine)
    assert max(counts) == 16
    assert counts.count(16) >= 5
