"""Forbid all tokens but those whose bit is set: how grammars and lists of allowed tokens reach the logits."""

from __future__ import annotations

import torch
from torch.nn.functional import embedding

FORBIDDEN = float("-inf")
WORD_BITS = 32
_ROWS_AT_ONCE = 32
"""As many as keep what is added to them in a CPU's cache."""


def bitmask_words(vocabulary: int) -> int:
    """32-bit words that hold one bit a token."""
    return -(-vocabulary // WORD_BITS)


def apply_token_bitmask(logits: torch.Tensor, rows: torch.Tensor, bitmask: torch.Tensor) -> None:
    """Set finite logits to -inf, in place, where a token's bit is 0.

    Args:
        logits: float32 ``[all rows, vocabulary]``.
        rows: int64 ``[rows]``, where each mask applies; none twice.
        bitmask: int32 ``[rows, words]``; bit ``t % 32`` of word ``t // 32`` allows token ``t``. Tokens past the last
            word are forbidden.
    """
    vocabulary = logits.shape[-1]
    table = _additions_of_bytes(logits.device)
    width = min(bitmask.shape[1] * WORD_BITS, vocabulary)
    octets = bitmask.to(logits.device).view(torch.uint8)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        chunk = slice(start, start + _ROWS_AT_ONCE)
        # Adding takes the same time whatever the mask; a masked fill of a ragged one takes three times as long.
        added = embedding(octets[chunk].to(torch.int32), table).flatten(1)
        logits[:, :width].index_add_(0, rows[chunk], added[:, :width])
    logits[rows, width:] = FORBIDDEN


def _additions_of_bytes(device: torch.device) -> torch.Tensor:
    """What each byte of a mask adds to the logits of its eight tokens; float32 ``[256, 8]``."""
    bits = torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device) & 1
    return torch.where(bits == 1, 0.0, FORBIDDEN)
