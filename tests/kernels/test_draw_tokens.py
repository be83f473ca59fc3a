"""Drawing tokens against the plain twin."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from headrace.kernels import draw_tokens, philox_uniform, reference

SETTINGS = [
    # temperature, top_k, top_p, min_p
    (1.0, 0, 1.0, 0.0),
    (0.5, 0, 1.0, 0.0),
    (2.0, 5, 1.0, 0.0),
    (1.0, 0, 0.6, 0.0),
    (1.0, 0, 1.0, 0.2),
    (1.3, 9, 0.8, 0.05),
    (0.8, 3, 0.9, 0.4),
    (1.0, 1, 1.0, 0.0),
    (1.0, 0, 1e-4, 0.0),
    (1.0, 0, 1.0, 1.0),
    (1.0, 10_000_000, 1.0, 0.0),
]


def draw(logits: torch.Tensor, uniforms: torch.Tensor, settings: list[tuple[float, int, float, float]]) -> torch.Tensor:
    temperature, top_k, top_p, min_p = zip(*settings, strict=True)
    return draw_tokens(
        logits,
        uniforms,
        temperature=torch.tensor(temperature),
        top_k=torch.tensor(top_k),
        top_p=torch.tensor(top_p),
        min_p=torch.tensor(min_p),
    )


def random_logits(rows: int, vocabulary: int, seed: int = 3) -> torch.Tensor:
    return 2 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("settings", SETTINGS)
def test_exactly_the_kept_tokens_are_drawn_as_often_as_they_should(
    settings: tuple[float, int, float, float],
) -> None:
    draws = 8_000
    logits = random_logits(1, 24)[0]
    expected = reference.kept_tokens(logits, *settings)
    # An even grid instead of random numbers: a token's share of it is its probability, to 1 in the grid.
    grid = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    counts = torch.bincount(draw(logits.expand(draws, -1), grid, [settings] * draws), minlength=24)
    drawn = set(counts.nonzero().flatten().tolist())
    assert {token for token, probability in expected.items() if probability * draws > 1} <= drawn <= set(expected)
    for token, probability in expected.items():
        assert abs(int(counts[token]) - probability * draws) <= 1.01


def test_frequencies_under_the_noise_of_requests() -> None:
    draws, setting = 20_000, (1.3, 9, 0.8, 0.05)
    logits = random_logits(1, 24)[0]
    expected = reference.kept_tokens(logits, *setting)
    seeds = torch.arange(draws) * 7919
    uniforms = philox_uniform(seeds, torch.full_like(seeds, 12), torch.zeros_like(seeds))
    counts = torch.bincount(draw(logits.expand(draws, -1), uniforms, [setting] * draws), minlength=24)
    assert int(counts.sum()) == sum(int(counts[token]) for token in expected), "a token was drawn that is not kept"
    chi_square = sum((int(counts[t]) - p * draws) ** 2 / (p * draws) for t, p in expected.items())
    degrees = len(expected) - 1
    assert degrees >= 3
    # Wilson-Hilferty's approximation of the 99.9% quantile.
    assert chi_square < degrees * (1 - 2 / (9 * degrees) + 3.09 * math.sqrt(2 / (9 * degrees))) ** 3


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    rows = len(SETTINGS)
    logits = random_logits(rows, 500)
    uniforms = torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    alone = [int(draw(logits[i : i + 1], uniforms[i : i + 1], [SETTINGS[i]])) for i in range(rows)]
    assert draw(logits, uniforms, SETTINGS).tolist() == alone
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(2)).tolist()
    shuffled = draw(logits[order], uniforms[order], [SETTINGS[i] for i in order])
    assert shuffled.tolist() == [alone[i] for i in order]
    for first, second in itertools.pairwise(range(rows)):
        pair = draw(logits[[first, second]], uniforms[[first, second]], [SETTINGS[first], SETTINGS[second]])
        assert pair.tolist() == [alone[first], alone[second]]


def sorted_whole(logits: torch.Tensor, uniform: float, setting: tuple[float, int, float, float]) -> int:
    """One draw by the definition: sort everything, keep, and walk along the running sum."""
    kept = reference.kept_tokens(logits, *setting)
    order = sorted(kept, key=lambda token: (-float(logits[token]), token))
    target, running = uniform * sum(kept.values()), 0.0
    for token in order:
        running += kept[token]
        if running > target:
            return token
    return order[-1]


@pytest.mark.parametrize(
    "setting",
    [
        (1.0, 0, 0.9, 0.0),
        (1.0, 40, 1.0, 0.0),
        (1.0, 40, 0.9, 0.0),
        (1.0, 256, 0.9, 0.0),
        (1.0, 257, 0.9, 0.0),
        (1.0, 700, 0.5, 0.0),
        (2.0, 0, 0.95, 0.0),
        (2.0, 0, 0.999, 1e-3),
    ],
)
@pytest.mark.parametrize("ties", [False, True])
def test_few_candidates_decide_as_the_whole_vocabulary_would(
    setting: tuple[float, int, float, float], ties: bool
) -> None:
    logits = random_logits(40, 2000, seed=8)
    if ties:  # so coarse that the border between candidates and others runs through equal ones
        logits = (logits * 2).round() / 2
    uniforms = torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    drawn = draw(logits, uniforms, [setting] * 40)
    expected = [sorted_whole(row, float(u), setting) for row, u in zip(logits, uniforms, strict=True)]
    assert sum(a != b for a, b in zip(drawn.tolist(), expected, strict=True)) <= 1  # rounding may move one


def test_a9_a_tiny_temperature_takes_the_clear_maximum() -> None:
    logits = random_logits(64, 1000)
    uniforms = torch.rand(64, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    for temperature in (1e-4, 1e-30, 1e-300):
        drawn = draw(logits, uniforms, [(temperature, 0, 1.0, 0.0)] * 64)
        assert torch.equal(drawn, logits.argmax(dim=-1))


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_ends_of_the_unit_interval(settings: tuple[float, int, float, float]) -> None:
    logits = random_logits(2, 300)
    logits[:, [0, 299]] = -float("inf")
    drawn = draw(logits, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64), [settings] * 2)
    for row, token in enumerate(drawn.tolist()):
        assert reference.kept_tokens(logits[row], *settings).get(token, 0) > 0


def test_equally_likely_tokens_keep_the_lower_ids() -> None:
    grid = (torch.arange(100, dtype=torch.float64) + 0.5) / 100
    drawn = draw(torch.zeros(100, 50), grid, [(1.0, 3, 1.0, 0.0)] * 100)
    assert set(drawn.tolist()) == {0, 1, 2}


def test_logits_are_left_as_they_were() -> None:
    logits = random_logits(3, 40)
    before = logits.clone()
    draw(logits, torch.full((3,), 0.5, dtype=torch.float64), [(0.7, 4, 0.9, 0.1)] * 3)
    assert torch.equal(logits, before)
