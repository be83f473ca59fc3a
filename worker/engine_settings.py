"""From the command line's flags to the engine's settings."""

from __future__ import annotations

from ..engine import EngineConfig
from ..producers.engine_flags import EngineFlags


def engine_config(flags: EngineFlags) -> EngineConfig:
    """The engine's settings from its flags.

    Raises:
        ConfigError: where a value is out of range.
    """
    return EngineConfig(
        model=flags.model,
        dtype=flags.dtype,  # type: ignore[arg-type]  # the config itself refuses unknown names
        device=flags.device,
        max_model_len=flags.max_model_len,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        block_size=flags.block_size,
        kv_cache_memory=flags.kv_cache_memory,
    )
