"""Settings of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .errors import ConfigError
from .policy import parse_policy
from .tenants import Tenant

DType = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["none", "int8"]
QUANTIZATIONS: tuple[Quantization, ...] = ("none", "int8")
DTYPES: tuple[DType, ...] = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class EngineConfig:
    """Everything that decides how a model is run.

    Raises:
        ConfigError: where a value is out of range.
    """

    model: str = "smollm2-135m-instruct"
    """Name of the demo model, a local directory, a ``.gguf`` file, or a hub id."""
    dtype: DType = "auto"
    """``auto``: the checkpoint's on a GPU; on a CPU bfloat16 where the processor has it, else float32."""
    quantization: Quantization = "none"
    """``int8``: most weights, and activations before their products, in 8 bits; for the native decoder on CPUs."""
    device: str = "auto"
    """``auto`` takes a CUDA device where there is one; else ``cpu``, ``cuda`` or ``cuda:N``."""
    max_model_len: int | None = None
    """Most tokens of prompt and output together; None takes the model's own limit."""
    max_num_seqs: int = 64
    """Most requests that run at once."""
    max_num_batched_tokens: int = 1024
    """Most tokens that one step computes."""
    block_size: int = 16
    """Tokens a KV block."""
    kv_cache_memory: int = 1 << 30
    """Bytes for the KV cache."""
    swap_memory: int = 1 << 30
    """Bytes of CPU memory for the keys and values of paused requests; 0 computes them again instead."""
    prefix_cache: bool = True
    """Share blocks among requests that begin alike."""
    policy: str = "fcfs"
    """Order of admission: names from :mod:`headrace.engine.policy`, separated by commas."""
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    """Shares and limits of tenants by name; others have weight 1 and no limits."""
    debug: bool = False
    """Fill freed blocks with NaN, so that a read of stale memory cannot go unnoticed."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype is {self.dtype!r}; it must be one of {', '.join(DTYPES)}")
        if self.quantization not in QUANTIZATIONS:
            raise ConfigError(f"quantization is {self.quantization!r}; it must be one of {', '.join(QUANTIZATIONS)}")
        for name in ("max_num_seqs", "block_size", "kv_cache_memory"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.swap_memory < 0:
            raise ConfigError(f"swap_memory is {self.swap_memory}; it must be at least 0")
        parse_policy(self.policy)
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError(f"max_model_len is {self.max_model_len}; it must be at least 2")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; it must be at least max_num_seqs "
                f"({self.max_num_seqs}), since each running request may need one token a step"
            )
