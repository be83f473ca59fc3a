"""Sample rows of logits as the engine does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from headrace.engine import SamplingParams
from headrace.engine.request import Request
from headrace.engine.sampler import Draw, Sampler
from headrace.engine.structure import StructureState
from headrace.engine.token_rules import build_token_rules


def make_request(
    params: SamplingParams,
    prompt: Sequence[int] = (1, 1, 1),
    *,
    vocabulary: int = 300,
    ends: Iterable[int] = (),
    spellings: dict[str, tuple[int, ...]] | None = None,
    structure: StructureState | None = None,
    **changes: Any,
) -> Request:
    """A request with its rules, outside of any engine."""
    rules = build_token_rules(
        params,
        prompt,
        frozenset(ends),
        vocab_size=vocabulary,
        spellings=lambda word: [(spellings or {})[word]],
        structure=structure,
    )
    settings: dict[str, Any] = {"max_tokens": 50, "eos_token_ids": frozenset(ends)}
    return Request("r", list(prompt), params, rules=rules, **(settings | changes))


def draw(logits: torch.Tensor, requests: Sequence[Request], sampler: Sampler | None = None) -> list[Draw]:
    """One draw a row."""
    positions = torch.tensor([request.num_tokens for request in requests])
    return (sampler or Sampler()).sample(logits.clone(), tuple(requests), positions)


def sample(logits: torch.Tensor, requests: Sequence[Request]) -> list[int | None]:
    """One token a row."""
    return [one.token_id for one in draw(logits, requests)]
