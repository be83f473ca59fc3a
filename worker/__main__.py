"""``headrace worker``: serve one model from a Redis queue until told to stop."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from ..producers.client import URL_VARIABLE
from ..producers.connection import DEFAULT_URL, broker_errors, connect, without_password
from ..producers.engine_flags import EngineFlags, with_engine_flags
from ..producers.errors import BrokerUnavailable
from ..producers.exit_codes import BAD_INPUT, NO_BROKER
from ..producers.keys import DEFAULT_PREFIX, PREFIX_VARIABLE
from .settings import WorkerSettings

logger = logging.getLogger("headrace.worker")

HELP = """Serve one model: take jobs from Redis, run them, publish their tokens.

SIGTERM or Ctrl-C stops it in order: it takes no new job, lets running ones finish within the grace time, and
hands back the rest. A second signal stops at once.

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
    engine: EngineFlags,
) -> None:
    """Check the flags and the server, load the model, run."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _check_broker(redis)
    from ..engine import Engine, EngineError  # noqa: PLC0415  # after the cheap checks: torch takes seconds
    from .app import HeadraceApp  # noqa: PLC0415
    from .engine_settings import engine_config  # noqa: PLC0415
    from .service import WorkerService  # noqa: PLC0415

    try:
        config = engine_config(engine)
        logger.info("loading %s", config.model)
        loaded = Engine.load(config)
    except EngineError as error:
        print(f"headrace worker: {error}", file=sys.stderr)
        raise typer.Exit(BAD_INPUT) from error
    settings = WorkerSettings(redis_url=redis, prefix=prefix, drain_grace_s=drain_grace)
    service = WorkerService(settings, loaded)
    logger.info("serving %s from %s as %s", loaded.name, without_password(redis), settings.worker_id)
    status = HeadraceApp(service).run()
    logger.info("stopped")
    raise typer.Exit(status)


def _check_broker(url: str) -> None:
    try:
        with broker_errors(url):
            client = connect(url)
            client.ping()
            client.close()
    except BrokerUnavailable as error:
        print(f"headrace worker: {error}", file=sys.stderr)
        raise typer.Exit(NO_BROKER) from error


def cli() -> None:
    """The command, under the name by which users call it."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(help=HELP)(main)
    app(prog_name="headrace worker")


if __name__ == "__main__":
    cli()
