"""Edits of logits against loops over single entries."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from headrace.kernels import (
    SeenTokens,
    add_to_logits,
    apply_token_bitmask,
    bitmask_words,
    penalize_seen_tokens,
    token_logprobs,
)

ROWS = 5


def random_logits(vocabulary: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(ROWS, vocabulary, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 100, 257])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [3], [4, 1]])
def test_a_bitmask_leaves_its_tokens_and_forbids_the_others(vocabulary: int, rows: list[int]) -> None:
    logits = random_logits(vocabulary)
    allowed = torch.rand(len(rows), vocabulary, generator=torch.Generator().manual_seed(2)) < 0.4
    words = torch.zeros(len(rows), bitmask_words(vocabulary), dtype=torch.int64)
    for row, token in allowed.nonzero().tolist():
        words[row, token // 32] |= 1 << (token % 32)
    bitmask = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    expected = logits.clone()
    for index, row in enumerate(rows):
        expected[row, ~allowed[index]] = -math.inf
    apply_token_bitmask(logits, torch.tensor(rows), bitmask)
    assert torch.equal(logits, expected)


def test_bitmasks_of_many_rows() -> None:
    logits = torch.zeros(90, 64)
    rows = torch.randperm(90, generator=torch.Generator().manual_seed(1))[:70]
    bitmask = torch.zeros(70, 2, dtype=torch.int32)
    bitmask[:, 0] = torch.arange(1, 71)
    apply_token_bitmask(logits, rows, bitmask)
    for row, word in zip(rows.tolist(), range(1, 71), strict=True):
        assert logits[row].isfinite().tolist() == [bool(word >> token & 1) for token in range(64)]
    assert int(logits.isfinite().all(dim=-1).sum()) == 20


def test_tokens_past_the_masks_end_are_forbidden() -> None:
    logits = random_logits(100)
    apply_token_bitmask(logits, torch.tensor([1]), torch.full((1, 2), -1, dtype=torch.int32))
    assert torch.isfinite(logits[1, :64]).all()
    assert torch.isneginf(logits[1, 64:]).all()
    assert torch.isfinite(logits[[0, 2, 3, 4]]).all()


def test_biases_add_up_and_bans_stay_bans() -> None:
    logits = random_logits(10)
    before = logits.clone()
    rows, tokens = torch.tensor([0, 0, 2, 2]), torch.tensor([3, 3, 7, 7])
    add_to_logits(logits, rows, tokens, torch.tensor([1.5, -4.0, -math.inf, 100.0]))
    assert float(logits[0, 3]) == pytest.approx(float(before[0, 3]) - 2.5)
    assert float(logits[2, 7]) == -math.inf
    before[0, 3], before[2, 7] = logits[0, 3], logits[2, 7]
    assert torch.equal(logits, before)


def test_d6_what_penalties_count() -> None:
    prompt, output = [1, 1, 2], [2, 3, 3]
    settings = {"repetition": 1.5, "presence": 0.25, "frequency": 0.5}
    logits = random_logits(8)
    expected = logits.clone()
    counts = Counter(output)
    for token in {*prompt, *output}:
        value = float(logits[4, token])
        value = value / 1.5 if value > 0 else value * 1.5
        expected[4, token] = value - 0.5 * counts[token] - (0.25 if counts[token] else 0.0)
    tokens = torch.tensor(sorted({*prompt, *output}))
    seen = SeenTokens(
        rows=torch.full_like(tokens, 4),
        tokens=tokens,
        output_counts=torch.tensor([counts[int(token)] for token in tokens]),
        **{name: torch.full(tokens.shape, value) for name, value in settings.items()},
    )
    penalize_seen_tokens(logits, seen)
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("count", [0, 1, 3, 20])
def test_logprobs_of_the_chosen_and_the_likeliest(count: int) -> None:
    logits = random_logits(20)
    logits[1] = logits[1].round()  # ties
    logits[2, 5:] = -math.inf
    tokens = torch.tensor([0, 19, 7, 3, 3])
    chosen, values, ids = token_logprobs(logits.log_softmax(-1), tokens, count)
    assert values.shape == ids.shape == (ROWS, count)
    for row in range(ROWS):
        total = math.log(sum(math.exp(v) for v in logits[row].tolist()))
        exact = [v - total if v > -math.inf else -9999.0 for v in logits[row].tolist()]
        order = sorted(range(20), key=lambda token: (-exact[token], token))[:count]
        if row != 1:
            assert ids[row].tolist() == order
        torch.testing.assert_close(values[row], torch.tensor([exact[token] for token in order]))
        assert float(chosen[row]) == pytest.approx(exact[int(tokens[row])], abs=1e-5)


def test_of_equally_likely_tokens_the_lower_ids_are_named() -> None:
    _, _, ids = token_logprobs(torch.zeros(2, 50).log_softmax(-1), torch.tensor([9, 9]), 3)
    assert ids.tolist() == [[0, 1, 2], [0, 1, 2]]
