"""``headrace limits``: show and set what may be queued."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .connection import DEFAULT_URL
from .limits import Limits, clear_limits, read_limits, set_limits
from .memory_guard import MEMORY_PERCENT
from .operator import operator
from .operator_options import JsonOption, RedisOption

app = typer.Typer(
    help="How many jobs may wait. Where tenants are kept apart, for the operator only.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def show(context: typer.Context, redis: RedisOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Show how many jobs may wait; `set` and `clear` change it. Where tenants are kept apart, for the operator only."""
    if context.invoked_subcommand is not None:
        source = context.get_parameter_source("redis")
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"--redis stands after `{context.invoked_subcommand}`")
        return
    with operator(redis) as connected:
        limits = read_limits(connected.ledger)
    if as_json:
        print(json.dumps({**vars(limits), "memory_percent": limits.memory_percent or MEMORY_PERCENT}, indent=2))
        return
    print(f"queue\t{_number(limits.queue)}")
    print(f"tenant\t{_number(limits.tenant)}")
    for name, number in limits.tenants.items():
        print(f"tenant {name}\t{number}")
    print(f"memory\t{limits.memory_percent or MEMORY_PERCENT:g} %")


def _number(limit: int | None) -> str:
    return "no limit" if limit is None else str(limit)


@app.command("set")
def set_some(
    redis: RedisOption = DEFAULT_URL,
    queue: Annotated[int | None, typer.Option(min=0, help="Most jobs that wait in one queue.")] = None,
    tenant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N|NAME=N", help="Most jobs of each tenant, or of one, that wait, over all queues; may be repeated."
        ),
    ] = None,
    memory_percent: Annotated[
        float | None, typer.Option(min=1, max=100, help="Share of Redis' maxmemory above which no new job is taken.")
    ] = None,
) -> None:
    """Set some limits; those that are not named stay.

    \b
    Examples:
      headrace limits set --queue 100000 --tenant 10000 --tenant nightly=50000
      headrace limits set --memory-percent 80
    """
    everybody, named = _tenants(tenant or [])
    limits = Limits(queue, everybody, named, memory_percent)
    if limits == Limits():
        raise typer.BadParameter("name a limit: --queue, --tenant or --memory-percent")
    with operator(redis) as connected:
        set_limits(connected.ledger, limits)


@app.command()
def clear(redis: RedisOption = DEFAULT_URL) -> None:
    """Set no limits any more."""
    with operator(redis) as connected:
        clear_limits(connected.ledger)


def _tenants(texts: list[str]) -> tuple[int | None, dict[str, int]]:
    """The limit of each tenant, and those of single ones, from texts of the form N or NAME=N."""
    everybody: int | None = None
    named: dict[str, int] = {}
    for text in texts:
        name, separator, number = text.rpartition("=")
        if not number.isdecimal() or (separator and not name):
            raise typer.BadParameter(f"--tenant {text!r} is no limit; write N, or NAME=N")
        if separator:
            named[name] = int(number)
        else:
            everybody = int(number)
    return everybody, named
