"""Prompts that take several steps."""

from __future__ import annotations

import pytest
from headrace.engine.hf_model import TransformersModel

from .runs import assert_idle, drain, greedy, run
from .scripted import ScriptedModel, constant, scripted_engine
from .tiny_models import VOCABULARY, tiny_engine

CHUNK = 16


def prompt_of(length: int, salt: int = 0) -> list[int]:
    return [3 + (37 * position + 11 * salt + position * position) % (VOCABULARY - 3) for position in range(length)]


@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1])
def test_d14_a_chunked_prompt_is_answered_as_a_whole_one(tiny_llama: TransformersModel, length: int) -> None:
    whole = run(tiny_engine(tiny_llama), {"r": prompt_of(length)}, greedy(12))["r"]
    engine = tiny_engine(tiny_llama, max_num_batched_tokens=CHUNK)
    chunked = run(engine, {"r": prompt_of(length)}, greedy(12))["r"]
    assert chunked.token_ids == whole.token_ids
    assert len(set(whole.token_ids)) > 3, "the model says one thing only: a poor test"
    assert engine.stats.steps == -(-length // CHUNK) + 11
    assert_idle(engine)


def test_d14_two_long_prompts_with_a_decode_between(tiny_llama: TransformersModel) -> None:
    prompts = {"first": prompt_of(3 * CHUNK + 1, 1), "decode": prompt_of(2, 2), "second": prompt_of(2 * CHUNK + 5, 3)}
    alone = {
        name: run(tiny_engine(tiny_llama), {name: prompt}, greedy(15))[name].token_ids
        for name, prompt in prompts.items()
    }
    engine = tiny_engine(tiny_llama, max_num_batched_tokens=CHUNK)
    engine.add("decode", prompts["decode"], greedy(15))
    engine.step()
    engine.add("first", prompts["first"], greedy(15))
    engine.add("second", prompts["second"], greedy(15))
    answers = {"decode": alone["decode"][:1]}
    for name, answer in drain(engine).items():
        answers[name] = answers.get(name, []) + answer.token_ids
    assert answers == alone


@pytest.mark.parametrize("length", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1])
def test_d14_nothing_is_sampled_before_the_last_chunk(length: int) -> None:
    model = ScriptedModel(constant(7))
    engine = scripted_engine(model, max_num_seqs=4, max_num_batched_tokens=CHUNK)
    prompt = prompt_of(length)
    engine.add("r", prompt, greedy(2))
    for start in range(0, length, CHUNK):
        outputs = engine.step()
        assert model.steps[-1] == list(zip(prompt, range(length), strict=True))[start : start + CHUNK]
        assert [output.token_ids for output in outputs] == ([(7,)] if start + CHUNK >= length else [])
    assert drain(engine)["r"].token_ids == [7]
    assert model.steps[-1] == [(7, length)]


@pytest.mark.parametrize("steps", [1, 2])
def test_d14_abort_between_chunks(steps: int) -> None:
    engine = scripted_engine(ScriptedModel(constant(7)), max_num_seqs=4, max_num_batched_tokens=CHUNK)
    engine.add("r", prompt_of(2 * CHUNK + 1), greedy(2))
    for _ in range(steps):
        assert engine.step() == []
    assert engine.pool.num_free < engine.pool.num_blocks
    assert engine.abort("r")
    assert_idle(engine)
    assert run(engine, {"r": prompt_of(5)}, greedy(2))["r"].token_ids == [7, 7]
