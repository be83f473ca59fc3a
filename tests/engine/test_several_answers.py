"""``n`` answers to one prompt: each as if it were alone, on shared blocks."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from headrace.engine import Engine, FinishReason, RequestError, RequestOutput, SamplingParams
from headrace.engine.hf_model import TransformersModel
from headrace.engine.invariants import check_scheduler

from .runs import assert_idle
from .schedulers import RECOMPUTE_IS_CHEAP, SWAP_IS_CHEAP
from .tiny_models import tiny_engine

BLOCK_SIZE = 4
Outputs = dict[tuple[str, int], list[RequestOutput]]


def outputs_of(engine: Engine, *, optimistic: bool = False) -> Outputs:
    """All outputs by request and answer."""
    outputs: Outputs = defaultdict(list)
    finished: set[str] = set()
    for _ in range(5_000):
        if not engine.has_work:
            break
        if optimistic:
            engine.scheduler.estimate.ratio = 0.0
        for output in engine.step():
            assert output.request_id not in finished, "an output after the last one"
            outputs[output.request_id, output.index].append(output)
            if output.finished:
                finished.add(output.request_id)
        check_scheduler(engine.scheduler)
    assert {request_id for request_id, _ in outputs} == finished
    assert_idle(engine)
    return outputs


def tokens_of(outputs: Outputs) -> dict[tuple[str, int], list[int]]:
    return {key: [token for one in parts for token in one.token_ids] for key, parts in outputs.items()}


def params(seed: int, n: int, max_tokens: int = 12, **settings: Any) -> SamplingParams:
    return SamplingParams(seed=seed, n=n, max_tokens=max_tokens, ignore_eos=True, **settings)


def engine_of(model: TransformersModel, blocks: int = 200, **settings: Any) -> Engine:
    memory = blocks * model.geometry.block_bytes(BLOCK_SIZE, model.dtype)
    return tiny_engine(model, kv_cache_memory=memory, debug=True, block_size=BLOCK_SIZE, **settings)


PROMPTS = {"a": list(range(10, 19)), "b": list(range(40, 48)), "c": [99]}


@pytest.fixture(scope="module")
def expected(tiny_llama: TransformersModel) -> dict[tuple[str, int], list[int]]:
    """Five answers to each prompt, each computed with nobody beside it and nothing cached."""
    tokens: dict[tuple[str, int], list[int]] = {}
    for name, prompt in PROMPTS.items():
        engine = engine_of(tiny_llama, prefix_cache=False, max_num_seqs=1)
        engine.add(name, prompt, params(len(prompt), 5))
        tokens |= tokens_of(outputs_of(engine))
        assert engine.scheduler.stats.forks == 0
    return tokens


def test_answers_share_the_prompts_blocks_and_differ(
    tiny_llama: TransformersModel, expected: dict[tuple[str, int], list[int]]
) -> None:
    engine = engine_of(tiny_llama, prefix_cache=False)
    for name, prompt in PROMPTS.items():
        engine.add(name, prompt, params(len(prompt), 5))
    outputs = outputs_of(engine)
    assert tokens_of(outputs) == expected
    assert len({tuple(tokens) for tokens in expected.values()}) == 15, "answers are independent"
    stats = engine.scheduler.stats
    assert stats.forks == 12
    # Of 9 tokens the third block is shared and half full, of 8 none is, of 1 the first is.
    assert stats.blocks_copied == 8
    assert engine.stats.prompt_tokens == 9 + 8 + 1, "each prompt is computed once"


def test_the_first_answer_is_that_of_a_request_for_one(
    tiny_llama: TransformersModel, expected: dict[tuple[str, int], list[int]]
) -> None:
    engine = engine_of(tiny_llama)
    engine.add("a", PROMPTS["a"], params(9, 1))
    assert tokens_of(outputs_of(engine))["a", 0] == expected["a", 0]


@pytest.mark.parametrize("cost", [SWAP_IS_CHEAP, RECOMPUTE_IS_CHEAP], ids=["swap", "recompute"])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_d2_answers_that_are_paused_while_they_share(
    tiny_llama: TransformersModel, expected: dict[tuple[str, int], list[int]], cost: Any, prefix_cache: bool
) -> None:
    engine = engine_of(tiny_llama, 9, prefix_cache=prefix_cache)
    engine.scheduler.cost = cost
    for name, prompt in PROMPTS.items():
        engine.add(name, prompt, params(len(prompt), 5))
    assert tokens_of(outputs_of(engine, optimistic=True)) == expected
    assert sum(engine.scheduler.stats.preemptions.values()) > 5
    assert engine.scheduler.stats.blocks_copied > 0


def test_answers_that_find_no_place_wait_for_one(
    tiny_llama: TransformersModel, expected: dict[tuple[str, int], list[int]]
) -> None:
    engine = engine_of(tiny_llama, max_num_seqs=3)
    for name, prompt in PROMPTS.items():
        engine.add(name, prompt, params(len(prompt), 5))
    assert tokens_of(outputs_of(engine)) == expected
    assert engine.scheduler.stats.forks < 12
    assert engine.scheduler.stats.prefix_cache_hits > 0, "they find the prompt in the prefix cache"


def test_greedy_answers_are_all_alike(tiny_llama: TransformersModel) -> None:
    engine = engine_of(tiny_llama)
    engine.add("a", PROMPTS["a"], params(1, 3, temperature=0))
    tokens = tokens_of(outputs_of(engine))
    assert tokens["a", 0] == tokens["a", 1] == tokens["a", 2]


def test_usage_and_ends_of_each_answer(tiny_llama: TransformersModel) -> None:
    engine = engine_of(tiny_llama)
    engine.add("a", PROMPTS["a"], params(1, 3, max_tokens=5))
    for (_, index), parts in outputs_of(engine).items():
        assert [part.finish_reason for part in parts] == [None] * 4 + [FinishReason.LENGTH]
        assert (parts[-1].completion_tokens, parts[-1].prompt_tokens, parts[-1].index) == (5, 9, index)
    assert engine.stats.finished["length"] == 3


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_b7_all_answers_end_with_an_abort(tiny_llama: TransformersModel, steps: int) -> None:
    engine = engine_of(tiny_llama, max_num_seqs=2)
    engine.add("a", PROMPTS["a"], params(1, 5))
    for _ in range(steps):
        engine.step()
    assert engine.abort("a")
    assert not engine.abort("a")
    engine.step()
    assert_idle(engine)
    engine.add("a", PROMPTS["a"], params(9, 2))
    assert len(outputs_of(engine)) == 2


def test_rules_of_each_answer_are_its_own(tiny_llama: TransformersModel) -> None:
    settings: dict[str, Any] = {"repetition_penalty": 1.5, "frequency_penalty": 1.0, "min_tokens": 3}
    together, alone = engine_of(tiny_llama), engine_of(tiny_llama, max_num_seqs=1)
    for engine in (together, alone):
        engine.add("a", PROMPTS["a"], params(3, 4, **settings))
    assert tokens_of(outputs_of(together)) == tokens_of(outputs_of(alone))


def test_too_many_answers_are_refused() -> None:
    with pytest.raises(RequestError, match=r"^n is 129; it must be an integer between 1 and 128$"):
        params(1, 129)
