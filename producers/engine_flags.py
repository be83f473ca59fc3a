"""The engine's settings as command-line flags, shared by every command that starts a worker.

The values are passed on as text: what they mean, and whether they are possible, is the engine's to say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Annotated

import typer

_PANEL = "Engine"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """Bytes from a text such as ``2GiB``, ``512M`` or ``1000000``; units are powers of 1024.

    Raises:
        typer.BadParameter: where it is no size.
    """
    match = _SIZE.fullmatch(str(text).strip())
    if match is None or float(match[1]) == 0:
        raise typer.BadParameter(f"{text!r} is no size; write bytes, or a number and a unit, such as 512MiB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


Model = Annotated[
    str,
    typer.Option(
        help="The demo model's name, a directory, a .gguf file, or a hub id.",
        envvar="HEADRACE_MODEL",
        rich_help_panel=_PANEL,
    ),
]
DType = Annotated[
    str,
    typer.Option(help="auto, float32, bfloat16 or float16.", envvar="HEADRACE_DTYPE", rich_help_panel=_PANEL),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        help="Most tokens of prompt and output together; the model's own limit by default.",
        envvar="HEADRACE_MAX_MODEL_LEN",
        rich_help_panel=_PANEL,
    ),
]
MaxNumSeqs = Annotated[
    int,
    typer.Option(help="Most requests that run at once.", envvar="HEADRACE_MAX_NUM_SEQS", rich_help_panel=_PANEL),
]
MaxNumBatchedTokens = Annotated[
    int,
    typer.Option(
        help="Most tokens that one step computes.",
        envvar="HEADRACE_MAX_NUM_BATCHED_TOKENS",
        rich_help_panel=_PANEL,
    ),
]
BlockSize = Annotated[
    int, typer.Option(help="Tokens a KV block.", envvar="HEADRACE_BLOCK_SIZE", rich_help_panel=_PANEL)
]
KVCacheMemory = Annotated[
    int,
    typer.Option(
        help="Memory for the KV cache, such as 2GiB.",
        parser=parse_size,
        metavar="SIZE",
        show_default="1GiB",
        envvar="HEADRACE_KV_CACHE_MEMORY",
        rich_help_panel=_PANEL,
    ),
]
Device = Annotated[
    str, typer.Option(help="auto, cpu, cuda or cuda:N.", envvar="HEADRACE_DEVICE", rich_help_panel=_PANEL)
]


@dataclass(frozen=True)
class EngineFlags:
    """Values of the engine's flags."""

    model: str = "smollm2-135m-instruct"
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 1024
    block_size: int = 16
    kv_cache_memory: int = 1 << 30
    device: str = "auto"

    def arguments(self) -> list[str]:
        """The flags as a command line."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value is not None]
