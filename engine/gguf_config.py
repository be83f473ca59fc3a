"""What a GGUF file says of its model and transformers does not read.

transformers turns most of a file's metadata into a configuration. What it passes over changes the logits without
an error, so it is put right here, or the file is refused. The keys are llama.cpp's (``gguf-py/gguf/constants.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from .errors import ModelError

_END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_LARGEST_GEMMA = {"gemma2": 46, "gemma3_text": 62}
"""Layers of the 27B models, whose attention is scaled by another number; no key says so (llama.cpp goes by this)."""

Metadata = Mapping[str, Any]


def complete_config(config: Any, metadata: Metadata, rope_factors: Callable[[], torch.Tensor] | None) -> None:
    """Put a configuration of transformers right, in place.

    Args:
        config: what transformers made of the file.
        metadata: the file's keys and values.
        rope_factors: reads the tensor ``rope_freqs.weight``, float32 ``[head_dim / 2]``; None where there is none.

    Raises:
        ModelError: where the file scales its rotary angles in a way that is not supported.
    """
    prefix = metadata["general.architecture"]
    _complete_attention(config, metadata, prefix)
    _complete_rope(config, metadata, f"{prefix}.rope.scaling.")
    if rope_factors is not None:
        _complete_llama3(config, rope_factors())


def end_token_ids(config: Any, metadata: Metadata, tokenizer: Any) -> list[int]:
    """Every id that ends an answer: those that the file names, and Gemma's end of a turn, which no key names."""
    named = [metadata[f"tokenizer.ggml.{key}"] for key in _END_IDS if f"tokenizer.ggml.{key}" in metadata]
    if config.model_type.startswith("gemma"):
        named += [index for token, index in tokenizer.get_vocab().items() if token == "<end_of_turn>"]
    return sorted(set(map(int, named)))


def _complete_attention(config: Any, metadata: Metadata, prefix: str) -> None:
    window = metadata.get(f"{prefix}.attention.sliding_window")
    if window is not None and hasattr(config, "sliding_window"):
        config.sliding_window = int(window) or None
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if (cap := metadata.get(f"{prefix}.{name}")) is not None:
            setattr(config, name, float(cap))
    if config.model_type in _LARGEST_GEMMA:
        largest = config.num_hidden_layers == _LARGEST_GEMMA[config.model_type]
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads if largest else config.head_dim


def _complete_rope(config: Any, metadata: Metadata, prefix: str) -> None:
    scaling = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    kind = scaling.get("type", "none")
    if kind == "none":
        return
    if kind not in ("linear", "yarn") or any(key.startswith("yarn_") for key in scaling) or "factor" not in scaling:
        said = ", ".join(f"{key} {scaling[key]}" for key in sorted(scaling))
        raise ModelError(
            f"the GGUF file scales its rotary angles by {said}; supported are linear and yarn with a factor alone"
        )
    rope = {"rope_type": kind, "factor": float(scaling["factor"])}
    if kind == "yarn":
        original = scaling.get("original_context_length", config.max_position_embeddings)
        rope["original_max_position_embeddings"] = int(original)
    # Gemma 3 scales its global layers alone.
    config.rope_parameters.get("full_attention", config.rope_parameters).update(rope)


def _complete_llama3(config: Any, factors: torch.Tensor) -> None:
    """Recognise Llama 3.x' scaling by the factors that llama.cpp computed of it.

    Raises:
        ModelError: where they are others.
    """
    if bool((factors == 1).all()):
        return
    plain = 1.0 / config.rope_parameters["rope_theta"] ** (torch.arange(len(factors)) / len(factors))
    config.rope_parameters.update(
        rope_type="llama3",
        factor=float(factors.max()),
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
    if scaled.shape != factors.shape or not torch.allclose(plain / scaled, factors, rtol=1e-3):
        raise ModelError(
            "the GGUF file has rotary factors of its own (rope_freqs.weight) that are not those of Llama 3; "
            "give the model as a directory or a hub id"
        )
