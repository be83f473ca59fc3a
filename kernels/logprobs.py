"""Log-probabilities of chosen and of likeliest tokens."""

from __future__ import annotations

import torch

NEVER = -9999.0
"""Log-probability of what cannot happen: JSON has no minus infinity."""


def token_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities under the model's own distribution, before any sampling setting.

    Args:
        logits: float32 ``[rows, vocabulary]``.
        tokens: int64 ``[rows]``, the tokens that were chosen.
        count: how many of the likeliest tokens to name, at most the vocabulary.

    Returns:
        float32 ``[rows]`` of the chosen tokens; float32 and int64 ``[rows, count]`` of the likeliest, in order, lower
        ids first among equals. Values that are not finite are -9999.
    """
    logprobs = logits.log_softmax(dim=-1).nan_to_num_(nan=NEVER, neginf=NEVER)
    chosen = logprobs.gather(-1, tokens[:, None]).squeeze(-1)
    if count == 0:
        empty = logprobs[:, :0]
        return chosen, empty, empty.to(torch.int64)
    # One more than asked for, so that a tie at the border is seen; then lower ids first.
    values, ids = logprobs.topk(min(count + 1, logprobs.shape[-1]), dim=-1)
    if values.shape[-1] > count:
        for row in (values[:, count - 1] == values[:, -1]).nonzero().flatten().tolist():
            ordered = logprobs[row].sort(descending=True, stable=True)
            values[row], ids[row] = ordered.values[: count + 1], ordered.indices[: count + 1]
    by_id = ids[:, :count].sort(dim=-1).values
    best, order = logprobs.gather(-1, by_id).sort(dim=-1, descending=True, stable=True)
    return chosen, best, by_id.gather(-1, order)
