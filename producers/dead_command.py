"""``headrace dead``: look at jobs that were given up, submit them once more, delete them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from .connection import DEFAULT_URL
from .dead_letters import DeadLetters
from .errors import JobNotFound
from .exit_codes import BAD_INPUT, OK
from .operator import operator
from .operator_options import JsonOption, RedisOption

app = typer.Typer(
    help="Jobs that were given up after too many deliveries. Where tenants are kept apart, for the operator only.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Ids as `list` has them.", show_default=False)]


@app.command("list")
def list_all(redis: RedisOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """List them, the earliest first: id, model or queue, when, deliveries, tokens published, reason."""
    with operator(redis) as connected:
        letters = DeadLetters(connected.ledger, connected.hints).list()
    if as_json:
        print(json.dumps([letter.as_json() for letter in letters], indent=2, ensure_ascii=False))
        return
    for letter in letters:
        fields = (
            letter.job_id,
            letter.queue,
            letter.ended.isoformat(timespec="seconds"),
            str(letter.deliveries),
            str(letter.completion_tokens),
            " ".join(letter.reason.split()),
        )
        print("\t".join(fields))


@app.command()
def show(job_id: Annotated[str, typer.Argument(metavar="ID")], redis: RedisOption = DEFAULT_URL) -> None:
    """Print one as JSON, with its request and so with its prompt."""
    with operator(redis) as connected:
        letter = DeadLetters(connected.ledger, connected.hints).show(job_id)
    print(json.dumps(letter, indent=2, ensure_ascii=False))


@app.command()
def requeue(
    ids: Ids = None,
    redis: RedisOption = DEFAULT_URL,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """Submit some once more, as new jobs, and print the new ids, one a line."""
    with operator(redis) as connected:
        letters = DeadLetters(connected.ledger, connected.hints)
        code = _for_each(_chosen(letters, ids, everything), lambda job_id: print(letters.requeue(job_id), flush=True))
    raise typer.Exit(code)


@app.command()
def purge(
    ids: Ids = None,
    redis: RedisOption = DEFAULT_URL,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """Delete some for good, with their records and events, and print their ids, one a line."""

    def purge_one(job_id: str) -> None:
        letters.purge(job_id)
        print(job_id, flush=True)

    with operator(redis) as connected:
        letters = DeadLetters(connected.ledger, connected.hints)
        code = _for_each(_chosen(letters, ids, everything), purge_one)
    raise typer.Exit(code)


def _chosen(letters: DeadLetters, ids: list[str] | None, everything: bool) -> list[str]:
    if bool(ids) is everything:
        raise typer.BadParameter("name the ids, or give --all")
    return ids or [letter.job_id for letter in letters.list()]


def _for_each(ids: list[str], action: Callable[[str], None]) -> int:
    """Act on all; one that is not there does not stop the others. Returns the exit code."""
    code = OK
    for job_id in ids:
        try:
            action(job_id)
        except JobNotFound as error:
            print(f"headrace: {error}", file=sys.stderr)
            code = BAD_INPUT
    return code
