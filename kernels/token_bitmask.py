"""Forbid all tokens but those whose bit is set: how grammars and lists of allowed tokens reach the logits."""

from __future__ import annotations

import numpy as np
import torch

FORBIDDEN = float("-inf")
WORD_BITS = 32


def bitmask_words(vocabulary: int) -> int:
    """32-bit words that hold one bit a token."""
    return -(-vocabulary // WORD_BITS)


def apply_token_bitmask(logits: torch.Tensor, rows: torch.Tensor, bitmask: torch.Tensor) -> None:
    """Set logits to -inf, in place, where a token's bit is 0.

    Args:
        logits: float32 ``[all rows, vocabulary]``.
        rows: int64 ``[rows]``, where each mask applies; none twice.
        bitmask: int32 ``[rows, words]`` in CPU memory; bit ``t % 32`` of word ``t // 32`` allows token ``t``. Tokens
            past the last word are forbidden.
    """
    vocabulary = logits.shape[-1]
    forbidden = np.ones((len(rows), vocabulary), dtype=np.bool_)
    bits = np.unpackbits(bitmask.numpy().view(np.uint8), axis=1, bitorder="little")
    width = min(bits.shape[1], vocabulary)
    forbidden[:, :width] = bits[:, :width] == 0
    mask = torch.from_numpy(forbidden).to(logits.device)
    if len(rows) == len(logits) and torch.equal(rows, torch.arange(len(rows), device=rows.device)):
        logits.masked_fill_(mask, FORBIDDEN)
    else:
        logits[rows] = logits[rows].masked_fill_(mask, FORBIDDEN)
