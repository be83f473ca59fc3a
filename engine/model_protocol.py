"""What the engine needs of a model, whoever computes it."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from .batch import ForwardBatch
from .kv_cache import KVCache, KVGeometry


class Model(Protocol):
    """What the engine needs of a model."""

    config: Any
    generation_config: Any
    geometry: KVGeometry
    dtype: torch.dtype
    device: torch.device
    description: str
    """Which path the model takes, in one line."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding: token ids from here on do not exist."""

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> torch.Tensor:
        """Float32 logits ``[rows, vocabulary]`` of the batch's ``logits_rows``."""
