"""``import headrace.producers`` in an application: quick, and without the model's libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..support import environment

SECONDS = 0.5
PROGRAM = """
import sys, time
started = time.perf_counter()
import headrace.producers
print(time.perf_counter() - started)
heavy = [name for name in ("torch", "transformers", "triton", "celery", "kombu", "numpy") if name in sys.modules]
heavy += [name for name in sys.modules if name.startswith(("headrace.engine", "headrace.worker", "headrace.kernels"))]
print(*heavy)
"""


def import_once(cwd: Path) -> tuple[float, str]:
    """Seconds, and the names of heavy modules that came along."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=True)
    seconds, heavy = done.stdout.splitlines()
    return float(seconds), heavy


def test_the_import_is_quick_and_light(tmp_path: Path) -> None:
    seconds, heavy = zip(*(import_once(tmp_path) for _ in range(5)), strict=True)
    assert set(heavy) == {""}
    assert min(seconds) < SECONDS


def test_the_whole_producer_side_needs_no_torch(tmp_path: Path) -> None:
    program = """
import sys
for name in ("torch", "transformers", "triton", "tokenizers"):
    sys.modules[name] = None
import importlib, pkgutil
import headrace.producers
for module in pkgutil.iter_modules(headrace.producers.__path__):
    importlib.import_module(f"headrace.producers.{module.name}")
print(len(sys.modules))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
