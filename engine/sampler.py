"""Choose a token for each sampled row of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ..kernels import (
    SeenTokens,
    add_to_logits,
    apply_token_bitmask,
    bitmask_words,
    draw_tokens,
    penalize_seen_tokens,
    philox_uniform,
    token_logprobs,
)
from .request import Request
from .token_rules import TokenCounts, TokenRules

NOT_FINITE = "the model computed logits that are not finite"
NONE_ALLOWED = "the request's rules leave no token that may come next"


class RankedTokens(NamedTuple):
    """A token's log-probability, and those of the likeliest tokens in its place."""

    token_id: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...]
    """``(token id, log-probability)``, the likeliest first."""


class Draw(NamedTuple):
    """What sampling a row gave: a token, or an error that ends its request."""

    token_id: int | None
    error: str | None = None
    logprobs: RankedTokens | None = None


@dataclass(frozen=True)
class _Batch:
    """Settings of the sampled requests as tensors; the same from step to step while the requests are.

    Attributes:
        requests: one a row.
        random: int64 ``[random rows]``, the rows that need noise; the tensors after it are theirs.
        ruled: the rows with rules.
        reported: the rows whose log-probabilities are wanted.
    """

    requests: tuple[Request, ...]
    random: torch.Tensor
    seeds: torch.Tensor
    samples: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    ruled: tuple[tuple[int, Request, TokenRules], ...]
    reported: tuple[int, ...]

    @classmethod
    def build(cls, requests: tuple[Request, ...], vocabulary: int, device: torch.device) -> _Batch:
        rows = [row for row, request in enumerate(requests) if not request.params.greedy]
        params = [requests[row].params for row in rows]

        def floats(values: Sequence[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        def integers(values: Sequence[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return cls(
            requests=requests,
            random=integers(rows),
            seeds=integers([_signed_64(p.seed) for p in params]),
            samples=integers([requests[row].sample_index for row in rows]),
            temperature=floats([p.temperature for p in params]),
            top_k=integers([min(p.top_k, vocabulary) for p in params]),
            top_p=floats([p.top_p for p in params]),
            min_p=floats([p.min_p for p in params]),
            ruled=tuple((row, r, r.rules) for row, r in enumerate(requests) if r.rules is not None),
            reported=tuple(row for row, request in enumerate(requests) if request.params.logprobs is not None),
        )


class Sampler:
    """Draws tokens, vectorised over the batch; greedy rows without rules cost one maximum.

    The order is: bans and biases, penalties, temperature, min_p, top_k, top_p. Log-probabilities are the model's
    own, before all of these.
    """

    def __init__(self) -> None:
        self._batch: _Batch | None = None

    @torch.inference_mode()  # as the model's forward, whose logits nothing else may change in place
    def sample(self, logits: torch.Tensor, requests: tuple[Request, ...], positions: torch.Tensor) -> list[Draw]:
        """Draw one token for each request.

        Args:
            logits: float32 ``[rows, vocabulary]``; changed in place.
            requests: the rows' requests.
            positions: int64 ``[rows]``, the place of the token to draw in its sequence, which keys the noise.
        """
        batch = self._batch
        if batch is None or batch.requests != requests:
            batch = self._batch = _Batch.build(requests, logits.shape[-1], logits.device)
        finite = torch.isfinite(logits.amax(dim=-1))
        logprobs = _rows_of(logits, batch.reported).log_softmax(dim=-1) if batch.reported else None
        _apply_rules(logits, batch.ruled)
        best, tokens = logits.max(dim=-1)
        usable = finite & torch.isfinite(best)
        all_usable = bool(usable.all())
        if len(batch.random):
            _draw(logits, tokens, batch, positions, usable, all_usable=all_usable)
        draws = [Draw(token) for token in tokens.tolist()]
        if logprobs is not None:
            _report(draws, logprobs, tokens, batch)
        if not all_usable:
            for row in (~usable).nonzero().flatten().tolist():
                draws[row] = Draw(None, NONE_ALLOWED if finite[row] else NOT_FINITE)
        return draws


def _draw(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    batch: _Batch,
    positions: torch.Tensor,
    usable: torch.Tensor,
    *,
    all_usable: bool,
) -> None:
    """Replace the likeliest tokens of rows with a temperature by drawn ones."""
    rows, chosen = batch.random, slice(None)
    if not all_usable:
        chosen = usable[rows].nonzero().squeeze(-1)  # type: ignore[assignment]
        rows = rows[chosen]
        if not len(rows):
            return
    tokens[rows] = draw_tokens(
        logits if len(rows) == len(logits) else logits[rows],
        philox_uniform(batch.seeds[chosen], positions[rows], batch.samples[chosen]),
        temperature=batch.temperature[chosen],
        top_k=batch.top_k[chosen],
        top_p=batch.top_p[chosen],
        min_p=batch.min_p[chosen],
    )


def _apply_rules(logits: torch.Tensor, ruled: Sequence[tuple[int, Request, TokenRules]]) -> None:
    """Carry out the rules of all rows that have any, in three operations."""
    if not ruled:
        return
    _apply_bitmasks(logits, [(row, rules) for row, _, rules in ruled if rules.restricts])
    additions = [(row, *rules.additions_after(request.output_token_ids)) for row, request, rules in ruled]
    if any(len(ids) for _, ids, _ in additions):
        rows = np.repeat([row for row, _, _ in additions], [len(ids) for _, ids, _ in additions])
        tokens = np.concatenate([ids for _, ids, _ in additions])
        values = np.concatenate([values for _, _, values in additions])
        add_to_logits(logits, *(torch.from_numpy(array).to(logits.device) for array in (rows, tokens, values)))
    penalised = [(row, request, rules.counts) for row, request, rules in ruled if rules.counts is not None]
    if penalised:
        _apply_penalties(logits, penalised)


def _apply_bitmasks(logits: torch.Tensor, restricted: Sequence[tuple[int, TokenRules]]) -> None:
    if not restricted:
        return
    masks = np.empty((len(restricted), bitmask_words(logits.shape[-1])), dtype=np.int32)
    for mask, (_, rules) in zip(masks, restricted, strict=True):
        rules.fill_bitmask(mask)
    rows = torch.tensor([row for row, _ in restricted], device=logits.device)
    apply_token_bitmask(logits, rows, torch.from_numpy(masks))


def _apply_penalties(logits: torch.Tensor, penalised: Sequence[tuple[int, Request, TokenCounts]]) -> None:
    lengths = [len(counts.tokens) for _, _, counts in penalised]
    if not sum(lengths):
        return
    device = logits.device

    def repeated(values: Sequence[float], dtype: type[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.array(values, dtype=dtype), lengths)).to(device)

    params = [request.params for _, request, _ in penalised]
    seen = SeenTokens(
        rows=repeated([row for row, _, _ in penalised], np.int64),
        tokens=torch.from_numpy(np.concatenate([counts.tokens for _, _, counts in penalised])).to(device),
        output_counts=torch.from_numpy(np.concatenate([counts.output_counts for _, _, counts in penalised])).to(device),
        repetition=repeated([p.repetition_penalty for p in params], np.float32),
        presence=repeated([p.presence_penalty for p in params], np.float32),
        frequency=repeated([p.frequency_penalty for p in params], np.float32),
    )
    penalize_seen_tokens(logits, seen)


def _rows_of(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Some rows in their order; all of them without a copy."""
    return logits if len(rows) == len(logits) else logits[list(rows)]


def _report(draws: list[Draw], logprobs: torch.Tensor, tokens: torch.Tensor, batch: _Batch) -> None:
    """Add log-probabilities to the draws of the rows that want them."""
    rows = list(batch.reported)
    ranked = rank_tokens(logprobs, tokens[rows], [batch.requests[row].params.logprobs or 0 for row in rows])
    for row, tokens_of_row in zip(rows, ranked, strict=True):
        draws[row] = Draw(tokens_of_row.token_id, None, tokens_of_row)


def rank_tokens(logprobs: torch.Tensor, tokens: torch.Tensor, counts: Sequence[int]) -> list[RankedTokens]:
    """Log-probabilities of tokens and of the likeliest in their places.

    Args:
        logprobs: float32 ``[rows, vocabulary]``, the ``log_softmax`` of the logits.
        tokens: int64 ``[rows]``.
        counts: how many of the likeliest each row wants.
    """
    most = min(max(counts, default=0), logprobs.shape[-1])
    chosen, values, ids = (part.tolist() for part in token_logprobs(logprobs, tokens, most))
    return [
        RankedTokens(token, logprob, tuple(zip(row_ids[:count], row_values[:count], strict=True)))
        for token, logprob, row_values, row_ids, count in zip(tokens.tolist(), chosen, values, ids, counts, strict=True)
    ]


def _signed_64(seed: int) -> int:
    """The same 64 bits as torch's signed integer."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed
