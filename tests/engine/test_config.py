"""Settings that are refused, and what the automatic ones become."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from headrace.engine import ConfigError, EngineConfig
from headrace.engine.kv_cache import KVCache, KVGeometry
from headrace.engine.resolve import resolve_device, resolve_dtype

from .scripted import ScriptedModel, constant, scripted_engine

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dtype": "int8"}, "dtype is 'int8'; it must be one of auto, float32"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0; it must be at least 1"),
        ({"block_size": 0}, "block_size is 0; it must be at least 1"),
        ({"kv_cache_memory": -5}, "kv_cache_memory is -5; it must be at least 1"),
        ({"max_model_len": 1}, "max_model_len is 1; it must be at least 2"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 63}, r"is 63; it must be at least max_num_seqs \(64\)"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        EngineConfig(**settings)


@pytest.mark.parametrize("device", ["gpu", "mps", "meta", ""])
def test_devices_that_are_none_are_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=f"device is '{device}'; it must be auto, cpu, cuda or cuda:N"):
        resolve_device(device)


def test_automatic_dtype_goes_by_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_bfloat16, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda has=has_bfloat16: {"avx512_bf16": has})
        assert resolve_dtype(EngineConfig(), CPU) is dtype
    assert resolve_dtype(EngineConfig(dtype="float16"), CPU) is torch.float16


def test_a_context_past_the_models_is_refused() -> None:
    model = ScriptedModel(constant(7), max_len=64)
    with pytest.raises(ConfigError, match="max_model_len is 65; this model's limit is 64"):
        scripted_engine(model, max_model_len=65)
    assert scripted_engine(model, max_model_len=64).max_model_len == 64


def test_a_model_that_states_no_context_needs_one() -> None:
    model = ScriptedModel(constant(7))
    del model.config.get_text_config().max_position_embeddings
    with pytest.raises(ConfigError, match="states no context length; set max_model_len"):
        scripted_engine(model)
    assert scripted_engine(model, max_model_len=99).max_model_len == 99


def cache(memory: int, *, max_num_seqs: int = 4) -> KVCache:
    return KVCache(
        KVGeometry(num_layers=3, num_kv_heads=2, head_dim=8),
        memory=memory,
        block_size=4,
        max_model_len=10,
        max_num_seqs=max_num_seqs,
        dtype=torch.bfloat16,
        device=CPU,
    )


def test_the_cache_keeps_to_its_memory() -> None:
    block = 3 * 2 * 4 * 2 * 8 * 2  # layers, keys and values, tokens, heads, numbers, bytes
    assert cache(5 * block).num_blocks == 5
    assert cache(6 * block - 1).data.nbytes == 5 * block
    with pytest.raises(ConfigError, match=f"is {block - 1} bytes; one block of 4 tokens takes {block}"):
        cache(block - 1)


def test_the_cache_takes_no_more_than_all_seats_can_use() -> None:
    assert cache(1 << 30, max_num_seqs=4).num_blocks == 4 * 3


def test_a_layers_views_share_the_blocks_memory() -> None:
    subject = cache(1 << 20)
    key, value = subject.layer(1)
    key[2] = 5
    value[3] = 6
    assert (subject.data[2, 1, 0] == 5).all()
    assert (subject.data[3, 1, 1] == 6).all()
    assert subject.data.count_nonzero() == 2 * 4 * 2 * 8
