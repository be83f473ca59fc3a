"""What the benchmarks ask for: prompts as token ids, each with a number of tokens to generate.

A workload file is a JSON list of ``{"prompt": [token ids], "out": tokens to generate}``.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

_FIRST_PLAIN_ID, _LAST_PLAIN_ID = 100, 10_000
"""Ids that are neither special nor out of range in the vocabularies of language models."""


@dataclass(frozen=True)
class Job:
    """One prompt, and how many tokens to generate after it."""

    prompt: tuple[int, ...]
    out: int


def generate(count: int = 128, *, seed: int = 0) -> list[Job]:
    """Jobs with log-normal lengths, as chats have them: most are short, a few are long.

    Half of the prompts have up to 96 tokens and half of the answers up to 56; the longest are 1,024 and 384.
    """
    source = random.Random(seed)

    def length(median: int, spread: float, longest: int) -> int:
        return max(4, min(longest, round(source.lognormvariate(math.log(median), spread))))

    def prompt() -> tuple[int, ...]:
        return tuple(source.randint(_FIRST_PLAIN_ID, _LAST_PLAIN_ID) for _ in range(length(96, 0.9, 1024)))

    return [Job(prompt(), length(56, 0.8, 384)) for _ in range(count)]


def load(path: Path) -> list[Job]:
    """Read a workload file."""
    return [Job(tuple(job["prompt"]), job["out"]) for job in json.loads(path.read_text())]
