"""A model that says what a test tells it to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from headrace.engine import Engine, EngineConfig
from headrace.engine.batch import ForwardBatch
from headrace.engine.kv_cache import KVCache, KVGeometry
from headrace.engine.request import Request

from .toy_tokenizers import byte_level

VOCABULARY = 300
Answer = int | torch.Tensor
"""A token to draw, or a whole row of logits."""


class ScriptedModel:
    """Implements the engine's ``Model`` protocol without weights.

    Args:
        script: what to answer a request with, given how many tokens it has drawn already.
        max_len: context length that the configuration states.
        eos: end-of-sequence ids of the generation configuration.
    """

    def __init__(
        self,
        script: Callable[[Request, int], Answer],
        *,
        max_len: int = 64,
        eos: int | Sequence[int] | None = None,
    ) -> None:
        text = SimpleNamespace(max_position_embeddings=max_len)
        self.config: Any = SimpleNamespace(get_text_config=lambda: text)
        self.generation_config: Any = SimpleNamespace(eos_token_id=eos)
        self.geometry = KVGeometry(num_layers=1, num_kv_heads=1, head_dim=1)
        self.dtype = torch.float32
        self.device = torch.device("cpu")
        self.description = "scripted"
        self.vocab_size = VOCABULARY
        self.steps: list[list[tuple[int, int]]] = []
        """Of each step: the token ids and positions that were fed."""
        self._script = script

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> torch.Tensor:  # noqa: ARG002
        """The script's answers as logits."""
        self.steps.append(list(zip(batch.input_ids[0].tolist(), batch.positions[0].tolist(), strict=True)))
        rows = [self._row(self._script(request, len(request.output_token_ids))) for request in batch.sampled]
        scored = sum(count for _, count in batch.prompt_rows)
        return torch.stack([*rows, *torch.zeros(scored, VOCABULARY)]) if rows or scored else torch.empty(0, VOCABULARY)

    @staticmethod
    def _row(answer: Answer) -> torch.Tensor:
        if isinstance(answer, torch.Tensor):
            return answer
        row = torch.zeros(VOCABULARY)
        row[answer] = 100.0
        return row


def constant(token: int) -> Callable[[Request, int], Answer]:
    """A script that always answers with one token."""
    return lambda _request, _index: token


def by_request(scripts: Mapping[str, Sequence[Answer]]) -> Callable[[Request, int], Answer]:
    """A script with one list of answers a request id."""
    return lambda request, index: scripts[request.request_id][index]


def scripted_engine(
    model: ScriptedModel,
    *,
    tokenizer: Any = None,
    blocks: int = 64,
    block_size: int = 4,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    max_model_len: int | None = None,
) -> Engine:
    """An engine with a given number of KV blocks over a scripted model."""
    block_bytes = model.geometry.block_bytes(block_size, model.dtype)
    config = EngineConfig(
        model="scripted",
        block_size=block_size,
        kv_cache_memory=blocks * block_bytes,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
    )
    return Engine(model, byte_level() if tokenizer is None else tokenizer, config, "scripted")
