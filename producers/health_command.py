"""``headrace health``: for people, and for the health checks of containers."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated

import typer

from .client import URL_VARIABLE
from .connection import DEFAULT_URL, broker_errors, connect, without_password
from .errors import BrokerUnavailable, MalformedUrl
from .exit_codes import DRAINING, NO_BROKER, NO_WORKER, OK, STARTING
from .health import Health, WorkerHealth, advice, chosen, read_workers
from .keys import PREFIX_VARIABLE, Keys

ANSWER_SECONDS = 3.0
"""How long Redis may take for an answer; a health check has a time limit of its own."""
_CODES = {
    Health.READY: OK,
    Health.STARTING: STARTING,
    Health.DRAINING: DRAINING,
    Health.NO_WORKER: NO_WORKER,
    Health.NO_REDIS: NO_BROKER,
}


def health(
    redis: Annotated[str, typer.Option(help="URL of the Redis server.", envvar=URL_VARIABLE)] = DEFAULT_URL,
    prefix: Annotated[str | None, typer.Option(help="Of all keys in Redis.", envvar=PREFIX_VARIABLE)] = None,
    worker: Annotated[
        str | None, typer.Option(help="Only this worker: its id, or the beginning up to a dash, such as its host.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only workers that serve this model.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines.")] = False,
) -> None:
    """Say whether Redis answers and a worker is ready; the exit code says it too.

    What is wrong, and what to do, goes to standard error.

    \b
    Exit codes:
      0   a worker is ready
      2   bad usage, or no Redis URL
      3   no Redis answers
      4   no worker has reported, or it is gone
      6   a worker is starting
      7   a worker is draining, and no other is ready

    \b
    Examples:
      headrace health
      headrace health --worker "$(hostname)"
    """
    found: list[WorkerHealth] = []
    try:
        with broker_errors(redis), connect(redis, socket_seconds=ANSWER_SECONDS) as connection:
            found = chosen(read_workers(connection, Keys.chosen(prefix)), worker=worker, model=model)
        state = found[0].health if found else Health.NO_WORKER
        fix = advice(found, worker=worker, model=model)
    except MalformedUrl:
        raise
    except BrokerUnavailable as error:
        state, fix = Health.NO_REDIS, f"{error}; start Redis, or give --redis the URL of one that runs"
    if as_json:
        print(json.dumps(_document(redis, state, found, fix)))
    else:
        _print_lines(redis, state, found)
    if fix:
        print(f"headrace health: {fix}", file=sys.stderr)
    raise typer.Exit(_CODES[state])


def _document(url: str, state: Health, found: list[WorkerHealth], fix: str | None) -> dict[str, object]:
    return {
        "status": state.value,
        "redis": {"url": without_password(url), "live": state is not Health.NO_REDIS},
        "workers": [dataclasses.asdict(each) for each in found],
        "fix": fix,
    }


def _print_lines(url: str, state: Health, found: list[WorkerHealth]) -> None:
    print(f"redis\t{'down' if state is Health.NO_REDIS else 'live'}\t{without_password(url)}")
    for each in found:
        print(f"worker\t{each.state}\t{each.worker_id}\t{each.model}\t{each.running}")
