"""Slow, plain twins of the kernels: loops over sequences in float32, written to be read, not run.

They are the oracle of the kernels' tests, so they share no code with them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    block_tables: Sequence[Sequence[int]],
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """Attention as its definition says, one query token and one head at a time.

    Shapes and meanings as :func:`headrace.kernels.paged_attention`; the result is float32.
    """
    block_size, kv_heads = key_cache.shape[1], key_cache.shape[2]
    heads = query.shape[1]
    output = torch.empty(query.shape, dtype=torch.float32)
    row = 0
    for table, query_len, context_len in zip(block_tables, query_lens, context_lens, strict=True):
        slots = [(table[p // block_size], p % block_size) for p in range(context_len)]
        keys = torch.stack([key_cache[block, offset] for block, offset in slots]).float()
        values = torch.stack([value_cache[block, offset] for block, offset in slots]).float()
        for position in range(context_len - query_len, context_len):
            first = 0 if sliding_window is None else max(0, position - sliding_window + 1)
            for head in range(heads):
                kv_head = head * kv_heads // heads
                logits = keys[first : position + 1, kv_head] @ query[row, head].float() * scale
                if soft_cap is not None:
                    logits = soft_cap * torch.tanh(logits / soft_cap)
                output[row, head] = logits.softmax(0) @ values[first : position + 1, kv_head]
            row += 1
    return output


def kept_tokens(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> dict[int, float]:
    """Tokens that may be drawn from one row of logits, with their probabilities.

    Args:
        logits: float32 ``[vocabulary]``.
        temperature, top_k, top_p, min_p: as :func:`headrace.kernels.draw_tokens`, for one row.
    """
    probabilities = (logits.double() / temperature).softmax(0).tolist()
    best = max(probabilities)
    order = sorted(range(len(probabilities)), key=lambda token: (-probabilities[token], token))
    kept = [token for token in order if probabilities[token] >= min_p * best]
    kept = kept[:top_k] if top_k else kept
    total = sum(probabilities[token] for token in kept)
    nucleus: list[int] = []
    mass = 0.0
    for token in kept:
        if mass >= top_p:
            break
        nucleus.append(token)
        mass += probabilities[token] / total
    mass = sum(probabilities[token] for token in nucleus)
    return {token: probabilities[token] / mass for token in nucleus}
