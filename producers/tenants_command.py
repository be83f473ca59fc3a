"""``headrace tenants``: give out tokens, and so keep tenants apart."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .connection import DEFAULT_URL
from .operator import Operator, operator
from .operator_options import RedisOption
from .tenants import OPERATOR, add_tenant, remove_tenant, tenant_names

app = typer.Typer(
    help=f"""Tenants and their tokens. From the first one on, clients need HEADRACE_TENANT and HEADRACE_TENANT_TOKEN.

The tenant {OPERATOR} is the operator: it may do everything, and once it is there, these commands are for it only.""",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Name = Annotated[str, typer.Argument(metavar="NAME")]


@app.command()
def add(name: Name, redis: RedisOption = DEFAULT_URL) -> None:
    """Make a tenant and print its token, once: it cannot be shown again."""
    with operator(redis, checked=False) as connected:
        _check(connected)
        print(add_tenant(connected.ledger.redis, connected.ledger.keys, name))


@app.command("list")
def list_all(redis: RedisOption = DEFAULT_URL) -> None:
    """List the tenants, one a line."""
    with operator(redis, checked=False) as connected:
        _check(connected)
        names = tenant_names(connected.ledger.redis, connected.ledger.keys)
    for name in names:
        print(name)


@app.command()
def remove(name: Name, redis: RedisOption = DEFAULT_URL) -> None:
    """Forget a tenant's token; its jobs stay and run. Without any tenant, nobody is asked for a token."""
    with operator(redis, checked=False) as connected:
        _check(connected)
        left = remove_tenant(connected.ledger.redis, connected.ledger.keys, name)
    if not left:
        print("no tenant is left: nobody is asked for a token any more", file=sys.stderr)


def _check(connected: Operator) -> None:
    """Check that the caller may do this: anybody may who reaches Redis, until there is an operator."""
    if connected.ledger.redis.hexists(connected.ledger.keys.tenants, OPERATOR):
        connected.check()
