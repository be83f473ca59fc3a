"""Prompts and lengths at the edge of what fits."""

from __future__ import annotations

from typing import Any

import pytest
from headrace.engine import Engine, FinishReason, RequestError, SamplingParams

from .runs import assert_idle, drain, greedy, run
from .scripted import VOCABULARY, ScriptedModel, constant, scripted_engine


def context_64() -> Engine:
    return scripted_engine(ScriptedModel(constant(7), max_len=64))


@pytest.mark.parametrize(("max_tokens", "made"), [(None, 4), (1, 1), (4, 4), (5, 4), (10_000, 4), (10**30, 4)])
def test_a10_max_tokens_is_clamped_to_the_room(max_tokens: int | None, made: int) -> None:
    engine = context_64()
    answer = run(engine, {"r": [5] * 60}, greedy(max_tokens))["r"]
    assert answer.token_ids == [7] * made
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.last is not None
    assert (answer.last.prompt_tokens, answer.last.completion_tokens) == (60, made)
    assert_idle(engine)


def test_a10_max_tokens_0_is_refused() -> None:
    with pytest.raises(RequestError, match="max_tokens is 0; it must be an integer >= 1"):
        SamplingParams(max_tokens=0)


def test_a10_a_prompt_of_the_context_less_one_has_room_for_one_token() -> None:
    assert run(context_64(), {"r": [5] * 63}, greedy())["r"].token_ids == [7]


@pytest.mark.parametrize("prompt_len", [64, 65, 1000])
def test_a10_a_prompt_that_fills_the_context_is_refused(prompt_len: int) -> None:
    engine = context_64()
    with pytest.raises(RequestError, match=rf"{prompt_len} tokens \(max_tokens 5\).*limit of 64.*for 63") as caught:
        engine.add("r", [5] * prompt_len, greedy(5))
    assert caught.value.code == "context_length_exceeded"
    assert_idle(engine)


def test_a10_a_smaller_limit_of_the_operator_is_named() -> None:
    engine = scripted_engine(ScriptedModel(constant(7), max_len=64), max_model_len=16)
    with pytest.raises(RequestError, match="limit of 16"):
        engine.add("r", [5] * 16, greedy())
    assert len(run(engine, {"r": [5] * 10}, greedy())["r"].token_ids) == 6


def pool_of_8_blocks() -> Engine:
    return scripted_engine(ScriptedModel(constant(7), max_len=500), blocks=8, block_size=16)


@pytest.mark.parametrize("prompt_len", [7 * 16 - 1, 7 * 16, 7 * 16 + 1, 8 * 16 - 1, 8 * 16])
@pytest.mark.parametrize("max_tokens", [None, 1, 30, 10_000])
def test_d4_a_prompt_that_fits_ends_with_length(prompt_len: int, max_tokens: int | None) -> None:
    engine = pool_of_8_blocks()
    answer = run(engine, {"r": [5] * prompt_len}, greedy(max_tokens))["r"]
    # The last token drawn needs no keys and values, so one more than the pool holds is known at the end.
    room = 8 * 16 + 1 - prompt_len
    assert len(answer.token_ids) == min(max_tokens or room, room)
    assert answer.finish_reason is FinishReason.LENGTH
    assert_idle(engine)


def test_d4_a_prompt_that_never_fits_is_refused_and_holds_nobody_up() -> None:
    engine = pool_of_8_blocks()
    with pytest.raises(RequestError, match=r"129 tokens and the KV cache holds 128 \(8 blocks of 16\)") as caught:
        engine.add("never", [5] * 129, greedy())
    assert caught.value.code == "kv_capacity_exceeded"
    answers = run(engine, {name: [5] * 3 for name in "abc"}, greedy(4))
    assert {name: len(answer.token_ids) for name, answer in answers.items()} == {"a": 4, "b": 4, "c": 4}


def test_d4_small_ones_behind_one_that_takes_the_whole_pool_finish() -> None:
    engine = pool_of_8_blocks()
    engine.add("huge", [5] * 100, greedy())
    for name in "abc":
        engine.add(name, [5] * 3, greedy(4))
    engine.step()
    assert len(engine.scheduler.waiting) == 3, "the pool was not full"
    answers = drain(engine)
    assert {name: len(answer.token_ids) for name, answer in answers.items()} == {"huge": 29, "a": 4, "b": 4, "c": 4}
    assert_idle(engine)


def test_a11_an_empty_prompt_is_refused_and_the_next_one_answers() -> None:
    engine = context_64()
    with pytest.raises(RequestError, match="prompt is empty"):
        engine.add("empty", [], greedy())
    assert_idle(engine)
    assert run(engine, {"r": [5]}, greedy(2))["r"].token_ids == [7, 7]


@pytest.mark.parametrize("bad", [-1, VOCABULARY, 10**9, 1.5, True, "5", None])
def test_d7_ids_outside_the_model_are_refused_and_neighbours_answer(bad: Any) -> None:
    engine = context_64()
    engine.add("good", [5, VOCABULARY - 1], greedy(2))
    with pytest.raises(RequestError, match=rf"token id {bad!r}; this model's ids are 0 to {VOCABULARY - 1}") as caught:
        engine.add("bad", [5, bad], greedy(2))
    assert caught.value.param == "prompt"
    assert drain(engine)["good"].token_ids == [7, 7]
    assert_idle(engine)


def test_a_request_id_in_use_is_refused_and_may_come_again_later() -> None:
    engine = context_64()
    engine.add("r", [5, 6], greedy(3))
    for _ in range(2):
        with pytest.raises(RequestError, match="request id r is in use") as caught:
            engine.add("r", [5], greedy(1))
        assert caught.value.code == "duplicate_request"
        engine.step()
    assert len(drain(engine)["r"].token_ids) == 1
    assert len(run(engine, {"r": [5]}, greedy(4))["r"].token_ids) == 4


def test_the_callers_list_is_not_kept() -> None:
    model = ScriptedModel(constant(7))
    engine = scripted_engine(model)
    prompt = [5, 6]
    engine.add("r", prompt, greedy(2))
    prompt[:] = [8] * 9
    assert drain(engine)["r"].token_ids == [7, 7]
    assert model.steps == [[(5, 0), (6, 1)], [(7, 2)]]
