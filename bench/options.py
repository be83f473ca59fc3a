"""The command line that the benchmarks of real models share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from headrace.producers.engine_flags import EngineFlags, parse_size

from . import workload
from .workload import Job


def parser(program: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser with the load, the form of the output, and the engine's flags."""
    options = argparse.ArgumentParser(prog=f"python -m {program}", description=(doc or "").splitlines()[0])
    options.add_argument(
        "--workload", type=Path, metavar="FILE", help="JSON list of {prompt: [ids], out: n}; default: 128 made-up jobs"
    )
    options.add_argument("--limit", type=int, metavar="N", help="only the first N jobs")
    options.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    group = options.add_argument_group("engine", "as those of `headrace worker`")
    for field in fields(EngineFlags):
        name, default = f"--{field.name.replace('_', '-')}", field.default
        if isinstance(default, bool):
            group.add_argument(name, action=argparse.BooleanOptionalAction, default=default)
            continue
        group.add_argument(name, type=_kind(field.name, default), default=default, help="default: %(default)s")
    return options


def _kind(name: str, default: object) -> Callable[[str], object]:
    """What reads a flag's text."""
    if name == "tenants":
        return Path
    if name.endswith("_memory"):
        return parse_size
    return str if isinstance(default, str) else int


def engine_flags(options: argparse.Namespace) -> EngineFlags:
    """The engine's flags among parsed options."""
    return EngineFlags(**{field.name: getattr(options, field.name) for field in fields(EngineFlags)})


def jobs(options: argparse.Namespace) -> Sequence[Job]:
    """The load that was asked for."""
    loaded = workload.load(options.workload) if options.workload else workload.generate()
    return loaded[: options.limit]
