"""The real Gemma 3 270M, from its GGUF file: sliding and full layers with angles of their own, heads of 256."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from headrace.engine import Engine, EngineConfig
from headrace.engine.hf_model import TransformersModel
from headrace.engine.loader import resolve_model
from headrace.engine.resolve import eos_token_ids
from transformers import AutoTokenizer

from .gemma import MIN_MARGIN, SAMPLE, gemma_file
from .runs import assert_idle, drain, greedy
from .tiny_models import CPU

WINDOW = 512


@pytest.fixture(scope="module")
def directory() -> str:
    return resolve_model(str(gemma_file())).path


@pytest.fixture(scope="module")
def model(directory: str) -> TransformersModel:
    return TransformersModel(directory, torch.float32, CPU)


@pytest.fixture(scope="module")
def tokenizer(directory: str) -> Any:
    return AutoTokenizer.from_pretrained(directory)


@pytest.fixture(scope="module")
def sample() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = json.loads(SAMPLE.read_text())
    return loaded


def test_the_path_that_a_load_reports(model: TransformersModel) -> None:
    assert model.description == (
        "gemma3_text: transformers' modules with paged attention, 18 layers (15 sliding by 512), 1 KV head of 256, "
        "float32 on cpu, tied head"
    )


def test_the_file_becomes_the_configuration_that_google_published(model: TransformersModel) -> None:
    config = model.config
    assert config.layer_types == (["sliding_attention"] * 5 + ["full_attention"]) * 3
    assert config.sliding_window == WINDOW
    assert config.rope_parameters["full_attention"] == {"rope_type": "default", "rope_theta": 1_000_000.0}
    assert config.rope_parameters["sliding_attention"] == {"rope_type": "default", "rope_theta": 10_000.0}
    assert (config.head_dim, config.query_pre_attn_scalar) == (256, 256)
    assert config.max_position_embeddings == 32768
    assert config.attn_logit_softcapping is config.final_logit_softcapping is None


def test_the_tokenizer_begins_with_bos_and_knows_both_ends(
    model: TransformersModel, tokenizer: Any, sample: dict[str, dict[str, Any]]
) -> None:
    assert tokenizer.convert_tokens_to_ids(["<bos>", "<eos>", "<end_of_turn>"]) == [2, 1, 106]
    assert eos_token_ids(model, tokenizer) == {1, 106}
    for case in sample.values():
        assert tokenizer(case["prompt"]).input_ids == case["prompt_ids"]
        assert case["prompt_ids"][:2].count(2) == 1


@pytest.mark.parametrize("chunk", [96, 2048])
def test_greedy_answers_are_those_of_transformers(
    model: TransformersModel, tokenizer: Any, sample: dict[str, dict[str, Any]], chunk: int
) -> None:
    """All in one batch; in chunks of 96 tokens, window edges fall inside and between chunks."""
    config = EngineConfig(
        dtype="float32", max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=chunk, kv_cache_memory=1 << 27
    )
    engine = Engine(model, tokenizer, config, "gemma")
    for name, case in sample.items():
        engine.add(name, engine.encoder.encode_text(case["prompt"]), greedy(len(case["ids"]), ignore_eos=False))
    answers = drain(engine)
    for name, case in sample.items():
        assert case["margin"] >= MIN_MARGIN
        assert answers[name].token_ids == case["ids"], name
        assert answers[name].text == case["text"]
    assert engine.stats.peak_running == len(sample)
    assert sum(len(case["prompt_ids"]) > WINDOW for case in sample.values()) == 2
    assert_idle(engine)
