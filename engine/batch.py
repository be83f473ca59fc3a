"""From a step plan to the flat tensors that a model takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..kernels import AttentionBatch
from .request import Request
from .scheduler import StepPlan


@dataclass(frozen=True)
class ForwardBatch:
    """One step's input, sequences one after another.

    Attributes:
        input_ids: int64 ``[1, tokens]``.
        positions: int64 ``[1, tokens]``, each token's place in its own sequence.
        attention: where keys and values go, and who sees whom.
        logits_rows: int64 ``[rows]``, the flat tokens after which a token is drawn.
        sampled: the requests of ``logits_rows``, in the same order.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    attention: AttentionBatch
    logits_rows: torch.Tensor
    sampled: tuple[Request, ...]


def build_batch(plan: StepPlan, block_size: int, device: torch.device) -> ForwardBatch:
    """Lay a plan out as tensors on ``device``."""
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logits_rows: list[int] = []
    for chunk in plan.chunks:
        input_ids += chunk.request.token_ids(chunk.start, chunk.length)
        chunk_positions = range(chunk.start, chunk.start + chunk.length)
        positions += chunk_positions
        table = chunk.request.block_table
        slots += [table[p // block_size] * block_size + p % block_size for p in chunk_positions]
        if chunk.samples:
            logits_rows.append(len(input_ids) - 1)
    attention = AttentionBatch.build(
        slot_mapping=torch.tensor(slots, device=device),
        block_tables=[chunk.request.block_table for chunk in plan.chunks],
        query_lens=[chunk.length for chunk in plan.chunks],
        context_lens=[chunk.start + chunk.length for chunk in plan.chunks],
        block_size=block_size,
    )
    return ForwardBatch(
        input_ids=torch.tensor([input_ids], device=device),
        positions=torch.tensor([positions], device=device),
        attention=attention,
        logits_rows=torch.tensor(logits_rows, dtype=torch.int64, device=device),
        sampled=tuple(chunk.request for chunk in plan.chunks if chunk.samples),
    )
