"""From a step plan to the flat tensors that a model takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..kernels import AttentionBatch, AttentionLayout, BulkIndex
from .request import Request
from .step_plan import StepPlan


@dataclass(frozen=True)
class ForwardBatch:
    """One step's input, sequences one after another.

    Attributes:
        input_ids: int64 ``[1, tokens]``.
        positions: int64 ``[1, tokens]``, each token's place in its own sequence.
        attention: where keys and values go, and who sees whom.
        logits_rows: int64 ``[rows]``, the flat tokens whose logits are wanted: first those after which a token is
            drawn, then those of ``prompt_rows``.
        sampled: the requests of the first of ``logits_rows``, in the same order.
        prompt_rows: the requests whose prompt is scored, and how many of the rows after those are theirs.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    attention: AttentionBatch
    logits_rows: torch.Tensor
    sampled: tuple[Request, ...]
    prompt_rows: tuple[tuple[Request, int], ...] = ()


def build_batch(plan: StepPlan, block_size: int, device: torch.device) -> ForwardBatch:
    """Lay a plan out as tensors on ``device``; all its integers go there in one copy."""
    bulk = BulkIndex()
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logits_rows: list[int] = []
    scored_rows: list[int] = []
    prompt_rows: list[tuple[Request, int]] = []
    for request, start, length, samples in plan.chunks:
        token_ids += request.token_ids(start, length)
        positions += range(start, start + length)
        table = request.block_table
        slots += [table[p // block_size] * block_size + p % block_size for p in range(start, start + length)]
        if request.params.prompt_logprobs is not None and (scored := _rows_to_score(request, start, length)):
            first = len(token_ids) - length - start
            scored_rows += [first + position for position in scored]
            prompt_rows.append((request, len(scored)))
        if samples:
            logits_rows.append(len(token_ids) - 1)
    layout = AttentionLayout.build(
        bulk,
        slots=slots,
        block_tables=[chunk.request.block_table for chunk in plan.chunks],
        query_lens=[chunk.length for chunk in plan.chunks],
        context_lens=[chunk.start + chunk.length for chunk in plan.chunks],
        block_size=block_size,
    )
    where_ids, where_positions, where_rows = (
        bulk.put(token_ids),
        bulk.put(positions),
        bulk.put(logits_rows + scored_rows),
    )
    index = bulk.to(device)
    return ForwardBatch(
        input_ids=index[where_ids][None],
        positions=index[where_positions][None],
        attention=layout.on_device(index),
        logits_rows=index[where_rows],
        sampled=tuple(chunk.request for chunk in plan.chunks if chunk.samples),
        prompt_rows=tuple(prompt_rows),
    )


def _rows_to_score(request: Request, start: int, length: int) -> range:
    """Positions of a chunk whose logits say how likely the prompt's next token was, and did not say so before."""
    first = max(start, request.num_scored_tokens)
    return range(first, max(first, min(start + length, len(request.prompt_token_ids) - 1)))
