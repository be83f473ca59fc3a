"""The native decoder: one forward for all Llama-like families, of few and fused operations.

transformers remains the definition: it reads the checkpoint and says what a layer's attention asks for. What is
taken from it here are weights, with queries, keys and values in one matrix and gates beside their ups, and the few
ways in which families differ: norms of heads, norms after a layer's halves, biases, windows, caps. The code is the
same for every device; nearly all arithmetic is in :mod:`headrace.kernels`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..kernels import (
    Activation,
    HeadNorms,
    Linear,
    gated_activation,
    make_int8_linear,
    make_linear,
    paged_attention,
    rms_norm,
    rotate_and_store,
)
from .batch import ForwardBatch
from .config import Quantization
from .errors import ConfigError
from .hf_model import LayerRecord, TransformersModel
from .kv_cache import KVCache
from .model_protocol import Model

logger = logging.getLogger(__name__)

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text")
"""Types of models, as their configurations name them, that the native decoder computes."""
MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]
_MAKERS: dict[Quantization, MakeLinear] = {"none": make_linear, "int8": make_int8_linear}
_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True)
class Norm:
    """A root mean square norm."""

    weight: torch.Tensor
    """float32 ``[width]``."""
    epsilon: float

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Norm x, or its sum with the residual, which then is that sum."""
        return rms_norm(x, self.weight, self.epsilon, residual)


@dataclass(frozen=True)
class Layer:
    """One decoder layer."""

    input_norm: Norm
    qkv: Linear
    head_norms: HeadNorms | None
    rotation: str | None
    """Which rotation it takes, where a model has several."""
    window: int | None
    scale: float
    output: Linear
    after_attention_norm: Norm | None
    feed_forward_norm: Norm
    gate_up: Linear
    down: Linear
    after_feed_forward_norm: Norm | None


class NativeModel:
    """A causal language model of one of :data:`FAMILIES`, with paged attention.

    Args:
        loaded: the model as transformers reads it. Its weights are moved out of it: it is of no use afterwards.
        quantization: of all matrices but the head and the feed-forward layers' last, where 8 bits cost most.

    Attributes:
        description: which path the model takes, in one line.
    """

    def __init__(self, loaded: TransformersModel, quantization: Quantization = "none") -> None:
        self.config, self.generation_config = loaded.config, loaded.generation_config
        self.geometry, self.dtype, self.device = loaded.geometry, loaded.dtype, loaded.device
        self.vocab_size = loaded.vocab_size
        self.description = loaded.describe("native decoder")
        if quantization != "none":
            self.description += f", {quantization}"
        make = _MAKERS[quantization]
        text = self.config.get_text_config()
        decoder = loaded.module.get_decoder()
        self._rotary = decoder.rotary_emb
        self._activation = _ACTIVATIONS[_activation_name(text)]
        self._soft_cap = loaded.record.soft_cap
        self._logit_cap: float | None = getattr(text, "final_logit_softcapping", None)
        self._norm = _norm(decoder.norm)
        head = loaded.module.get_output_embeddings()
        self._head = make_linear(head.weight.detach())
        self._embedding = Embedding(decoder.embed_tokens, self._head if loaded.is_tied else None)
        kinds = text.layer_types if text.model_type == "gemma3_text" else [None] * self.geometry.num_layers
        self._layers = []
        for index, kind in enumerate(kinds):
            self._layers.append(_layer(decoder.layers[index], loaded.record, kind, make))
            decoder.layers[index] = torch.nn.Identity()  # its weights are copied: free them before the next are

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> torch.Tensor:
        """Compute a step.

        Returns:
            float32 logits ``[rows, vocabulary]``, only for the batch's ``logits_rows``.
        """
        residual = self._embedding(batch.input_ids[0])
        rotations = self._rotations(batch.positions)
        hidden: torch.Tensor | None = None
        for index, layer in enumerate(self._layers):
            normed = layer.input_norm(residual) if hidden is None else layer.input_norm(hidden, residual)
            attended = self._attend(layer, index, normed, rotations[layer.rotation], batch, kv_cache)
            if layer.after_attention_norm is not None:
                attended = layer.after_attention_norm(attended)
            normed = layer.feed_forward_norm(attended, residual)
            hidden = layer.down(gated_activation(layer.gate_up(normed), self._activation))
            if layer.after_feed_forward_norm is not None:
                hidden = layer.after_feed_forward_norm(hidden)
        assert hidden is not None
        rows = batch.logits_rows
        logits = self._head(self._norm(hidden[rows], residual[rows]), wide=True)
        return logits if self._logit_cap is None else torch.tanh(logits / self._logit_cap) * self._logit_cap

    def _attend(
        self,
        layer: Layer,
        index: int,
        normed: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        batch: ForwardBatch,
        kv_cache: KVCache,
    ) -> torch.Tensor:
        """The first half of a layer, ``[tokens, width]`` to ``[tokens, width]``."""
        key_cache, value_cache = kv_cache.layer(index)
        query = rotate_and_store(
            layer.qkv(normed).view(len(normed), -1, self.geometry.head_dim),
            *rotation,
            key_cache,
            value_cache,
            batch.attention.slot_mapping,
            layer.head_norms,
        )
        attended = paged_attention(
            query,
            key_cache,
            value_cache,
            batch.attention,
            scale=layer.scale,
            sliding_window=layer.window,
            soft_cap=self._soft_cap,
        )
        return layer.output(attended.view(len(normed), -1))

    def _rotations(self, positions: torch.Tensor) -> dict[str | None, tuple[torch.Tensor, torch.Tensor]]:
        """Cosines and sines of a step's positions, float32 ``[tokens, half]``, by kind of layer."""
        like = torch.empty(0, dtype=torch.float32, device=self.device)
        kinds = {layer.rotation for layer in self._layers}
        return {kind: self._rotation(like, positions, *([] if kind is None else [kind])) for kind in kinds}

    def _rotation(self, like: torch.Tensor, positions: torch.Tensor, *kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        cosines, sines = self._rotary(like, positions, *kind)
        half = cosines.shape[-1] // 2  # the second half repeats the first
        return cosines[0, :, :half].contiguous(), sines[0, :, :half].contiguous()


def load_model(path: str, dtype: torch.dtype, device: torch.device, quantization: Quantization = "none") -> Model:
    """Read a model: into the native decoder where it is of one of :data:`FAMILIES`, else as transformers computes it.

    Raises:
        ConfigError: where the model cannot be quantized.
        ModelError: where the model cannot be read or run.
    """
    if quantization != "none" and device.type != "cpu":
        raise ConfigError(f"quantization is {quantization!r} and the device {device}; it is for cpu")
    loaded = TransformersModel(path, dtype, device)
    text = loaded.config.get_text_config()
    native = text.model_type in FAMILIES and _activation_name(text) in _ACTIVATIONS
    if quantization != "none" and not native:
        raise ConfigError(
            f"quantization is {quantization!r}, and {path} is of type {text.model_type}; it is for the types that the "
            f"native decoder computes: {', '.join(FAMILIES)}"
        )
    model = NativeModel(loaded, quantization) if native else loaded
    logger.info("%s", model.description)
    return model


def _activation_name(text: Any) -> str:
    name: str = getattr(text, "hidden_activation", None) or text.hidden_act
    return name


def _layer(module: Any, record: LayerRecord, kind: str | None, make: MakeLinear) -> Layer:
    """One layer's weights, fused, from transformers' module of it."""
    attention, feed_forward = module.self_attn, module.mlp
    around = hasattr(module, "pre_feedforward_layernorm")  # Gemma norms both ends of a layer's halves
    query_norm = getattr(attention, "q_norm", None)
    head_norms = None
    if query_norm is not None:
        norm = _norm(query_norm)
        head_norms = HeadNorms(norm.weight, _norm(attention.k_norm).weight, norm.epsilon)
    fused = hasattr(attention, "qkv_proj")  # Phi-3's checkpoints are
    qkv = [attention.qkv_proj] if fused else [attention.q_proj, attention.k_proj, attention.v_proj]
    fused = hasattr(feed_forward, "gate_up_proj")
    gate_up = [feed_forward.gate_up_proj] if fused else [feed_forward.gate_proj, feed_forward.up_proj]
    return Layer(
        input_norm=_norm(module.input_layernorm),
        qkv=_fused(make, *qkv),
        head_norms=head_norms,
        rotation=kind,
        window=record.windows[attention.layer_idx],
        scale=attention.scaling,
        output=_fused(make, attention.o_proj),
        after_attention_norm=_norm(module.post_attention_layernorm) if around else None,
        feed_forward_norm=_norm(module.pre_feedforward_layernorm if around else module.post_attention_layernorm),
        gate_up=_fused(make, *gate_up),
        down=_fused(make_linear, feed_forward.down_proj),
        after_feed_forward_norm=_norm(module.post_feedforward_layernorm) if around else None,
    )


def _fused(make: MakeLinear, *parts: Any) -> Linear:
    """One product for several of the same input."""
    weight = torch.cat([part.weight.detach() for part in parts])
    if all(part.bias is None for part in parts):
        return make(weight, None)
    biases = [weight.new_zeros(len(part.weight)) if part.bias is None else part.bias.detach() for part in parts]
    return make(weight, torch.cat(biases))


class Embedding:
    """Rows of a table, by token; Gemma's are scaled.

    Args:
        module: transformers' own.
        head: the head, where its weight is the same and its copy of it is enough for both.
    """

    def __init__(self, module: Any, head: Linear | None) -> None:
        table: torch.Tensor = module.weight.detach()
        self._rows = table.__getitem__ if head is None else head.rows
        scale = getattr(module, "embed_scale", None)
        self._scale = None if scale is None else scale.to(module.weight.dtype)
        self._dtype = module.weight.dtype

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Int64 ``[tokens]`` to ``[tokens, width]``, fresh memory."""
        rows = self._rows(token_ids).to(self._dtype)
        return rows if self._scale is None else rows * self._scale


def _norm(module: Any) -> Norm:
    """A norm's weight and epsilon. Gemma's weights are kept less one."""
    weight = module.weight.detach().float()
    if hasattr(module, "variance_epsilon"):
        return Norm(weight, module.variance_epsilon)
    return Norm(1 + weight, module.eps)
