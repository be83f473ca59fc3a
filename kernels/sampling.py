"""Draw the next token of each row, with noise that depends on nothing but the request.

The noise of a draw is a counter-based function of (seed, position, sample index): no generator state
exists, so neighbours in the batch, chunk sizes, preemption and redelivery cannot change it. The function is
Philox4x32-10 (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"), on int64 tensors because
torch has no unsigned 32-bit arithmetic.
"""

from __future__ import annotations

import torch

_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_LOW_32 = 0xFFFFFFFF


def _multiply_32(multiplier: int, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of a 32 x 32 bit product, without overflowing a signed 64-bit integer."""
    low_half = multiplier * (word & 0xFFFF)
    high_half = multiplier * (word >> 16) + (low_half >> 16)
    return high_half >> 16, ((high_half & 0xFFFF) << 16) | (low_half & 0xFFFF)


def philox_4x32(counter: tuple[torch.Tensor, ...], key: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Ten rounds of Philox: four counter words and two key words to four random words.

    All are int64 tensors of one shape that hold 32-bit values.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high_0, low_0 = _multiply_32(_MULTIPLIER_0, c0)
        high_1, low_1 = _multiply_32(_MULTIPLIER_1, c2)
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0, k1 = (k0 + _WEYL_0) & _LOW_32, (k1 + _WEYL_1) & _LOW_32
    return c0, c1, c2, c3


def philox_uniform(seeds: torch.Tensor, positions: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
    """One number in [0, 1) for each row.

    Args:
        seeds: int64 ``[rows]``, all 64 bits count.
        positions: int64 ``[rows]``, index of the token that is drawn, counted over prompt and output.
        samples: int64 ``[rows]``, which of a request's independent samples this is.

    Returns:
        float64 ``[rows]``, with 53 random bits.
    """
    zero = torch.zeros_like(positions)
    counter = (positions & _LOW_32, positions >> 32, samples & _LOW_32, zero)
    high, low, _, _ = philox_4x32(counter, (seeds & _LOW_32, (seeds >> 32) & _LOW_32))
    bits = ((high >> 5) << 26) | (low >> 6)
    return bits.to(torch.float64) / float(1 << 53)


_CANDIDATES = 256
"""Tokens that are looked at before a whole row is sorted; a nucleus is rarely larger."""


def draw_tokens(
    logits: torch.Tensor,
    uniforms: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """Draw one token a row: temperature, then min_p, then top_k, then top_p, then the inverse of the CDF.

    Args:
        logits: float32 ``[rows, vocabulary]``; each row's maximum must be finite.
        uniforms: float64 ``[rows]`` in [0, 1).
        temperature: float32 ``[rows]``, above 0.
        top_k: int64 ``[rows]``; 0, or more than the vocabulary, keeps all.
        top_p: float32 ``[rows]`` in (0, 1].
        min_p: float32 ``[rows]`` in [0, 1]; 0 keeps all.

    Returns:
        int64 ``[rows]``.
    """
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    scaled = shifted.div_(temperature.clamp(min=1e-8)[:, None])
    if bool((min_p > 0).any()):
        scaled.masked_fill_(scaled < min_p.log()[:, None], float("-inf"))
    probabilities = scaled.softmax(dim=-1)
    # A row's path depends on that row alone: the same number means another token in another order.
    truncated = (top_k > 0) | (top_p < 1)
    drawn = torch.empty_like(top_k)
    for rows, draw in ((~truncated, _draw_from_all), (truncated, _draw_truncated)):
        index = rows.nonzero().squeeze(-1)
        if len(index) == len(drawn):
            drawn = draw(probabilities, uniforms, top_k, top_p)
        elif len(index):
            drawn[index] = draw(probabilities[index], uniforms[index], top_k[index], top_p[index])
    return drawn


def _draw_from_all(
    probabilities: torch.Tensor, uniforms: torch.Tensor, _top_k: torch.Tensor, _top_p: torch.Tensor
) -> torch.Tensor:
    return _invert_cdf(probabilities, uniforms)


def _draw_truncated(
    probabilities: torch.Tensor, uniforms: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """Draw from each row's likeliest tokens; of equally likely ones the lower id comes first.

    A few candidates decide most rows; the others are sorted whole, and the answer is the same either way.
    """
    vocabulary = probabilities.shape[-1]
    limit = torch.where(top_k == 0, vocabulary, top_k.clamp(max=vocabulary))
    # What top_p counts against: all there is, or what top_k leaves of it.
    limited = limit < vocabulary
    if vocabulary <= _CANDIDATES:
        ordered = probabilities.sort(dim=-1, descending=True, stable=True)
        return _draw_ordered(*ordered, uniforms, limit, limited, top_p)[0]
    values, tokens = _likeliest(probabilities, _CANDIDATES)
    drawn, kept = _draw_ordered(values, tokens, uniforms, limit, limited, top_p)
    # Of the tokens as likely as the last candidate others may have been left out.
    certain = (values > values[:, -1:]).sum(dim=-1)
    undecided = ((kept > certain) | (limited & (limit > _CANDIDATES))).nonzero().squeeze(-1)
    if len(undecided):
        ordered = probabilities[undecided].sort(dim=-1, descending=True, stable=True)
        rows = (uniforms[undecided], limit[undecided], limited[undecided], top_p[undecided])
        drawn[undecided] = _draw_ordered(*ordered, *rows)[0]
    return drawn


def _likeliest(probabilities: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's likeliest tokens in order, lower ids first among equals: ``(values, ids)``, ``[rows, count]``."""
    tokens = probabilities.topk(count, dim=-1, sorted=False).indices.sort(dim=-1).values
    values, order = probabilities.gather(-1, tokens).sort(dim=-1, descending=True, stable=True)
    return values, tokens.gather(-1, order)


def _draw_ordered(
    values: torch.Tensor,
    tokens: torch.Tensor,
    uniforms: torch.Tensor,
    limit: torch.Tensor,
    limited: torch.Tensor,
    top_p: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from rows whose tokens are in order of probability; also returns how many tokens of each were kept."""
    ranks = torch.arange(values.shape[-1], device=values.device)
    weights = values.to(torch.float64).masked_fill_(ranks >= limit[:, None], 0)
    running = weights.cumsum(dim=-1)
    whole = torch.where(limited, running[:, -1], 1.0)
    bound = torch.where(top_p < 1, top_p.to(torch.float64) * whole, float("inf"))
    inside = (running - weights < bound[:, None]) & (ranks < limit[:, None])
    drawn = tokens.gather(-1, _invert_cdf(weights.masked_fill_(~inside, 0), uniforms)[:, None]).squeeze(-1)
    return drawn, inside.sum(dim=-1)


def _invert_cdf(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Index at which the running sum of non-negative weights first exceeds ``uniform * total``."""
    running = weights.to(torch.float64).cumsum(dim=-1)
    total = running[:, -1:].contiguous()
    index = torch.searchsorted(running, uniforms[:, None] * total, right=True).squeeze(-1)
    # Rounding may land a target on the total; the last index with any weight is the answer then.
    last = torch.searchsorted(running, total).squeeze(-1)
    return torch.minimum(index, last)
