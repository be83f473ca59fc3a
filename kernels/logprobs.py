"""Log-probabilities of chosen and of likeliest tokens."""

from __future__ import annotations

import torch

NEVER = -9999.0
"""Log-probability of what cannot happen: JSON has no minus infinity."""


def token_logprobs(
    logprobs: torch.Tensor, tokens: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pick log-probabilities out of whole distributions.

    Args:
        logprobs: float32 ``[rows, vocabulary]``, the ``log_softmax`` of the logits.
        tokens: int64 ``[rows]``, the tokens that were chosen.
        count: how many of the likeliest tokens to name, at most the vocabulary.

    Returns:
        float32 ``[rows]`` of the chosen tokens; float32 and int64 ``[rows, count]`` of the likeliest, in order, lower
        ids first among equals. Values that are not finite are -9999.
    """
    chosen = _named(logprobs.gather(-1, tokens[:, None]).squeeze(-1))
    if count == 0:
        empty = logprobs[:, :0]
        return chosen, empty, empty.to(torch.int64)
    # One more than asked for, so that a tie at the border is seen; then lower ids first.
    values, ids = logprobs.topk(min(count + 1, logprobs.shape[-1]), dim=-1)
    if values.shape[-1] > count:
        for row in (values[:, count - 1] == values[:, -1]).nonzero().flatten().tolist():
            ids[row] = logprobs[row].sort(descending=True, stable=True).indices[: count + 1]
    by_id = ids[:, :count].sort(dim=-1).values
    best, order = logprobs.gather(-1, by_id).sort(dim=-1, descending=True, stable=True)
    return chosen, _named(best), by_id.gather(-1, order)


def _named(logprobs: torch.Tensor) -> torch.Tensor:
    return logprobs.nan_to_num(nan=NEVER, neginf=NEVER)
