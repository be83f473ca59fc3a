"""Each family of models by name: logits of our forward are those of transformers', and a load says what it took."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace.engine.detokenizer import REPLACEMENT
from headrace.engine.hf_model import TransformersModel
from transformers import (
    AfmoeConfig,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from .runs import greedy, run
from .tiny_models import (
    CPU,
    SMALL,
    VOCABULARY,
    check_logits,
    llama_config,
    load,
    paged_logits,
    save_model,
    tiny_engine,
    token_ids,
    transformers_logits,
)
from .toy_tokenizers import byte_level

NATIVE = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text")
NO_HEAD_DIM = {name: value for name, value in SMALL.items() if name != "head_dim"}
PHI = NO_HEAD_DIM | {"num_attention_heads": 3, "num_key_value_heads": 3, "pad_token_id": 0}
GEMMA = SMALL | {"num_hidden_layers": 4, "initializer_range": 0.1, "sliding_window": 8, "query_pre_attn_scalar": 9}
MOE = SMALL | {"num_experts_per_tok": 2}
ALTERNATING = ["sliding_attention", "full_attention"] * 2
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
LOCAL_AND_GLOBAL = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
}
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
FAMILIES: dict[str, tuple[Any, str]] = {
    "Llama 3": (llama_config(rope_parameters=LLAMA3), "llama: 2 layers, 2 KV heads of 16, untied"),
    "SmolLM2": (
        llama_config(
            hidden_size=144,
            num_attention_heads=9,
            num_key_value_heads=3,
            tie_word_embeddings=True,
            initializer_range=0.15,
            rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        ),
        "llama: 2 layers, 3 KV heads of 16, tied",
    ),
    "Mistral": (
        MistralConfig(**SMALL, sliding_window=8),
        "mistral: 2 layers (2 sliding by 8), 2 KV heads of 16, untied",
    ),
    "Qwen2": (Qwen2Config(**NO_HEAD_DIM), "qwen2: 2 layers, 2 KV heads of 8, untied"),
    "Qwen2 with a window": (
        Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=8, max_window_layers=1),
        "qwen2: 2 layers (1 sliding by 8), 2 KV heads of 16, untied",
    ),
    "Qwen3": (Qwen3Config(**SMALL), "qwen3: 2 layers, 2 KV heads of 16, untied"),
    "Qwen3-MoE": (
        Qwen3MoeConfig(**MOE, num_experts=4, moe_intermediate_size=32, norm_topk_prob=True),
        "qwen3_moe: 2 layers, 2 KV heads of 16, untied",
    ),
    "Mixtral": (MixtralConfig(**MOE, num_local_experts=4), "mixtral: 2 layers, 2 KV heads of 16, untied"),
    "Phi-3": (
        Phi3Config(**PHI, sliding_window=8),
        "phi3: 2 layers (2 sliding by 8), 3 KV heads of 16, untied",
    ),
    "Phi-4-mini": (
        Phi3Config(**PHI, rope_parameters=HALF, tie_word_embeddings=True),
        "phi3: 2 layers, 3 KV heads of 16, tied",
    ),
    "Gemma 2": (
        Gemma2Config(**GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=3.0, layer_types=ALTERNATING),
        "gemma2: 4 layers (2 sliding by 8), 2 KV heads of 16, attention capped at 2, tied",
    ),
    "Gemma 3": (
        Gemma3TextConfig(**GEMMA, layer_types=ALTERNATING, rope_parameters=LOCAL_AND_GLOBAL),
        "gemma3_text: 4 layers (2 sliding by 8), 2 KV heads of 16, tied",
    ),
    "Gemma 3 with eyes": (
        Gemma3Config(
            text_config=GEMMA | {"layer_types": ALTERNATING, "rope_parameters": LOCAL_AND_GLOBAL},
            vision_config=VISION | {"image_size": 28, "patch_size": 14},
            mm_tokens_per_image=4,
            initializer_range=0.1,
        ),
        "gemma3_text: 4 layers (2 sliding by 8), 2 KV heads of 16, tied",
    ),
    "GPT-NeoX": (
        GPTNeoXConfig(
            vocab_size=VOCABULARY,
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=3,
            initializer_range=0.3,
        ),
        "gpt_neox: 2 layers, 3 KV heads of 16, untied",
    ),
    "GPT-2": (
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=48,
            n_layer=2,
            n_head=3,
            n_positions=64,
            initializer_range=0.3,
            scale_attn_by_inverse_layer_idx=True,
        ),
        "gpt2: 2 layers, 3 KV heads of 16, tied",
    ),
    "Afmoe, which names the mask": (
        AfmoeConfig(**MOE, num_experts=4, moe_intermediate_size=32, sliding_window=8, num_dense_layers=1),
        "afmoe: 2 layers (2 sliding by 8), 2 KV heads of 16, untied",
    ),
}
NATIVE_FAMILIES = [family for family, (_, says) in FAMILIES.items() if says.split(":")[0] in NATIVE]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    check_logits(save_model(FAMILIES[family][0], tmp_path), token_ids(41), [5, 4, 12, 20])


@pytest.mark.parametrize("family", NATIVE_FAMILIES)
def test_bfloat16_prefers_the_same_tokens_but_for_near_ties(tmp_path: Path, family: str) -> None:
    """Rounding moves the native decoder's logits no further than it moves those of transformers' modules."""
    save_model(FAMILIES[family][0], tmp_path)
    ids = token_ids(41)
    expected = transformers_logits(tmp_path, ids)
    theirs = paged_logits(TransformersModel(str(tmp_path), torch.bfloat16, CPU), ids, [41])
    ours = paged_logits(load(tmp_path, torch.bfloat16), ids, [5, 4, 12, 20])
    off, usual = (ours - expected).square().mean().sqrt(), (theirs - expected).square().mean().sqrt()
    assert 0 < off < 1.25 * usual
    preferred = expected.gather(1, ours.argmax(-1, keepdim=True))[:, 0]
    assert (expected.amax(-1) - preferred).max() < 0.02 * (expected.max() - expected.min())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_load_reports_which_path_the_model_takes(
    tmp_path: Path, family: str, caplog: pytest.LogCaptureFixture
) -> None:
    config, says = FAMILIES[family]
    save_model(config, tmp_path)
    with caplog.at_level(logging.INFO, logger="headrace.engine.model"):
        model = load(tmp_path)
    kind, rest = says.split(": ", 1)
    shape, head = rest.rsplit(", ", 1)
    path = "native decoder" if kind in NATIVE else "transformers' modules"
    assert model.description == f"{kind}: {path} with paged attention, {shape}, float32 on cpu, {head} head"
    assert [record.getMessage() for record in caplog.records] == [model.description]


@pytest.mark.parametrize("option", ["attn_logit_softcapping", "final_logit_softcapping", "sliding_window"])
def test_gemma_2_without_one_of_its_options_is_another_model(tmp_path: Path, option: str) -> None:
    """Each of them is really at work in the comparison above."""
    config, _ = FAMILIES["Gemma 2"]
    whole = paged_logits(load(save_model(config, tmp_path / "whole")), token_ids(41), [41])
    changed = Gemma2Config(**(config.to_dict() | {option: 64 if option == "sliding_window" else None}))
    logits = paged_logits(load(save_model(changed, tmp_path / "changed")), token_ids(41), [41])
    assert not torch.allclose(whole[-1], logits[-1], atol=1e-2)


def test_both_thetas_of_gemma_3_are_at_work(tmp_path: Path) -> None:
    config, _ = FAMILIES["Gemma 3"]
    whole = paged_logits(load(save_model(config, tmp_path / "whole")), token_ids(41), [41])
    for kind in LOCAL_AND_GLOBAL:
        rope = LOCAL_AND_GLOBAL | {kind: {"rope_type": "default", "rope_theta": 3000.0}}
        changed = Gemma3TextConfig(**(config.to_dict() | {"rope_parameters": rope}))
        logits = paged_logits(load(save_model(changed, tmp_path / kind)), token_ids(41), [41])
        assert not torch.allclose(whole[-1], logits[-1], atol=1e-2), kind


def test_d16_rows_past_the_tokenizer_are_harmless(tmp_path: Path) -> None:
    """A vocabulary padded to a round number: the tokenizer knows fewer ids than the model has rows."""
    tokenizer = byte_level()
    known = len(tokenizer)
    config = llama_config(vocab_size=known + 64)
    save_model(config, tmp_path)
    ids = [token % known for token in token_ids(21)]
    check_logits(tmp_path, ids, [5, 16])
    model = load(tmp_path)
    assert model.vocab_size == known + 64
    answers = run(tiny_engine(model), {"r": ids, "s": ids[:7]}, greedy(40))
    drawn = [token for answer in answers.values() for token in answer.token_ids]
    assert len(drawn) == 80
    assert any(token >= known for token in drawn), "no row past the tokenizer was drawn"
    for answer in answers.values():
        spelled = [token for token in answer.token_ids if token < known]
        expected = tokenizer.decode(spelled, skip_special_tokens=True)
        # A last character that was left incomplete is not in the answer.
        assert answer.text.removesuffix(REPLACEMENT) == expected.removesuffix(REPLACEMENT)
