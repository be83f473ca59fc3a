"""The kernels' tests on the other paths that a machine may leave: no compiler, and lesser instruction sets."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from headrace.kernels import cpu_library

FOLDER = Path(__file__).parent
X86 = platform.machine() == "x86_64"
SAYS = """
import logging, torch
from headrace.kernels import describe_kernels
logging.basicConfig()
print(describe_kernels(torch.float32), describe_kernels(torch.bfloat16), sep=" | ")
"""
PATHS = {
    "no compiler": ({"CC": "/nonexistent/cc"}, "plain torch | plain torch"),
    "vectors alone": ({"CFLAGS": "-march=x86-64-v3"}, "compiled, can_multiply | compiled"),
    "no tiles": ({"CFLAGS": "-mno-amx-tile"}, None),
}


def start(*command: str, cache: Path, **variables: str) -> subprocess.Popen[str]:
    """A process of this interpreter with its own cache of compiled kernels."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "CFLAGS")}
    environment |= {"XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"} | variables
    return subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def said(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a process that ends well printed."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, output[-3000:] + errors[-3000:]
    return output, errors


@pytest.mark.parametrize("path", PATHS)
def test_kernels_are_right_on_every_path(path: str, tmp_path: Path) -> None:
    variables, description = PATHS[path]
    if "CFLAGS" in variables and not X86:
        pytest.skip("the flags are those of x86-64")
    output, _ = said(start("-c", SAYS, cache=tmp_path, **variables))
    if description is None:
        assert "compiled" in output
        assert "uses_tiles" not in output
    else:
        assert output.strip() == description
    tests = [
        str(file)
        for file in sorted(FOLDER.glob("test_*.py"))
        if file.name not in (Path(__file__).name, "test_draw_tokens.py")
    ]
    output, _ = said(start("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cache=tmp_path, **variables))
    assert " passed" in output


def test_without_a_compiler_one_warning_a_dtype_says_what_to_do(tmp_path: Path) -> None:
    _, errors = said(start("-c", SAYS, cache=tmp_path, CC="/nonexistent/cc"))
    warnings = [line for line in errors.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 2
    assert all("name one in $CC" in line and "/nonexistent/cc" in line for line in warnings)


def test_two_processes_that_compile_at_once_leave_one_library(tmp_path: Path) -> None:
    processes = [start("-c", SAYS, cache=tmp_path) for _ in range(2)]
    outputs = [said(process)[0] for process in processes]
    assert outputs[0] == outputs[1]
    assert "plain torch" not in outputs[0]
    made = list((tmp_path / "headrace" / "kernels").iterdir())
    assert len(made) == 2, "one for each dtype, and nothing else"
    assert {file.suffix for file in made} == {".so"}


def test_other_flags_make_another_library(tmp_path: Path) -> None:
    for process in [start("-c", SAYS, cache=tmp_path, CFLAGS=flags) for flags in ("-O1", "-O1 -DANOTHER")]:
        assert "plain torch" not in said(process)[0]
    assert len(list((tmp_path / "headrace" / "kernels").iterdir())) == 4, "one for each dtype and flags"


def test_a_broken_library_is_compiled_again(tmp_path: Path) -> None:
    first, _ = said(start("-c", SAYS, cache=tmp_path))
    made = list((tmp_path / "headrace" / "kernels").iterdir())
    sizes = [file.stat().st_size for file in made]
    for file, left in zip(made, (100, sizes[1] // 2), strict=True):
        file.write_bytes(file.read_bytes()[:left])
    second, errors = said(start("-c", SAYS, cache=tmp_path))
    assert second == first
    assert errors.count("is broken and compiled again") == 2
    assert [file.stat().st_size for file in made] == sizes


def test_a_compiler_that_hangs_is_as_good_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hanging = tmp_path / "cc"
    hanging.write_text("#!/bin/sh\necho thinking >&2\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setenv("CC", str(hanging))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu_library, "_COMPILE_SECONDS", 0.5)
    assert cpu_library._library.__wrapped__(torch.float32) is None
    (record,) = caplog.records
    assert "timed out" in record.getMessage()
    assert not any((tmp_path / "headrace" / "kernels").iterdir())
