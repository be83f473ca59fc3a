"""transformers' own model code, run over our paged KV cache.

transformers lets a model's attention be exchanged by name (``AttentionInterface``). The model sees one flat
sequence ``[1, tokens]`` without a mask; our attention function receives the step's :class:`AttentionBatch` and
the cache through the keyword arguments that every decoder layer passes on.

What a model asks of its attention shows only when it runs, so a load ends with one token through all layers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from ..kernels import AttentionBatch, AttentionLayout, BulkIndex, paged_attention, store_kv
from .batch import ForwardBatch
from .errors import ModelError, first_line
from .kv_cache import KVCache, KVGeometry

ATTENTION_NAME = "headrace_paged"
ROPE_TYPES = ("default", "linear", "llama3", "yarn", "proportional")
"""Rotary embeddings whose angles depend on a token's position alone."""

# What some models hand to their attention function and ours would have to heed; the rest are hints.
_SINKS = {"s_aux", "sinks"}
_UNSUPPORTED = {"position_bias": "a position bias", "indices": "sparse keys", "block_indices": "sparse blocks"}


@dataclass
class LayerRecord:
    """What a model's layers asked of their attention, noted while one token ran through them."""

    windows: dict[int, int | None] = field(default_factory=dict)
    """The sliding window of each layer, by its index; None sees everything."""
    soft_cap: float | None = None

    def add(
        self,
        layer: int,
        cache: KVCache,
        keys_and_values: tuple[torch.Tensor, torch.Tensor],
        window: int | None,
        soft_cap: float | None,
    ) -> None:
        """Note one layer's call; keys and values are ``[1, kv_heads, tokens, head_dim]``.

        Raises:
            ModelError: where a layer comes twice, or its keys or values are not of the cache's shape.
        """
        if layer in self.windows:
            raise ModelError(f"layer {layer} of this model attends twice; headrace keeps one key and value a layer")
        kept = tuple(cache.data.shape[-2:])
        for tensor in keys_and_values:
            if (tensor.shape[1], tensor.shape[3]) != kept:
                raise ModelError(
                    f"layer {layer} of this model has {tensor.shape[1]} key-value heads of {tensor.shape[3]}, where "
                    f"its configuration says {kept[0]} of {kept[1]}; all layers, keys and values must be alike"
                )
        self.windows[layer] = window
        self.soft_cap = soft_cap


def _paged_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    attention_batch: AttentionBatch | None = None,
    kv_cache: KVCache | None = None,
    layer_record: LayerRecord | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Store this layer's keys and values, then attend; ``query`` is ``[1, heads, tokens, head_dim]``.

    Returns:
        ``[1, tokens, heads, head_dim]``, and no attention weights.

    Raises:
        ModelError: where the layer asks for what is not done here; only while a model is loaded.
    """
    if attention_batch is None or kv_cache is None:
        raise ModelError("this model does not hand on to its attention what it is called with")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    if layer_record is not None:
        _check_request(module, attention_mask, others)
        layer_record.add(layer, kv_cache, (key, value), sliding_window, softcap)
    key_cache, value_cache = kv_cache.layer(layer)
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


def _check_request(module: torch.nn.Module, attention_mask: torch.Tensor | None, others: dict[str, Any]) -> None:
    """Refuse what a layer asks of its attention and ours does not do.

    Raises:
        ModelError: naming it.
    """
    if getattr(module, "is_causal", True) is False:
        raise ModelError("this model is not causal: its tokens see what comes after them")
    if attention_mask is not None:
        raise ModelError("this model's layers mask keys by a rule of their own, which is not supported")
    asked = {name for name, value in others.items() if value is not None}
    if asked & _SINKS:
        raise ModelError("this model's attention sinks are not supported; headrace computes plain softmax attention")
    for name in sorted(asked & _UNSUPPORTED.keys()):
        raise ModelError(f"this model's attention needs {_UNSUPPORTED[name]}, which is not supported")


AttentionInterface.register(ATTENTION_NAME, _paged_attention_forward)


class TransformersModel:
    """A causal language model of transformers with paged attention.

    Args:
        path: a directory in transformers' format, or a hub id.
        dtype: of weights, activations and KV cache.
        device: where it runs.

    Raises:
        ModelError: where the model cannot be read, or its attention cannot be exchanged.

    Attributes:
        module: transformers' own.
        record: what its layers ask of their attention.
        description: which path the model takes, in one line.
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
            if error.args == (ATTENTION_NAME,):  # looked up in a model's own table of attentions
                raise ModelError(_not_exchangeable(f"a model of the type {config.model_type}")) from error
            raise ModelError(f"cannot load the model {path}: {first_line(error)}") from error
        if report["missing_keys"]:
            missing = ", ".join(sorted(report["missing_keys"])[:3])
            raise ModelError(f"the checkpoint {path} lacks {len(report['missing_keys'])} weights, such as {missing}")
        _check_attention(model)
        self.config = model.config
        self.generation_config = model.generation_config
        self.geometry = geometry
        self.dtype, self.device = dtype, device
        self.module: Any = model.to(device).eval()
        self.record = self._try_one_token(path)
        self.description = self.describe("transformers' modules")

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding: token ids from here on do not exist."""
        return int(self.module.get_input_embeddings().num_embeddings)

    @property
    def is_tied(self) -> bool:
        """Whether the embedding's weight is also the head's."""
        head = self.module.get_output_embeddings()
        return head is not None and head.weight is self.module.get_input_embeddings().weight

    @torch.inference_mode()
    def _try_one_token(self, path: str) -> LayerRecord:
        """Run one token through all layers, and note what each asked of its attention.

        Raises:
            ModelError: where a layer needs what our attention does not do, or a layer's keys are not kept.
        """
        cache = KVCache(
            self.geometry,
            memory=self.geometry.block_bytes(1, self.dtype),
            block_size=1,
            max_model_len=1,
            max_num_seqs=1,
            dtype=self.dtype,
            device=self.device,
        )
        bulk = BulkIndex()
        layout = AttentionLayout.build(
            bulk, slots=[0], block_tables=[[0]], query_lens=[1], context_lens=[1], block_size=1
        )
        zero = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        attention = layout.on_device(bulk.to(self.device))
        record = LayerRecord()
        try:
            self._run(ForwardBatch(zero, zero, attention, zero[0], ()), cache, record)
        except (TypeError, ValueError, AttributeError, LookupError, RuntimeError, NotImplementedError) as error:
            name = type(self.module).__name__
            raise ModelError(f"cannot run the model {path}, a {name}: {first_line(error)}") from error
        if sorted(record.windows) != list(range(self.geometry.num_layers)):
            raise ModelError(
                f"{len(record.windows)} of the {self.geometry.num_layers} layers of {path} use the attention that they "
                "are given; headrace runs models of which all do"
            )
        _check_windows(self.module, record)
        return record

    def describe(self, path: str) -> str:
        """One line: ``llama: transformers' modules with paged attention, 30 layers, 3 KV heads of 64, …``.

        Args:
            path: what computes the layers.
        """
        record = self.record
        sliding = sorted(window for window in record.windows.values() if window is not None)
        layers = f"{len(record.windows)} layers"
        if sliding:
            layers += f" ({len(sliding)} sliding by {' or '.join(map(str, dict.fromkeys(sliding)))})"
        geometry = self.geometry
        heads = f"{geometry.num_kv_heads} KV head{'s' * (geometry.num_kv_heads > 1)} of {geometry.head_dim}"
        cap = [] if record.soft_cap is None else [f"attention capped at {record.soft_cap:g}"]
        kind = f"{self.config.get_text_config().model_type}: {path} with paged attention"
        dtype = str(self.dtype).removeprefix("torch.")
        return ", ".join(
            [kind, layers, heads, *cap, f"{dtype} on {self.device}", f"{'tied' if self.is_tied else 'untied'} head"]
        )

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> torch.Tensor:
        """Compute a step.

        Returns:
            float32 logits ``[rows, vocabulary]``, only for the batch's ``logits_rows``.
        """
        return self._run(batch, kv_cache)

    def _run(self, batch: ForwardBatch, kv_cache: KVCache, record: LayerRecord | None = None) -> torch.Tensor:
        output = self.module(
            input_ids=batch.input_ids,
            position_ids=batch.positions,
            use_cache=False,
            logits_to_keep=batch.logits_rows,
            attention_batch=batch.attention,
            kv_cache=kv_cache,
            layer_record=record,
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
    """Refuse models whose attention is not ours to compute.

    Raises:
        ModelError: naming the model's class.
    """
    if not getattr(model, "_supports_attention_backend", False) or getattr(model, "_is_stateful", False):
        raise ModelError(_not_exchangeable(type(model).__name__))


def _not_exchangeable(name: str) -> str:
    return (
        f"{name} does not let its attention be exchanged; headrace runs models that transformers can route "
        "through its AttentionInterface"
    )


def _check_windows(model: Any, record: LayerRecord) -> None:
    """Refuse models that have sliding windows in the masks which they make, and do not tell their attention.

    Raises:
        ModelError: naming the window.
    """
    text = model.config.get_text_config()
    window = getattr(text, "sliding_window", None)
    kinds = getattr(text, "layer_types", None)
    masks = hasattr(sys.modules[type(model).__module__], "create_sliding_window_causal_mask")
    if window is None or not masks:
        return
    expected = len(record.windows) if kinds is None else kinds.count("sliding_attention")
    told = sum(one is not None for one in record.windows.values())
    if told < expected:
        raise ModelError(
            f"{type(model).__name__} hides keys past {window} tokens in {expected} of its layers and hands that window "
            f"to the attention of {told}; headrace runs models that hand it to all"
        )


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
