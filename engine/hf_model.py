"""transformers' own model code, run over our paged KV cache.

transformers lets a model's attention be exchanged by name (``AttentionInterface``). The model sees one flat
sequence ``[1, tokens]`` without a mask; our attention function receives the step's :class:`AttentionBatch` and
the cache through the keyword arguments that every decoder layer passes on.
"""

from __future__ import annotations

from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from ..kernels import AttentionBatch, paged_attention, store_kv
from .batch import ForwardBatch
from .errors import ModelError, first_line
from .kv_cache import KVCache, KVGeometry

ATTENTION_NAME = "headrace_paged"
ROPE_TYPES = ("default", "linear", "llama3", "yarn", "proportional")
"""Rotary embeddings whose angles depend on a token's position alone."""


def _paged_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    *,
    attention_batch: AttentionBatch,
    kv_cache: KVCache,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_others: Any,
) -> tuple[torch.Tensor, None]:
    """Store this layer's keys and values, then attend; ``query`` is ``[1, heads, tokens, head_dim]``.

    Returns:
        ``[1, tokens, heads, head_dim]``, and no attention weights.
    """
    if s_aux is not None:
        raise ModelError("this model's attention sinks are not supported")
    key_cache, value_cache = kv_cache.layer(int(module.layer_idx))  # type: ignore[arg-type]
    store_kv(key[0].transpose(0, 1), value[0].transpose(0, 1), key_cache, value_cache, attention_batch.slot_mapping)
    output = paged_attention(
        query[0].transpose(0, 1),
        key_cache,
        value_cache,
        attention_batch,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        sliding_window=sliding_window,
        soft_cap=softcap,
    )
    return output[None], None


AttentionInterface.register(ATTENTION_NAME, _paged_attention_forward)


class TransformersModel:
    """A causal language model of transformers with paged attention.

    Args:
        path: a directory in transformers' format, or a hub id.
        dtype: of weights, activations and KV cache.
        device: where it runs.

    Raises:
        ModelError: where the model cannot be read, or its attention cannot be exchanged.
    """

    def __init__(self, path: str, dtype: torch.dtype, device: torch.device) -> None:
        transformers_logging.disable_progress_bar()
        try:
            config = AutoConfig.from_pretrained(path)
            _check_layers(config)
            geometry = _geometry(config)
            model, report = AutoModelForCausalLM.from_pretrained(
                path, config=config, dtype=dtype, attn_implementation=ATTENTION_NAME, output_loading_info=True
            )
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise ModelError(f"cannot load the model {path}: {first_line(error)}") from error
        if report["missing_keys"]:
            missing = ", ".join(sorted(report["missing_keys"])[:3])
            raise ModelError(f"the checkpoint {path} lacks {len(report['missing_keys'])} weights, such as {missing}")
        _check_attention(model)
        self.config = model.config
        self.generation_config = model.generation_config
        self.geometry = geometry
        self.dtype, self.device = dtype, device
        self._model = model.to(device).eval()

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding: token ids from here on do not exist."""
        return int(self._model.get_input_embeddings().num_embeddings)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> torch.Tensor:
        """Compute a step.

        Returns:
            float32 logits ``[rows, vocabulary]``, only for the batch's ``logits_rows``.
        """
        output = self._model(
            input_ids=batch.input_ids,
            position_ids=batch.positions,
            use_cache=False,
            logits_to_keep=batch.logits_rows,
            attention_batch=batch.attention,
            kv_cache=kv_cache,
        )
        logits: torch.Tensor = output.logits[0].float()
        return logits


def _check_layers(config: Any) -> None:
    """Refuse what a flat batch over a paged cache would compute wrongly, without an error.

    Raises:
        ModelError: where a layer is no plain or sliding attention, or positions are rotated by an angle that
            depends on the longest sequence of the batch.
    """
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    if others := sorted(kinds - {"full_attention", "sliding_attention"}):
        raise ModelError(f"this model has layers of the kind {', '.join(others)}, which are not supported")
    rope = getattr(text, "rope_parameters", None) or {}
    for parameters in rope.values() if "rope_type" not in rope else [rope]:
        rope_type = parameters.get("rope_type") if isinstance(parameters, dict) else None
        if rope_type is not None and rope_type not in ROPE_TYPES:
            raise ModelError(
                f"this model's rotary embedding is of the type {rope_type!r}; supported are {', '.join(ROPE_TYPES)}"
            )


def _check_attention(model: Any) -> None:
    """Refuse models whose attention is not ours to compute, or is not causal.

    Raises:
        ModelError: naming the model's class.
    """
    name = type(model).__name__
    if not getattr(model, "_supports_attention_backend", False) or getattr(model, "_is_stateful", False):
        raise ModelError(
            f"{name} does not let its attention be exchanged; headrace runs models that transformers can route "
            "through its AttentionInterface"
        )
    if any(getattr(module, "is_causal", True) is False for module in model.modules()):
        raise ModelError(f"{name} is not causal: its tokens see what comes after them")


def _geometry(config: Any) -> KVGeometry:
    """KV shape from a model's configuration.

    Raises:
        ModelError: where query heads cannot be shared out evenly among KV heads.
    """
    text = config.get_text_config()
    heads = int(text.num_attention_heads)
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    if heads % kv_heads:
        raise ModelError(f"{heads} attention heads cannot be shared among {kv_heads} key-value heads")
    head_dim = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    return KVGeometry(int(text.num_hidden_layers), kv_heads, head_dim)
