"""Small random models in transformers' format, and their logits by transformers and by us."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from headrace.engine import Engine, EngineConfig, SamplingParams
from headrace.engine.batch import build_batch
from headrace.engine.hf_model import TransformersModel
from headrace.engine.kv_cache import KVCache
from headrace.engine.model import load_model
from headrace.engine.model_protocol import Model
from headrace.engine.request import Request
from headrace.engine.step_plan import ScheduledChunk, StepPlan
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from .toy_tokenizers import byte_level

CPU = torch.device("cpu")
VOCABULARY = 300
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
"""Settings that most families' configurations share."""


def llama_config(**changes: Any) -> LlamaConfig:
    """A two-layer Llama; weights are large enough that its logits are far apart."""
    return LlamaConfig(**(SMALL | {"bos_token_id": 1, "eos_token_id": 2} | changes))


def save_model(config: Any, directory: Path, seed: int = 0) -> Path:
    """Write a model with random weights; norms and biases too, which transformers starts at one and zero."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
        model.save_pretrained(directory)
    return directory


def load(directory: Path, dtype: torch.dtype = torch.float32) -> Model:
    """The model as the engine loads it."""
    return load_model(str(directory), dtype, CPU)


@torch.inference_mode()
def transformers_logits(directory: Path, token_ids: Sequence[int]) -> torch.Tensor:
    """``[tokens, vocabulary]`` by transformers' own forward."""
    capped = getattr(AutoConfig.from_pretrained(directory), "attn_logit_softcapping", None)
    attention = "eager" if capped else "sdpa"  # transformers' sdpa path cannot cap logits
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation=attention)
    logits: torch.Tensor = model.eval()(torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits


def paged_logits(
    model: Model, token_ids: Sequence[int], chunk_lens: Sequence[int], block_size: int = 4
) -> torch.Tensor:
    """``[tokens, vocabulary]`` by our forward, in chunks, over shuffled blocks of a cache full of NaN."""
    assert sum(chunk_lens) == len(token_ids)
    blocks = -(-len(token_ids) // block_size)
    cache = KVCache(
        model.geometry,
        memory=(blocks + 2) * model.geometry.block_bytes(block_size, model.dtype),
        block_size=block_size,
        max_model_len=1000,
        max_num_seqs=1,
        dtype=model.dtype,
        device=CPU,
    )
    cache.data.fill_(float("nan"))
    request = Request("r", list(token_ids), SamplingParams(), max_tokens=1, eos_token_ids=frozenset())
    request.block_table = random.Random(0).sample(range(1, blocks + 2), blocks)
    logits = []
    start = 0
    for length in chunk_lens:
        plan = StepPlan((ScheduledChunk(request, start, length, samples=False),))
        batch = replace(build_batch(plan, block_size, CPU), logits_rows=torch.arange(length))
        logits.append(model.forward(batch, cache))
        start += length
    return torch.cat(logits)


def token_ids(length: int) -> list[int]:
    """Random ids, the same ones for a length."""
    generator = torch.Generator().manual_seed(length)
    ids: list[int] = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
    return ids


def check_logits(directory: Path, ids: Sequence[int], *chunkings: Sequence[int]) -> None:
    """Compare in one piece, in the given chunks, and token by token; on both paths, where a family has two."""
    expected = transformers_logits(directory, ids)
    for model in (load(directory), TransformersModel(str(directory), torch.float32, CPU)):
        for chunks in ([len(ids)], *chunkings, [1] * len(ids)):
            logits = paged_logits(model, ids, chunks)
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
            assert torch.equal(logits.argmax(-1), expected.argmax(-1))


def change_config(directory: Path, **changes: Any) -> None:
    """Edit a saved model's ``config.json``."""
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def tiny_engine(model: Model, **settings: Any) -> Engine:
    """An engine over a tiny model, with the byte-level toy tokenizer."""
    defaults: dict[str, Any] = {"block_size": 4, "max_num_seqs": 16, "kv_cache_memory": 1 << 20}
    return Engine(model, byte_level(), EngineConfig(model="tiny", **(defaults | settings)), "tiny")
