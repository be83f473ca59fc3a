"""From a GGUF file to the model that was written into it, with what transformers does not read of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from headrace.engine import ModelError
from headrace.engine.gguf_config import complete_config, end_token_ids
from headrace.engine.loader import resolve_model
from transformers import AutoTokenizer, Gemma2Config, Gemma3TextConfig, GenerationConfig, LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from .gguf_files import write_gguf
from .tiny_models import SMALL, load, paged_logits, save_model, token_ids, transformers_logits

LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LLAMA = LlamaConfig(**SMALL, bos_token_id=2, eos_token_id=1, rope_parameters=LLAMA3)
GEMMA = Gemma3TextConfig(
    **SMALL,
    sliding_window=8,
    query_pre_attn_scalar=16,
    rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
    },
    layer_types=["sliding_attention"] * 2,
)


def llama3_factors() -> torch.Tensor:
    """What llama.cpp divides the plain frequencies by."""
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](LLAMA)
    factors: torch.Tensor = 1.0 / LLAMA3["rope_theta"] ** (torch.arange(0, 16, 2) / 16) / scaled
    return factors


@pytest.fixture
def converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a tiny model as a GGUF file, and loads that: the directories of both."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def convert(
        config: Any, architecture: str, keys: dict[str, Any], tensors: dict[str, torch.Tensor]
    ) -> tuple[Path, Path]:
        model = save_model(config, tmp_path / "model")
        gguf = write_gguf(tmp_path / "tiny.gguf", model, config, architecture, keys, tensors)
        return model, Path(resolve_model(str(gguf)).path)

    return convert


def check_same(model: Path, converted: Path) -> None:
    # Long enough that low frequencies, which scaling changes, have turned visibly.
    ids = token_ids(200)
    logits = paged_logits(load(converted), ids, [200])
    torch.testing.assert_close(logits, transformers_logits(model, ids), atol=2e-3, rtol=1e-3)


def test_llama_3_keeps_its_rotary_scaling(converted: Any) -> None:
    keys = {"rope.freq_base": 500000.0, "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.eot_token_id": 5}
    model, directory = converted(LLAMA, "llama", keys, {"rope_freqs.weight": llama3_factors()})
    loaded = load(directory)
    assert loaded.config.rope_parameters == LLAMA3
    assert loaded.generation_config.eos_token_id == [1, 5]
    check_same(model, directory)


def test_gemma_3_keeps_the_scaling_of_its_global_layers(converted: Any) -> None:
    keys = {
        "rope.freq_base": 1000000.0,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
        "attention.sliding_window": 8,
        "tokenizer.ggml.eos_token_id": 1,
    }
    model, directory = converted(GEMMA, "gemma3", keys, {})
    loaded = load(directory)
    assert loaded.config.rope_parameters == GEMMA.rope_parameters
    assert loaded.generation_config.eos_token_id == [1, 5]
    check_same(model, directory)


def test_rotary_factors_of_another_kind_are_refused(converted: Any) -> None:
    with pytest.raises(ModelError, match=r"rotary factors of its own \(rope_freqs\.weight\)"):
        converted(LLAMA, "llama", {"rope.freq_base": 500000.0}, {"rope_freqs.weight": torch.linspace(1, 3, 8)})


def metadata(architecture: str, **keys: Any) -> dict[str, Any]:
    return {"general.architecture": architecture} | {
        f"{architecture}.{name.replace('__', '.')}": value for name, value in keys.items()
    }


def test_yarn_is_taken_over() -> None:
    config = LlamaConfig(**SMALL)
    keys = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 64}
    complete_config(config, metadata("llama", **keys), None)
    rope = config.rope_parameters
    assert (rope["rope_type"], rope["factor"], rope["original_max_position_embeddings"]) == ("yarn", 4.0, 64)


@pytest.mark.parametrize(
    "keys",
    [
        {"rope__scaling__type": "longrope", "rope__scaling__attn_factor": 1.19},
        {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__yarn_log_multiplier": 0.1},
        {"rope__scaling__type": "linear"},
    ],
)
def test_scalings_that_are_not_understood_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"scales its rotary angles by .*; supported are linear and yarn"):
        complete_config(LlamaConfig(**SMALL), metadata("llama", **keys), None)


def test_rotary_scaling_of_none_changes_nothing() -> None:
    config = LlamaConfig(**SMALL)
    before = dict(config.rope_parameters)
    complete_config(config, metadata("llama", rope__scaling__type="none"), lambda: torch.ones(8))
    assert config.rope_parameters == before


@pytest.mark.parametrize(("window", "becomes"), [(0, None), (2047, 2047)])
def test_the_window_of_phi_3_is_read(window: int, becomes: int | None) -> None:
    config = Phi3Config(**SMALL, sliding_window=5, pad_token_id=0)
    complete_config(config, metadata("phi3", attention__sliding_window=window), None)
    assert config.sliding_window == becomes


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        (Gemma2Config(**(SMALL | {"num_hidden_layers": 46})), 8),
        (Gemma2Config(**SMALL), 16),
        (Gemma3TextConfig(**(SMALL | {"num_hidden_layers": 62})), 8),
        (Gemma3TextConfig(**SMALL), 16),
    ],
)
def test_the_largest_gemmas_scale_attention_by_their_width(config: Any, scale: int) -> None:
    caps = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0}
    complete_config(config, metadata("gemma2", **caps), None)
    assert config.query_pre_attn_scalar == scale
    assert (config.attn_logit_softcapping, config.final_logit_softcapping) == (3.0, 4.0)


def test_a_converted_model_is_whole(converted: Any) -> None:
    _, directory = converted(LLAMA, "llama", {"rope.freq_base": 500000.0, "tokenizer.ggml.eos_token_id": 1}, {})
    assert AutoTokenizer.from_pretrained(directory).convert_tokens_to_ids("<end_of_turn>") == 5
    assert GenerationConfig.from_pretrained(directory).eos_token_id == 1
    assert end_token_ids(LLAMA, {}, None) == []
