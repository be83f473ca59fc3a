"""The estimate of the memory that running requests will need."""

from __future__ import annotations

from headrace.engine.admission import DECAY, INITIAL_RATIO, MIN_RATIO, RAISE, OutputEstimate, peak_tokens
from hypothesis import given
from hypothesis import strategies as st


def peak_by_simulation(requests: list[tuple[int, int]]) -> int:
    """Every request grows by one token a step, and frees what it holds when it ends."""
    peak = 0
    for step in range(max((left for _, left in requests), default=0) + 1):
        peak = max(peak, sum(held + step for held, left in requests if left >= step))
    return peak


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), max_size=8))
def test_peak_is_that_of_a_simulation(requests: list[tuple[int, int]]) -> None:
    assert peak_tokens(requests) == peak_by_simulation(requests)


def test_estimate_rises_with_preemptions_and_sinks_with_time() -> None:
    estimate = OutputEstimate()
    assert estimate.expected(100) == round(100 * INITIAL_RATIO)
    estimate.preempted()
    assert estimate.ratio == INITIAL_RATIO + RAISE
    for _ in range(100):
        estimate.preempted()
    assert estimate.expected(100) == 100
    estimate.step()
    assert estimate.ratio == DECAY
    for _ in range(10_000):
        estimate.step()
    assert estimate.ratio == MIN_RATIO
    assert estimate.expected(1) == 1
