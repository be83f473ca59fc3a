"""``quantization``: what it costs, and where it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from headrace.engine import ConfigError, Engine, EngineConfig
from headrace.engine.model import load_model

from bench.quality import agreement, perplexity, windows

from .runs import greedy, run
from .test_families import FAMILIES, NATIVE_FAMILIES
from .tiny_models import CPU, load, paged_logits, save_model, tiny_engine, token_ids

MOST_DEARER = 1.02
"""Perplexity of the demo model in int8 over that in bfloat16."""


@pytest.mark.parametrize("family", NATIVE_FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_stays_near_in_every_native_family(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    save_model(FAMILIES[family][0], tmp_path)
    ids = token_ids(41)
    exact = paged_logits(load(tmp_path), ids, [41])
    model = load_model(str(tmp_path), dtype, CPU, "int8")
    assert model.description.endswith(", int8")
    off = (paged_logits(model, ids, [5, 4, 12, 20]) - exact).abs().mean() / exact.abs().mean()
    assert 0 < off < 0.15


def test_int8_answers_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    save_model(FAMILIES["SmolLM2"][0], tmp_path)
    model = load_model(str(tmp_path), torch.float32, CPU, "int8")
    prompts = {str(length): token_ids(length) for length in (1, 7, 20, 33)}
    together = run(tiny_engine(model), prompts, greedy(12))
    for name, prompt in prompts.items():
        alone = run(tiny_engine(model), {name: prompt}, greedy(12))
        assert alone[name].token_ids == together[name].token_ids


def test_int8_costs_the_demo_model_little() -> None:
    """On a text that Python itself brings."""
    costs = []
    for quantization in ("none", "int8"):
        config = EngineConfig(dtype="bfloat16", quantization=quantization, prefix_cache=False)
        engine = Engine.load(config)
        costs.append(perplexity(engine, windows(engine, 2)))
    plain, quantized = costs
    assert plain < quantized < MOST_DEARER * plain


def test_agreement_counts_tokens_before_the_first_that_differs() -> None:
    assert agreement([[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 0, 4], [5, 6, 7, 8]]) == 6 / 8


def test_models_without_a_native_decoder_are_refused(tmp_path: Path) -> None:
    save_model(FAMILIES["GPT-NeoX"][0], tmp_path)
    with pytest.raises(ConfigError, match=r"quantization is 'int8', and .* is of type gpt_neox; .*: llama, mistral"):
        load_model(str(tmp_path), torch.float32, CPU, "int8")


def test_other_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="quantization is 'int8' and the device cuda; it is for cpu"):
        load_model(str(tmp_path), torch.float32, torch.device("cuda"), "int8")


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ConfigError, match="quantization is 'int4'; it must be one of none, int8"):
        EngineConfig(quantization="int4")  # type: ignore[arg-type]
