"""Small GGUF files, as llama.cpp's converter would write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGUFWriter, get_tensor_name_map
from safetensors.torch import load_file

CONTROL, NORMAL = 3, 1
_TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]


def write_gguf(
    path: Path, model: Path, config: Any, architecture: str, keys: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> Path:
    """Write a saved model of ours as a GGUF file.

    Args:
        path: the file.
        model: directory of the model.
        config: its configuration.
        architecture: llama.cpp's name, ``llama`` or ``gemma3``.
        keys: metadata beyond the model's shape; names without the architecture.
        tensors: tensors beyond the model's own.
    """
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for name, value in keys.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(name if name.startswith("tokenizer.") else f"{architecture}.{name}", value)
    _add_tokenizer(writer, config.vocab_size)
    kind = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names = get_tensor_name_map(kind, config.num_hidden_layers)
    for name, tensor in load_file(model / "model.safetensors").items():
        writer.add_tensor(names.get_name(name, (".weight",)), _as_llama_cpp(name, tensor, config, kind).numpy())
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: GGUFWriter, size: int) -> None:
    tokens = _TOKENS + [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += [f"word{index}" for index in range(size - len(tokens))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([CONTROL] * len(_TOKENS) + [NORMAL] * (size - len(_TOKENS)))
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)


def _as_llama_cpp(name: str, tensor: torch.Tensor, config: Any, kind: MODEL_ARCH) -> torch.Tensor:
    """Gemma's norms hold one more; Llama's queries and keys have each head's two halves interleaved."""
    if kind is MODEL_ARCH.GEMMA3 and name.endswith("norm.weight"):
        return tensor + 1
    if kind is MODEL_ARCH.LLAMA and ("q_proj" in name or "k_proj" in name):
        halves = tensor.view(-1, 2, config.head_dim // 2, tensor.shape[-1])
        return halves.transpose(1, 2).reshape(tensor.shape).contiguous()
    return tensor
