"""The counter-based noise."""

from __future__ import annotations

import pytest
import torch
from headrace.kernels import philox_uniform
from headrace.kernels.sampling import philox_4x32

# The vectors that Random123, the authors' library, is tested with.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([int(word, 16)]) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter: str, key: str, answer: str) -> None:
    drawn = philox_4x32(words(counter), words(key))
    assert [f"{int(word):08x}" for word in drawn] == answer.split()


def uniform(seed: int, position: int, sample: int) -> float:
    return float(philox_uniform(torch.tensor([seed]), torch.tensor([position]), torch.tensor([sample])))


def test_every_argument_changes_the_number() -> None:
    keys = [(7, 3, 0), (8, 3, 0), (7 + (1 << 40), 3, 0), (-7, 3, 0), (7, 4, 0), (7, 3 + (1 << 33), 0), (7, 3, 1)]
    numbers = {key: uniform(*key) for key in keys}
    assert len(set(numbers.values())) == len(keys)
    assert numbers == {key: uniform(*key) for key in reversed(keys)}


def test_numbers_are_uniform() -> None:
    rows = 20_000
    numbers = philox_uniform(torch.full((rows,), 11), torch.arange(rows), torch.zeros(rows, dtype=torch.int64))
    assert numbers.dtype is torch.float64
    assert 0 <= numbers.min() < 1e-3
    assert 1 - 1e-3 < numbers.max() < 1
    counts = torch.histc(numbers.float(), bins=50, min=0, max=1)
    chi_square = float(((counts - rows / 50) ** 2 / (rows / 50)).sum())
    assert chi_square < 85.4, "beyond the 99.9% quantile for 49 degrees of freedom"
    successive = torch.corrcoef(torch.stack([numbers[:-1], numbers[1:]]))[0, 1]
    assert abs(float(successive)) < 0.03
