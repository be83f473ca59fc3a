"""``headrace worker``: serve one model from a Redis queue until told to stop."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from ..producers.client import URL_VARIABLE
from ..producers.connection import DEFAULT_URL, connect, without_password
from ..producers.engine_flags import EngineFlags, with_engine_flags
from ..producers.errors import BrokerUnavailable, MalformedUrl
from ..producers.exit_codes import BAD_INPUT, NO_BROKER
from ..producers.keys import DEFAULT_PREFIX, PREFIX_VARIABLE
from ..producers.ledger import MAX_DELIVERIES
from ..producers.server_checks import ALLOW_EVICTION_VARIABLE, check_server
from .settings import LEASE_MS, WorkerSettings

logger = logging.getLogger("headrace.worker")


HELP = """Serve one model: take jobs from Redis, run them, publish their tokens.

SIGTERM or Ctrl-C stops it in order: it takes no new job, lets running ones finish within the grace time, and
hands back the rest, which other workers go on with. A second signal hands them back at once.

\b
Examples:
  headrace worker
  headrace worker --redis redis://queue:6379/0 --model ./my-model --dtype bfloat16
"""


@with_engine_flags
def main(
    *,
    redis: Annotated[
        str, typer.Option(help="URL of the Redis server.", envvar=URL_VARIABLE, rich_help_panel="Queue")
    ] = DEFAULT_URL,
    prefix: Annotated[
        str, typer.Option(help="Of all keys in Redis.", envvar=PREFIX_VARIABLE, rich_help_panel="Queue")
    ] = DEFAULT_PREFIX,
    drain_grace: Annotated[
        float,
        typer.Option(
            help="Seconds for running jobs to finish on SIGTERM.",
            min=0,
            envvar="HEADRACE_DRAIN_GRACE",
            rich_help_panel="Queue",
        ),
    ] = 30.0,
    lease: Annotated[
        float,
        typer.Option(
            help="Seconds of silence after which a worker's jobs go to another.",
            min=2,
            envvar="HEADRACE_LEASE",
            rich_help_panel="Queue",
        ),
    ] = LEASE_MS / 1000,
    max_deliveries: Annotated[
        int,
        typer.Option(
            help="Deliveries of a job before it is given up as a dead letter.",
            min=1,
            envvar="HEADRACE_MAX_DELIVERIES",
            rich_help_panel="Queue",
        ),
    ] = MAX_DELIVERIES,
    allow_eviction: Annotated[
        bool,
        typer.Option(
            "--allow-eviction",
            help="Start on a Redis whose eviction policy may throw jobs away.",
            envvar=ALLOW_EVICTION_VARIABLE,
            rich_help_panel="Queue",
        ),
    ] = False,
    engine: EngineFlags,
) -> None:
    """Check the flags and the server, load the model, run."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _check_broker(redis, allow_eviction)
    from .announcement import announced  # noqa: PLC0415  # after the cheap checks
    from .app import HeadraceApp  # noqa: PLC0415
    from .engine_process import EngineLoadError, EngineProcess  # noqa: PLC0415
    from .service import WorkerService  # noqa: PLC0415

    logger.info("loading %s", engine.model)
    host = EngineProcess({**asdict(engine), "tenants": None if engine.tenants is None else str(engine.tenants)})
    settings = WorkerSettings(
        redis_url=redis,
        prefix=prefix,
        lease_ms=round(lease * 1000),
        drain_grace_s=drain_grace,
        max_deliveries=max_deliveries,
    )
    try:
        with announced(settings, engine.model):
            host.load()
    except EngineLoadError as error:
        print(f"headrace worker: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    service = WorkerService(settings, host)
    logger.info("serving %s from %s as %s", host.model, without_password(redis), settings.worker_id)
    status = HeadraceApp(service).run()
    logger.info("stopped")
    raise typer.Exit(status)


def _check_broker(url: str, allow_eviction: bool) -> None:
    try:
        with connect(url) as client:
            check_server(client, url, allow_eviction=allow_eviction)
    except BrokerUnavailable as error:
        print(f"headrace worker: {error}", file=sys.stderr)
        raise typer.Exit(BAD_INPUT if isinstance(error, MalformedUrl) else NO_BROKER) from error


def cli() -> None:
    """The command, under the name by which users call it."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(help=HELP)(main)
    app(prog_name="headrace worker")


if __name__ == "__main__":
    cli()
