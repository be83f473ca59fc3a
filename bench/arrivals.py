"""Synthetic loads for the scheduler's simulator: when requests come, how long they are, what they share."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Arrival:
    """One request of a load.

    Attributes:
        time: seconds from the start.
        prompt: token ids.
        output: tokens that it will generate.
        tenant: whose it is.
        priority: 0, the soonest, to 9.
        label: what kind of request it is, for figures by class.
    """

    time: float
    prompt: tuple[int, ...]
    output: int
    tenant: str = ""
    priority: int = 0
    label: str = ""


class Lengths:
    """Log-normal lengths of prompts and outputs, as chat traffic has them.

    Args:
        rng: source of chance.
        prompt, output: medians, in tokens.
        sigma: spread of the logarithm.
    """

    def __init__(self, rng: random.Random, prompt: int = 150, output: int = 200, sigma: float = 0.8) -> None:
        self.rng = rng
        self._prompt, self._output, self._sigma = prompt, output, sigma

    def prompt(self) -> tuple[int, ...]:
        """A prompt of random tokens."""
        return self.tokens(self._length(self._prompt, 4000))

    def output(self) -> int:
        """How many tokens an answer has."""
        return self._length(self._output, 2000)

    def tokens(self, count: int) -> tuple[int, ...]:
        """Random tokens."""
        return tuple(self.rng.choices(range(32_000), k=count))

    def _length(self, median: int, most: int) -> int:
        return max(4, min(most, round(median * self.rng.lognormvariate(0, self._sigma))))


def one_batch(count: int, lengths: Lengths) -> list[Arrival]:
    """All requests at once, as when a dataset is generated."""
    return [Arrival(0.0, lengths.prompt(), lengths.output()) for _ in range(count)]


def poisson(count: int, lengths: Lengths, rate: float = 20.0) -> list[Arrival]:
    """Independent users: exponential gaps, ``rate`` requests a second."""
    time, arrivals = 0.0, []
    for _ in range(count):
        time += lengths.rng.expovariate(rate)
        arrivals.append(Arrival(time, lengths.prompt(), lengths.output()))
    return arrivals


def bursts(count: int, lengths: Lengths, size: int = 400, every: float = 10.0) -> list[Arrival]:
    """Many at a time, then silence; one in ten is urgent."""
    arrivals = []
    for index in range(count):
        priority, label = (0, "urgent") if index % 10 == 0 else (5, "normal")
        time = every * (index // size)
        arrivals.append(Arrival(time, lengths.prompt(), lengths.output(), priority=priority, label=label))
    return arrivals


def shared_prefix(count: int, lengths: Lengths, share: float = 0.9, length: int = 1000) -> list[Arrival]:
    """Prompts of which a share of all tokens is one and the same long beginning."""
    prefix = lengths.tokens(round(length * share))
    own = length - len(prefix)
    return [Arrival(0.05 * i, prefix + lengths.tokens(own), lengths.output(), label="shared") for i in range(count)]


def tenants(count: int, lengths: Lengths) -> list[Arrival]:
    """One tenant sends nine requests of ten, another the tenth; all at once."""
    names = ["small" if index % 10 == 9 else "large" for index in range(count)]
    return [Arrival(0.0, lengths.prompt(), lengths.output(), tenant=name, label=name) for name in names]


def long_prompt(_count: int, lengths: Lengths) -> list[Arrival]:
    """Thirty-two requests decode; two seconds later one with a prompt of 5,000 tokens comes."""
    decoding = [Arrival(0.0, lengths.tokens(50), 400, label="decoding") for _ in range(32)]
    return [*decoding, Arrival(2.0, lengths.tokens(5000), 50, label="long")]


LOADS: dict[str, Callable[[int, Lengths], list[Arrival]]] = {
    "batch": one_batch,
    "poisson": poisson,
    "bursts": bursts,
    "prefix": shared_prefix,
    "tenants": tenants,
    "long-prompt": long_prompt,
}


def recorded(path: Path) -> list[Arrival]:
    """A recorded load: a JSON list of ``{"prompt": [ids], "out": n, "time": seconds}``, all at once without time."""
    return [Arrival(float(r.get("time", 0.0)), tuple(r["prompt"]), int(r["out"])) for r in json.loads(path.read_text())]
