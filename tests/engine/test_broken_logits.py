"""A row whose numbers are no numbers ends alone."""

from __future__ import annotations

import pytest
import torch
from headrace.engine import FinishReason, SamplingParams
from headrace.engine.hf_model import TransformersModel

from .runs import assert_idle, drain, greedy, run
from .scripted import VOCABULARY, Answer, ScriptedModel, by_request, scripted_engine
from .tiny_models import tiny_engine


def row(value: float, *, everywhere: bool = False) -> torch.Tensor:
    logits = torch.zeros(VOCABULARY)
    logits[slice(None) if everywhere else 17] = value
    return logits


BROKEN = {
    "one nan": row(float("nan")),
    "all nan": row(float("nan"), everywhere=True),
    "infinity": row(float("inf")),
    "nothing allowed": row(-float("inf"), everywhere=True),
}


@pytest.mark.parametrize(
    "params", [greedy(4), SamplingParams(max_tokens=4, top_p=0.9, seed=2)], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_row_ends_with_an_error_and_the_others_go_on(broken: torch.Tensor, params: SamplingParams) -> None:
    scripts: dict[str, list[Answer]] = {"a": [40, 41, 42, 43], "broken": [50, broken], "c": [60, 61, 62, 63]}
    engine = scripted_engine(ScriptedModel(by_request(scripts)))
    answers = run(engine, {name: [5] for name in scripts}, params)
    assert answers["a"].token_ids == scripts["a"]
    assert answers["c"].token_ids == scripts["c"]
    ended = answers["broken"]
    assert ended.token_ids == [50]
    assert ended.finish_reason is FinishReason.ERROR
    assert ended.last is not None
    assert ended.last.error == "the model computed logits that are not finite"
    assert engine.stats.finished["error"] == 1
    assert engine.stats.generation_tokens == 9
    assert_idle(engine)


def test_one_impossible_token_is_no_error() -> None:
    logits = row(-float("inf"))
    logits[30] = 5
    engine = scripted_engine(ScriptedModel(lambda _request, _index: logits))
    assert run(engine, {"r": [5]}, greedy(2))["r"].token_ids == [30, 30]


def test_what_a_broken_request_left_in_its_blocks_harms_nobody(tiny_llama: TransformersModel) -> None:
    expected = run(tiny_engine(tiny_llama), {"r": [5, 6, 7]}, greedy(9))["r"].token_ids
    engine = tiny_engine(tiny_llama)
    engine.kv_cache.data.fill_(float("nan"))
    answers = run(engine, {"r": [5, 6, 7], "longer": list(range(3, 40))}, greedy(9))
    assert answers["r"].token_ids == expected
    assert all(answer.finish_reason is FinishReason.LENGTH for answer in answers.values())


def test_a_step_without_work_is_nothing() -> None:
    engine = scripted_engine(ScriptedModel(by_request({})))
    assert engine.step() == []
    assert engine.stats.steps == 0
    assert drain(engine) == {}
