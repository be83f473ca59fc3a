"""Figures of a benchmark run, and how they are printed."""

from __future__ import annotations

import json
import math
import os
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Record = dict[str, Any]
"""Names and figures of one run; values are what JSON has."""


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of the values do not exceed, interpolated between neighbours.

    Raises:
        ValueError: where there is no value.
    """
    if not values:
        raise ValueError("no values to take a percentile of")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def percentiles(name: str, values: Sequence[float]) -> Record:
    """``name_p50`` and ``name_p99``; None where there is no value."""
    return {f"{name}_p{p}": round(percentile(values, p), 6) if values else None for p in (50, 99)}


def throughput(prompt_tokens: int, out_tokens: int, wall_s: float) -> Record:
    """Tokens a second: generated ones, and those with the prompts."""
    return {
        "out_tok_s": round(out_tokens / wall_s, 2),
        "total_tok_s": round((prompt_tokens + out_tokens) / wall_s, 2),
        "wall_s": round(wall_s, 3),
        "prompt_tokens": prompt_tokens,
        "out_tokens": out_tokens,
    }


def peak_rss_mb(*, children: bool = False) -> float:
    """Most memory that this process, or the largest of its ended children, has held, in units of 10^6 bytes."""
    kilobytes = resource.getrusage(resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF).ru_maxrss
    return round(kilobytes * 1024 / 1e6, 1)


def machine() -> Record:
    """What the figures were measured on."""
    return {"processor": _processor(), "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def versions(packages: Sequence[str]) -> dict[str, str | None]:
    """Installed versions; None for what is not installed."""
    return {package: _version(package) for package in packages}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def print_record(record: Record, *, as_json: bool) -> None:
    """Write a record to stdout: one line of JSON, or a table."""
    if as_json:
        json.dump(record, sys.stdout)
        sys.stdout.write("\n")
        return
    rows = list(_flatten(record).items())
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        sys.stdout.write(f"{name:<{width}}  {value}\n")


def _flatten(record: Mapping[str, Any], prefix: str = "") -> Record:
    """A nested record with dotted names."""
    flat: Record = {}
    for name, value in record.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat
