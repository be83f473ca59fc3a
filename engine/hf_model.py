"""transformers' own model code, run over our paged KV cache.

transformers lets a model's attention be exchanged by name (``AttentionInterface``). The model sees one flat
sequence ``[1, tokens]`` without a mask; our attention function receives the step's :class:`AttentionBatch` and
the cache through the keyword arguments that every decoder layer passes on.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from ..kernels import AttentionBatch, paged_attention, store_kv
from .batch import ForwardBatch
from .errors import ModelError
from .kv_cache import KVCache, KVGeometry

ATTENTION_NAME = "headrace_paged"


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
            model, report = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, attn_implementation=ATTENTION_NAME, output_loading_info=True
            )
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"cannot load the model {path}: {error}") from error
        if report["missing_keys"]:
            missing = ", ".join(sorted(report["missing_keys"])[:3])
            raise ModelError(f"the checkpoint {path} lacks {len(report['missing_keys'])} weights, such as {missing}")
        if not getattr(model, "_supports_attention_backend", False):
            raise ModelError(
                f"{type(model).__name__} does not let its attention be exchanged; headrace runs models that "
                "transformers can route through its AttentionInterface"
            )
        self.config = model.config
        self.generation_config = model.generation_config
        self.geometry = _geometry(model.config)
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
