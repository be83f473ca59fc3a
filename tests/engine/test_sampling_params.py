"""Hostile numbers are refused with their name and value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from headrace.engine import RequestError, SamplingParams

from .runs import drain, greedy
from .sampling import make_request, sample
from .scripted import VOCABULARY, ScriptedModel, scripted_engine

NAN, INFINITY = float("nan"), float("inf")

REFUSED: list[tuple[str, Any]] = [
    *(("temperature", value) for value in (NAN, "NaN", "1", INFINITY, -INFINITY, -1, -1e-9, 2.01, None, True, [1])),
    *(("top_p", value) for value in (0, 0.0, NAN, 1.5, -0.1, INFINITY, "1", None)),
    *(("top_k", value) for value in (-1, 1.5, NAN, INFINITY, "3", True, None)),
    *(("min_p", value) for value in (-0.1, 1.1, NAN, "0", None)),
    *(("seed", value) for value in (-1, 1 << 64, 10**30, 7.0, NAN, "7", True, None)),
    *(("max_tokens", value) for value in (0, -1, 1.5, NAN, "5", True)),
    *(("n", value) for value in (0, -1, 129, 1.0, True, None)),
    *(("min_tokens", value) for value in (-1, 0.5, True, None)),
    *(("presence_penalty", value) for value in (NAN, 10, -2.1, INFINITY, "1", None)),
    *(("frequency_penalty", value) for value in (NAN, 10, -2.1, INFINITY, "1", None)),
    *(("repetition_penalty", value) for value in (NAN, 0, -1, 1e-30, 1e30, INFINITY, "1", None)),
    *(("logprobs", value) for value in (-1, 21, 1.0, True)),
    *(("prompt_logprobs", value) for value in (-1, 21, 1.0, True)),
    *(("logit_bias", value) for value in ({5: NAN}, {5: 1e30}, {5: 100.5}, {5: "1"}, {"5": 1.0}, {1.5: 1.0})),
    ("allowed_token_ids", ()),
    *(("stop", value) for value in ("END", ("",), ("", "END"), (50256,), (None,))),
    *(("bad_words", value) for value in ("word", ("",), (5,))),
]  # fmt: skip

ALLOWED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.0},
    {"temperature": 1},
    {"temperature": 2},
    {"temperature": 1e-4},
    {"temperature": 5e-324},
    {"top_p": 1e-4},
    {"top_p": 5e-324},
    {"top_p": 1},
    {"top_k": 0},
    {"top_k": 1},
    {"top_k": VOCABULARY + 1},
    {"top_k": 10**30},
    {"min_p": 1},
    {"min_p": 5e-324},
    {"seed": (1 << 63) - 1},
    {"seed": 1 << 63},
    {"seed": (1 << 64) - 1},
    {"presence_penalty": 2, "frequency_penalty": -2},
    {"repetition_penalty": 0.01},
    {"repetition_penalty": 100},
    {"logit_bias": {0: 100, VOCABULARY - 1: -100}},
    {"allowed_token_ids": (7,)},
    {"min_tokens": 3},
    {"logprobs": 20},
    {"top_k": 1, "top_p": 1e-4, "min_p": 1, "temperature": 1e-4},
]


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=str)
def test_a9_out_of_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"^{name} is .*; it must be") as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert repr(value) in caught.value.message


@pytest.mark.parametrize("settings", ALLOWED, ids=str)
def test_a9_in_range_gives_a_token_and_leaves_the_neighbours_alone(settings: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, VOCABULARY, generator=generator)
    first = make_request(SamplingParams(seed=3, temperature=1.2, top_p=0.9))
    last = make_request(greedy())
    hostile = make_request(SamplingParams(**settings))
    alone = [sample(logits[:1], [first]), sample(logits[2:], [last])]
    tokens = sample(logits, [first, hostile, last])
    assert [tokens[:1], tokens[2:]] == alone
    assert tokens[1] is not None
    assert 0 <= tokens[1] < VOCABULARY


def test_a12_seventeen_stops_are_one_too_many() -> None:
    assert SamplingParams(stop=("x",) * 16).stop
    with pytest.raises(RequestError, match=r"^stop is 'a list of 17'; it must be at most 16 texts"):
        SamplingParams(stop=("x",) * 17)


def test_min_tokens_above_max_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match=r"^min_tokens is 6; it must be at most max_tokens \(5\)"):
        SamplingParams(min_tokens=6, max_tokens=5)


def test_a9_a_tiny_temperature_equals_greedy() -> None:
    logits = torch.randn(20, VOCABULARY, generator=torch.Generator().manual_seed(1))
    cold = [make_request(SamplingParams(temperature=1e-4, seed=seed)) for seed in range(20)]
    assert sample(logits, cold) == sample(logits, [make_request(greedy())] * 20)


def test_d1_top_k_1_equals_greedy() -> None:
    logits = torch.randn(20, VOCABULARY, generator=torch.Generator().manual_seed(1))
    best = [make_request(SamplingParams(top_k=1, seed=seed)) for seed in range(20)]
    assert sample(logits, best) == sample(logits, [make_request(greedy())] * 20)


def test_seeds_that_differ_in_the_highest_bit_draw_differently() -> None:
    logits = torch.zeros(1, VOCABULARY)
    drawn = {sample(logits, [make_request(SamplingParams(seed=seed))])[0] for seed in (5, 5 + (1 << 63), 5 + (1 << 62))}
    assert len(drawn) == 3


def test_the_noise_moves_on_with_the_position() -> None:
    model = ScriptedModel(lambda _request, _index: torch.zeros(VOCABULARY))
    engine = scripted_engine(model)
    engine.add("r", [5, 6], SamplingParams(max_tokens=20, seed=1, ignore_eos=True))
    assert len(set(drain(engine)["r"].token_ids)) > 15
