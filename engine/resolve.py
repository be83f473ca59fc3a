"""From settings, and what a model says of itself, to what is in force."""

from __future__ import annotations

from typing import Any

import torch

from .config import EngineConfig
from .errors import ConfigError
from .model_protocol import Model


def max_model_len(config: EngineConfig, model: Model) -> int:
    """The context limit in force: the model's own, or a smaller one that was asked for.

    Raises:
        ConfigError: where the setting is above the model's limit, or neither states one.
    """
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if config.max_model_len is None:
        if limit is None:
            raise ConfigError("the model states no context length; set max_model_len")
        return int(limit)
    if limit is not None and config.max_model_len > limit:
        raise ConfigError(f"max_model_len is {config.max_model_len}; this model's limit is {limit}")
    return config.max_model_len


def eos_token_ids(model: Model, tokenizer: Any) -> frozenset[int]:
    """Every end-of-sequence id that the generation config, the model config or the tokenizer names."""
    named: set[int] = set()
    for source in (model.generation_config, model.config, tokenizer):
        value = getattr(source, "eos_token_id", None)
        if value is not None:
            named.update([value] if isinstance(value, int) else value)
    return frozenset(named)


def resolve_device(device: str) -> torch.device:
    """The device behind a setting.

    Raises:
        ConfigError: where there is none by that name.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device is {device!r}; it must be auto, cpu, cuda or cuda:N") from error
    if resolved.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {device!r}; it must be auto, cpu, cuda or cuda:N")
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {device!r}, and torch finds no CUDA device here")
    return resolved


def resolve_dtype(config: EngineConfig, device: torch.device) -> torch.dtype:
    """The dtype of weights, activations and KV cache."""
    if config.dtype != "auto":
        dtype: torch.dtype = getattr(torch, config.dtype)
        return dtype
    if device.type == "cuda" or _cpu_multiplies_bfloat16():
        return torch.bfloat16
    return torch.float32


def _cpu_multiplies_bfloat16() -> bool:
    """Whether this processor has bfloat16 products; emulated, they are slower than float32."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "amx_tile", "bf16"))
