"""The engine's settings as command-line flags, shared by every command that starts a worker.

The values are passed on as they are: what they mean, and whether they are possible, is the engine's to say.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """Bytes from a text such as ``2GiB``, ``512M`` or ``1000000``; units are powers of 1024.

    Raises:
        typer.BadParameter: where it is no size.
    """
    match = _SIZE.fullmatch(str(text).strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no size; write bytes, or a number and a unit, such as 512MiB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def parse_positive_size(text: str | int) -> int:
    """Bytes as :func:`parse_size` reads them, but not none.

    Raises:
        typer.BadParameter: where it is no size, or 0.
    """
    size = parse_size(text)
    if size == 0:
        raise typer.BadParameter(f"{text!r} is nothing; it must be above 0")
    return size


def _flag(name: str, text: str, **settings: Any) -> Any:
    """An option of the engine, with its environment variable."""
    return typer.Option(help=text, envvar=f"HEADRACE_{name}", rich_help_panel="Engine", **settings)


@dataclass(frozen=True)
class EngineFlags:
    """Values of the engine's flags; the flags themselves are made from these fields."""

    model: Annotated[str, _flag("MODEL", "The demo model's name, a directory, a .gguf file, or a hub id.")] = (
        "smollm2-135m-instruct"
    )
    dtype: Annotated[str, _flag("DTYPE", "auto, float32, bfloat16 or float16.")] = "auto"
    quantization: Annotated[str, _flag("QUANTIZATION", "none, or int8 on CPUs: faster, a little less exact.")] = "none"
    device: Annotated[str, _flag("DEVICE", "auto, cpu, cuda or cuda:N.")] = "auto"
    max_model_len: Annotated[
        int | None,
        _flag("MAX_MODEL_LEN", "Most tokens of prompt and output together; the model's own limit by default."),
    ] = None
    max_num_seqs: Annotated[int, _flag("MAX_NUM_SEQS", "Most requests that run at once.")] = 64
    max_num_batched_tokens: Annotated[int, _flag("MAX_NUM_BATCHED_TOKENS", "Most tokens that one step computes.")] = (
        1024
    )
    block_size: Annotated[int, _flag("BLOCK_SIZE", "Tokens a KV block.")] = 16
    kv_cache_memory: Annotated[
        int,
        _flag(
            "KV_CACHE_MEMORY",
            "Memory for the KV cache, such as 2GiB.",
            parser=parse_positive_size,
            metavar="SIZE",
            show_default="1GiB",
        ),
    ] = 1 << 30
    swap_memory: Annotated[
        int,
        _flag(
            "SWAP_MEMORY",
            "CPU memory for the KV cache of paused requests; 0 computes it again instead.",
            parser=parse_size,
            metavar="SIZE",
            show_default="1GiB",
        ),
    ] = 1 << 30
    prefix_cache: Annotated[bool, _flag("PREFIX_CACHE", "Share memory among requests that begin alike.")] = True
    policy: Annotated[
        str, _flag("POLICY", "Order of admission: fcfs, priority, srpt, fair, prefix; several with commas.")
    ] = "fcfs"
    tenants: Annotated[
        Path | None,
        _flag(
            "TENANTS",
            "JSON file: tenant to weight, max_prompt_tokens, max_kv_share, max_running.",
            exists=True,
            dir_okay=False,
        ),
    ] = None

    def arguments(self) -> list[str]:
        """The flags as a command line."""
        arguments = []
        for field in fields(self):
            name, value = field.name.replace("_", "-"), getattr(self, field.name)
            if isinstance(value, bool):
                arguments.append(f"--{'' if value else 'no-'}{name}")
            elif value is not None:
                arguments.append(f"--{name}={value}")
        return arguments


def with_engine_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all engine flags; it takes them together, as its parameter ``engine``."""
    hints = get_type_hints(EngineFlags, include_extras=True)
    own = inspect.signature(command, eval_str=True)
    kept = [parameter for parameter in own.parameters.values() if parameter.name != "engine"]
    flags = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(EngineFlags)
    ]

    @wraps(command)
    def wrapped(**values: Any) -> None:
        engine = EngineFlags(**{field.name: values.pop(field.name) for field in fields(EngineFlags)})
        command(engine=engine, **values)

    parameters = [*kept, *flags]
    # typer reads both: the parameters' order and defaults from the one, their types from the other.
    wrapped.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": None}
    return wrapped
