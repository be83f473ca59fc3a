"""Options that all commands for operators have."""

from __future__ import annotations

from typing import Annotated

import typer

from .client import URL_VARIABLE

RedisOption = Annotated[
    str, typer.Option("--redis", help="URL of the Redis server: redis://, rediss:// or unix://.", envvar=URL_VARIABLE)
]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON.")]
