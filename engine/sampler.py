"""Choose a token for each sampled row of a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..kernels import draw_tokens, philox_uniform
from .request import Request


def sample(logits: torch.Tensor, requests: Sequence[Request]) -> list[int | None]:
    """Draw one token for each request, vectorised over the batch; greedy rows cost no sampling.

    Args:
        logits: float32 ``[rows, vocabulary]``.
        requests: the rows' requests.

    Returns:
        A token id for each row, or None where the row's logits are not finite.
    """
    best_logits, tokens = logits.max(dim=-1)
    finite = torch.isfinite(best_logits)
    usable = finite.tolist()
    rows = [row for row, request in enumerate(requests) if usable[row] and not request.params.greedy]
    if rows:
        index = torch.tensor(rows, device=logits.device)
        tokens[index] = _draw(logits[index], [requests[row] for row in rows])
    return [token if ok else None for token, ok in zip(tokens.tolist(), usable, strict=True)]


def _draw(logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
    """Random tokens for rows with a temperature; the noise is keyed by seed and position alone."""
    device = logits.device
    params = [request.params for request in requests]
    seeds = torch.tensor([_signed_64(p.seed) for p in params], device=device)
    positions = torch.tensor([request.num_tokens for request in requests], device=device)
    return draw_tokens(
        logits,
        philox_uniform(seeds, positions, torch.zeros_like(positions)),
        temperature=_floats([p.temperature for p in params], device),
        top_k=torch.tensor([min(p.top_k, logits.shape[-1]) for p in params], device=device),
        top_p=_floats([p.top_p for p in params], device),
        min_p=_floats([p.min_p for p in params], device),
    )


def _floats(values: Sequence[float], device: torch.device) -> torch.Tensor:
    """A float32 tensor, also where all values are whole numbers."""
    return torch.tensor(values, dtype=torch.float32, device=device)


def _signed_64(seed: int) -> int:
    """The same 64 bits as torch's signed integer."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed
