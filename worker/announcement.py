"""A worker that loads its model says so: it is not ready, and it is not missing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import RedisError

from ..producers.connection import connect, reason_of
from ..producers.keys import Keys
from ..producers.ledger import Ledger
from .lease import TICK_SECONDS, say_alive
from .settings import WorkerSettings

logger = logging.getLogger(__name__)


@contextmanager
def announced(settings: WorkerSettings, model: str) -> Iterator[None]:
    """Report a worker as ``starting`` for the length of a block."""
    ended = threading.Event()
    ledger = Ledger(connect(settings.redis_url), Keys(settings.prefix))

    def report() -> None:
        while True:
            try:
                say_alive(ledger, settings, {"model": model, "state": "starting", "running": 0})
            except RedisError as error:
                logger.warning("cannot say that this worker is starting: %s", reason_of(error))
            if ended.wait(TICK_SECONDS):
                return

    thread = threading.Thread(target=report, name="headrace-announcement", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        ledger.redis.close()
