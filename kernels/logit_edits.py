"""Change single logits: biases, bans, and penalties on tokens that were seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SeenTokens:
    """Penalties on tokens that rows have seen, one entry a row and token; no such pair twice.

    Attributes:
        rows, tokens: int64 ``[entries]``, whose logit.
        output_counts: int64 ``[entries]``, how often the output holds the token.
        repetition: float32 ``[entries]``, above 0; 1 changes nothing.
        presence, frequency: float32 ``[entries]``; 0 changes nothing.
    """

    rows: torch.Tensor
    tokens: torch.Tensor
    output_counts: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor


def add_to_logits(logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, values: torch.Tensor) -> None:
    """Add to single logits in place; -inf forbids a token.

    Args:
        logits: float32 ``[all rows, vocabulary]``.
        rows, tokens: int64 ``[entries]``; a pair may stand twice.
        values: float32 ``[entries]``.
    """
    logits.index_put_((rows, tokens), values, accumulate=True)


def penalize_seen_tokens(logits: torch.Tensor, seen: SeenTokens) -> None:
    """Make seen tokens less likely, in place.

    Repetition divides a positive logit and multiplies a negative one, once for each token of prompt or output
    (Keskar et al. 2019, "CTRL"). Then ``presence + frequency * count`` is subtracted for tokens of the output, as
    OpenAI's API defines it.

    Args:
        logits: float32 ``[all rows, vocabulary]``.
        seen: which tokens, and by how much.
    """
    values = logits[seen.rows, seen.tokens]
    values = torch.where(values > 0, values / seen.repetition, values * seen.repetition)
    counts = seen.output_counts.to(values.dtype)
    values -= seen.frequency * counts + seen.presence * (counts > 0)
    logits[seen.rows, seen.tokens] = values
