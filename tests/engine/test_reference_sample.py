"""The demo model's greedy answers in float32 are those of transformers' own ``generate``."""

from __future__ import annotations

from typing import Any

import pytest
from headrace.engine import Engine, EngineConfig
from headrace.engine.hf_model import TransformersModel

from .runs import Answer, assert_idle, drain, greedy, run

Sample = list[dict[str, Any]]


def demo_engine(model: TransformersModel, tokenizer: Any, chunk: int) -> Engine:
    config = EngineConfig(
        dtype="float32", max_model_len=512, max_num_seqs=8, max_num_batched_tokens=chunk, kv_cache_memory=1 << 27
    )
    return Engine(model, tokenizer, config, "demo")


def add(engine: Engine, index: int, case: dict[str, Any]) -> None:
    prompt = engine.encoder.encode_chat([{"role": "user", "content": case["prompt"]}])
    engine.add(str(index), prompt, greedy(len(case["ids"]), ignore_eos=False))


def check(answers: dict[str, Answer], sample: Sample, eos: int) -> None:
    for index, case in enumerate(sample):
        answer = answers[str(index)]
        assert answer.token_ids == case["ids"]
        assert answer.text == case["text"]
        assert answer.finish_reason is not None
        assert answer.finish_reason.value == ("stop" if case["ids"][-1] == eos else "length")


@pytest.mark.parametrize("chunk", [16, 512])
def test_all_together(demo_model: TransformersModel, demo_tokenizer: Any, greedy_sample: Sample, chunk: int) -> None:
    engine = demo_engine(demo_model, demo_tokenizer, chunk)
    for index, case in enumerate(greedy_sample):
        add(engine, index, case)
    check(drain(engine), greedy_sample, demo_tokenizer.eos_token_id)
    assert engine.stats.peak_running == len(greedy_sample)
    assert engine.stats.prompt_tokens == sum(len(case["prompt_ids"]) for case in greedy_sample)
    assert engine.stats.generation_tokens == sum(len(case["ids"]) for case in greedy_sample)
    assert_idle(engine)


def test_chat_prompts_are_those_of_the_sample(
    demo_model: TransformersModel, demo_tokenizer: Any, greedy_sample: Sample
) -> None:
    engine = demo_engine(demo_model, demo_tokenizer, 512)
    for case in greedy_sample:
        assert engine.encoder.encode_chat([{"role": "user", "content": case["prompt"]}]) == case["prompt_ids"]


def test_one_after_another(demo_model: TransformersModel, demo_tokenizer: Any, greedy_sample: Sample) -> None:
    engine = demo_engine(demo_model, demo_tokenizer, 512)
    answers: dict[str, Answer] = {}
    for index, case in enumerate(greedy_sample):
        add(engine, index, case)
        drain(engine, answers)
    check(answers, greedy_sample, demo_tokenizer.eos_token_id)
    assert engine.stats.peak_running == 1


def test_one_after_another_in_chunks(demo_model: TransformersModel, demo_tokenizer: Any, greedy_sample: Sample) -> None:
    """Chunks matter to the prompt alone, so the first tokens of each answer do."""
    engine = demo_engine(demo_model, demo_tokenizer, 16)
    for index, case in enumerate(greedy_sample):
        assert len(case["prompt_ids"]) > 16
        answer = run(engine, {str(index): case["prompt_ids"]}, greedy(8))[str(index)]
        assert answer.token_ids == case["ids"][:8]


def test_d1_staggered_and_in_another_order(
    demo_model: TransformersModel, demo_tokenizer: Any, greedy_sample: Sample
) -> None:
    engine = demo_engine(demo_model, demo_tokenizer, 512)
    answers: dict[str, Answer] = {}
    waiting = list(enumerate(greedy_sample))[::-1]
    while waiting or engine.has_work:
        if waiting and engine.stats.steps % 3 == 0:
            add(engine, *waiting.pop(0))
        for output in engine.step():
            answer = answers.setdefault(output.request_id, Answer())
            answer.token_ids += output.token_ids
            answer.text += output.text
            answer.last = output
    check(answers, greedy_sample, demo_tokenizer.eos_token_id)
    assert engine.stats.peak_running > 2
