"""The C kernels for CPUs: compiled for this very processor when they are first used, and kept.

Whatever compiler ``$CC`` names, ``cc`` by default, makes them of the ``.c`` files beside this one in a second or two;
``$CFLAGS`` come last, so ``-march=x86-64-v3`` there leaves instructions out. Where there is no compiler, every
operation falls back on plain torch, and a warning says so, once for each dtype.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from .cache_directory import cache_directory

logger = logging.getLogger(__name__)

LANES = 16
"""Rows of tensors whose length is a multiple of this are for the C kernels."""

_FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-shared", "-fPIC")
_ELEMENTS = {torch.float32: (), torch.bfloat16: ("-DELEMENT_IS_BFLOAT16",)}
_COMPILE_SECONDS = 120
_CHECKSUM_BYTES = 32
"""At the end of a kept library, where loaders do not look."""

_QUESTIONS = ("can_multiply", "can_multiply_int8", "uses_tiles")
"""Functions without arguments: what a library has."""
_P, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_ARGUMENTS: dict[str, list[Any]] = {
    "rms_norm": [*[_P] * 4, *[_I] * 2, _F],
    "gated_activation": [*[_P] * 2, *[_I] * 3],
    "rotate_and_store": [*[_P] * 8, *[_I] * 8, _F],
    "multiply": [*[_P] * 4, *[_I] * 4],
    "quantize_rows": [*[_P] * 4, *[_I] * 2],
    "multiply_int8": [*[_P] * 7, *[_I] * 4],
    "paged_attention": [*[_P] * 8, *[_I] * 9, *[_F] * 2],
}


def cpu_library(tensor: torch.Tensor) -> Any:
    """The compiled kernels for a tensor's elements; None where they do not fit it, or cannot be made.

    They work on the calling thread's OpenMP team, which is torch's own.
    """
    return _library(tensor.dtype) if tensor.device.type == "cpu" else None


@functools.cache
def _library(dtype: torch.dtype) -> Any:
    if dtype not in _ELEMENTS:
        return None
    compiler = shlex.split(os.environ.get("CC") or "cc")
    command = (*compiler, *_FLAGS, *_ELEMENTS[dtype], *shlex.split(os.environ.get("CFLAGS") or ""))
    path = cache_directory() / "kernels" / f"{_digest(command)}.so"
    try:
        library = _load(path) or ctypes.CDLL(str(_compile(command, path)))
    except (OSError, subprocess.SubprocessError) as error:
        said = (isinstance(error, subprocess.CalledProcessError) and error.stderr) or str(error)
        logger.warning(
            "the kernels for CPUs cannot be compiled, so plain torch does their work, slower; install a C compiler, "
            "or name one in $CC: %s",
            said.strip().partition("\n")[0],
        )
        return None
    for name, types in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, None
    for name in _QUESTIONS:
        getattr(library, name).restype = ctypes.c_int64
    return library


def describe_kernels(dtype: torch.dtype) -> str:
    """Which kernels a CPU has for elements of a dtype, in one line."""
    library = _library(dtype)
    if library is None:
        return "plain torch"
    return ", ".join(["compiled", *(name for name in _QUESTIONS if getattr(library, name)())])


def _load(path: Path) -> Any:
    """A library that was compiled before; None where there is none, or a part of one.

    It is compared with its checksum first: a process that loads a cut one does not get an error but dies.
    """
    if not path.is_file():
        return None
    content = path.read_bytes()
    if _checksum(content[:-_CHECKSUM_BYTES]) == content[-_CHECKSUM_BYTES:]:
        return ctypes.CDLL(str(path))
    logger.warning("%s is broken and compiled again", path)
    return None


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _sources() -> list[Path]:
    return sorted(Path(__file__).parent.glob("*.c"))


def _digest(command: tuple[str, ...]) -> str:
    """What the compiled kernels depend on: the command, sources, and what the processor can do."""
    digest = hashlib.sha256(" ".join(command).encode())
    for source in [*sorted(Path(__file__).parent.glob("*.h")), *_sources()]:
        digest.update(source.name.encode() + source.read_bytes())
    digest.update(_processor().encode())
    return digest.hexdigest()[:32]


def _processor() -> str:
    """The machine's kind and its instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux: the name of the processor has to do
        lines = []
    sets = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.system()} {platform.machine()} {sets}"


def _compile(command: tuple[str, ...], path: Path) -> Path:
    """Compile into ``path``, by way of a file beside it: an interrupted or a concurrent start leaves no half library.

    Raises:
        OSError: where there is no such compiler, or the directory cannot be written.
        subprocess.SubprocessError: where it fails; it carries what the compiler said.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=path.parent) as directory:
        made = Path(directory) / path.name
        subprocess.run(
            [*command, *map(str, _sources()), "-o", str(made), "-lm"],
            check=True,
            capture_output=True,
            text=True,
            timeout=_COMPILE_SECONDS,
        )
        made.write_bytes(made.read_bytes() + _checksum(made.read_bytes()))
        made.rename(path)
    return path
