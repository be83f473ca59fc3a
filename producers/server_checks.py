"""What a worker asks of its server before it starts: that it forgets nothing."""

from __future__ import annotations

import logging
import time
from typing import Any

from redis import Redis
from redis.exceptions import BusyLoadingError, NoPermissionError, ResponseError

from .connection import broker_errors
from .errors import BrokerUnavailable
from .server_url import without_password

logger = logging.getLogger(__name__)

ALLOW_EVICTION_VARIABLE = "HEADRACE_ALLOW_EVICTION"
LOADING_SECONDS = 600.0
"""How long a server may take to load its data."""
_LOG_SECONDS = 10.0
_ASK_SECONDS = 0.2


def check_server(
    redis: Redis, url: str, *, allow_eviction: bool = False, loading_seconds: float = LOADING_SECONDS
) -> None:
    """Wait until a server has loaded its data, and refuse one that would throw jobs away.

    All is read from INFO, which answers while the server loads and where CONFIG is forbidden. Where INFO is
    forbidden too, the checks are left out, with a warning. Through sentinels it is the primary that is asked.

    Args:
        allow_eviction: warn of an eviction policy, and do not refuse it.
        loading_seconds: how long the loading may take.

    Raises:
        BrokerUnavailable: where the server does not answer, takes too long to load, or evicts keys.
    """
    with broker_errors(url):
        _wait_until_loaded(redis, url, loading_seconds)
        memory, persistence = _info(redis, "memory"), _info(redis, "persistence")
    _check_eviction(memory.get("maxmemory_policy"), url, allow_eviction)
    if persistence.get("aof_enabled") == 0:
        logger.warning(
            "Redis at %s has appendonly off: jobs that it took since its last snapshot are lost when it stops; "
            "switch it on with CONFIG SET appendonly yes, and in its configuration",
            without_password(url),
        )


def _wait_until_loaded(redis: Redis, url: str, limit: float) -> None:
    deadline = time.monotonic() + limit
    next_line = time.monotonic()
    while _is_loading(redis):
        if time.monotonic() >= deadline:
            raise BrokerUnavailable(f"Redis at {without_password(url)} still loads its data after {limit:.0f} s")
        if time.monotonic() >= next_line:
            next_line += _LOG_SECONDS
            logger.info("Redis at %s is loading its data%s; waiting", without_password(url), _progress(redis))
        time.sleep(_ASK_SECONDS)


def _is_loading(redis: Redis) -> bool:
    try:
        redis.ping()
    except BusyLoadingError:
        return True
    return False


def _progress(redis: Redis) -> str:
    known = _info(redis, "persistence")
    if not known.get("loading"):
        return ""
    return f" ({known.get('loading_loaded_perc', 0):.0f} %, about {known.get('loading_eta_seconds', 0)} s left)"


def _info(redis: Redis, section: str) -> dict[str, Any]:
    """A section of INFO; empty where the user may not ask."""
    try:
        found: Any = redis.info(section)
    except (NoPermissionError, ResponseError) as error:
        logger.warning("cannot check the server's settings, since INFO is refused: %s", error)
        return {}
    except BusyLoadingError:
        return {}
    return dict(found)


def _check_eviction(policy: Any, url: str, allowed: bool) -> None:
    """The policies named volatile-* are no better: they evict the keys that expire, the leases among them."""
    if policy in (None, "noeviction"):
        return
    found = (
        f"Redis at {without_password(url)} has maxmemory-policy {policy}, which throws jobs away when memory is full"
    )
    if not allowed:
        raise BrokerUnavailable(
            f"{found}; set it to noeviction (CONFIG SET maxmemory-policy noeviction, and in its configuration), "
            "or start the worker with --allow-eviction"
        )
    logger.warning("%s", found)
