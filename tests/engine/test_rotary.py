"""Rotary angles: every type that transformers has is either its own to the last bit, or refused at load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from headrace.engine import ModelError
from headrace.engine.hf_model import ROPE_TYPES, TransformersModel
from transformers import AutoConfig, Gemma3TextConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from .tiny_models import (
    CPU,
    SMALL,
    change_config,
    check_logits,
    llama_config,
    load,
    save_model,
    token_ids,
    transformers_logits,
)

THETA = 500000.0
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "proportional": {"partial_rotary_factor": 0.5},
    "dynamic": {"factor": 2.0},
    "longrope": {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 64},
}
DTYPES = [torch.float32, torch.bfloat16]
POSITIONS = torch.tensor([[0, 1000, 8000, 60000]])


def save_with_rope(directory: Path, rope_type: str) -> Path:
    save_model(llama_config(), directory)
    change_config(directory, rope_parameters={"rope_type": rope_type, "rope_theta": THETA, **SETTINGS[rope_type]})
    return directory


def test_d18_every_type_of_transformers_has_its_settings_here() -> None:
    """A type that a newer transformers adds must be decided on."""
    assert {"default", *ROPE_INIT_FUNCTIONS} == SETTINGS.keys()
    assert set(ROPE_TYPES) < SETTINGS.keys()


@pytest.mark.parametrize("rope_type", ["default", *ROPE_INIT_FUNCTIONS])
def test_d18_every_type_of_transformers_is_supported_or_refused_at_load(tmp_path: Path, rope_type: str) -> None:
    save_with_rope(tmp_path, rope_type)
    if rope_type in ROPE_TYPES:
        check_logits(tmp_path, token_ids(90), [64, 26])
        return
    allowed = "supported are default, linear, llama3, yarn, proportional"
    with pytest.raises(ModelError, match=f"is of the type '{rope_type}'; {allowed}"):
        load(tmp_path)


def test_d18_a_type_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    save_model(llama_config(), tmp_path)
    change_config(tmp_path, rope_parameters={"rope_type": "spiral", "rope_theta": THETA})
    with pytest.raises(ModelError, match="is of the type 'spiral'; supported are"):
        load(tmp_path)


@pytest.mark.parametrize("rope_type", [name for name in ROPE_TYPES if name != "default"])
def test_d18_each_supported_type_changes_the_logits(tmp_path: Path, rope_type: str) -> None:
    plain = transformers_logits(save_with_rope(tmp_path / "plain", "default"), token_ids(90))
    other = transformers_logits(save_with_rope(tmp_path / "other", rope_type), token_ids(90))
    assert not torch.allclose(other, plain, atol=1e-2)


def expected_frequencies(config: Any, rope_type: str) -> tuple[torch.Tensor, float]:
    """Inverse frequencies and the factor on cos and sin, float32; the default type by Su et al. 2021, equation 15."""
    if rope_type == "default":
        return 1.0 / THETA ** (torch.arange(0, 16, 2) / 16), 1.0
    frequencies, factor = ROPE_INIT_FUNCTIONS[rope_type](config, CPU)
    return frequencies, factor


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rope_type", ROPE_TYPES)
def test_d18_angles_of_a_loaded_model(tmp_path: Path, rope_type: str, dtype: torch.dtype) -> None:
    """They stay float32 in a bfloat16 model: at position 60,000 a rounded frequency would be off by whole turns."""
    save_with_rope(tmp_path, rope_type)
    frequencies, factor = expected_frequencies(AutoConfig.from_pretrained(tmp_path), rope_type)
    rotary: Any = TransformersModel(str(tmp_path), dtype, CPU).module.model.rotary_emb
    assert rotary.inv_freq.dtype is torch.float32
    torch.testing.assert_close(rotary.inv_freq, frequencies, rtol=1e-6, atol=0)
    angles = POSITIONS[..., None].float() * rotary.inv_freq
    cos, sin = rotary(torch.empty(1, dtype=dtype), POSITIONS)
    for found, function in ((cos, torch.cos), (sin, torch.sin)):
        assert found.dtype is dtype
        expected = (function(angles) * factor).repeat(1, 1, 2).to(dtype)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_d18_layers_of_gemma_3_have_their_own_angles(tmp_path: Path, dtype: torch.dtype) -> None:
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
    }
    config = Gemma3TextConfig(**SMALL, layer_types=["sliding_attention", "full_attention"], rope_parameters=rope)
    save_model(config, tmp_path)
    rotary: Any = TransformersModel(str(tmp_path), dtype, CPU).module.model.rotary_emb
    exponents = torch.arange(0, 16, 2) / 16
    for kind, expected in (("sliding_attention", 100.0**-exponents), ("full_attention", 10000.0**-exponents / 8)):
        frequencies = getattr(rotary, f"{kind}_inv_freq")
        assert frequencies.dtype is torch.float32
        torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
        cos, _ = rotary(torch.empty(1, dtype=dtype), POSITIONS, kind)
        angles = POSITIONS[..., None].float() * frequencies
        torch.testing.assert_close(cos, angles.cos().repeat(1, 1, 2).to(dtype), rtol=0, atol=1e-6)


def test_d18_a_type_for_one_kind_of_layer_alone_is_refused_too(tmp_path: Path) -> None:
    save_model(Gemma3TextConfig(**SMALL), tmp_path)
    change_config(
        tmp_path,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
        },
    )
    with pytest.raises(ModelError, match="is of the type 'dynamic'; supported are"):
        load(tmp_path)
