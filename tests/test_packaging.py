"""The wheel: what it holds, and what the producer side is worth without the rest."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("producers", "worker", "engine", "kernels")


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command; its output, or a failure that shows it."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the tracked sources alone."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", folder, source, cwd=folder)
    (built,) = folder.glob("headrace-*.whl")
    return built


def test_wheel_holds_every_module(wheel: Path) -> None:
    expected = {
        f"headrace/{path.relative_to(ROOT).as_posix()}"
        for folder in FOLDERS
        for pattern in ("*.py", "*.c", "*.h", "lua/*.lua", "py.typed")
        for path in (ROOT / folder).glob(pattern)
    }
    assert len(expected) > 50
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert held == expected


def test_producer_side_installs_and_imports_without_torch(wheel: Path, tmp_path: Path) -> None:
    """`pip install .` alone: submit and read, no torch; the worker's command says what is missing."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    constraints = ("--constraint", ROOT / "requirements.lock")
    run(python, "-m", "pip", "install", "--quiet", *constraints, wheel, cwd=tmp_path)
    script = """
import importlib, pkgutil, sys
import headrace.producers
for module in pkgutil.iter_modules(headrace.producers.__path__):
    importlib.import_module(f"headrace.producers.{module.name}")
assert importlib.util.find_spec("headrace.engine.__init__".rpartition(".")[0].rpartition(".")[0])
heavy = {"torch", "transformers", "triton", "numpy"} & set(sys.modules)
assert not heavy, heavy
assert all(importlib.util.find_spec(name) is None for name in ("torch", "transformers"))
print("imported")
"""
    assert run(python, "-c", script, cwd=tmp_path) == "imported\n"
    headrace = tmp_path / "env" / "bin" / "headrace"
    assert "Exit codes" in run(headrace, "--help", cwd=tmp_path)
    worker = subprocess.run([headrace, "worker"], capture_output=True, text=True, check=False)
    assert worker.returncode == 2
    assert worker.stderr == "headrace worker: this machine has no torch; install headrace[worker]\n"


def test_lock_pins_every_dependency_within_its_range() -> None:
    """What `make` installs is what `pyproject.toml` allows."""
    import tomllib

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [entry for entries in project["optional-dependencies"].values() for entry in entries]
    pinned = dict(
        line.split("==") for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")
    )
    assert pinned["torch"] == "2.13.0"
    for entry in [*project["dependencies"], *extras]:
        requirement = Requirement(entry)
        assert requirement.specifier.contains(pinned[requirement.name]), entry
