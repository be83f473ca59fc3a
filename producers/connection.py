"""Connections to Redis, from one URL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from redis import ConnectionPool, Redis
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .errors import BrokerUnavailable

DEFAULT_URL = "redis://localhost:6379/0"
SCHEMES = ("redis", "rediss", "unix")
_CONNECT_SECONDS = 5.0
# Longer than any blocking read, so that only a dead connection reaches it.
_SOCKET_SECONDS = 30.0
# Read off the text and not parsed: in a password that was not escaped, any character may stand.
_LOGIN = re.compile(r"^(\w+://)?+(?!/)([^:@/?#]*):.*@")
_PASSWORD_FIELD = re.compile(r"([?&]password=)[^&#]*")


def connect(url: str) -> Redis:
    """A client for a URL; it connects on first use.

    Raises:
        BrokerUnavailable: where the URL is none.
    """
    return Redis(connection_pool=_checked_pool(ConnectionPool, url))


def connect_async(url: str) -> AsyncRedis:
    """An asyncio client for a URL; it connects on first use.

    Raises:
        BrokerUnavailable: where the URL is none.
    """
    return AsyncRedis(connection_pool=_checked_pool(AsyncConnectionPool, url))


def _checked_pool(pool_class: Any, url: str) -> Any:
    if urlsplit(url).scheme not in SCHEMES:
        raise BrokerUnavailable(
            f"{without_password(url)!r} is no Redis URL; it must look like {DEFAULT_URL}, rediss://... or unix:///path"
        )
    timeouts: dict[str, Any] = {"socket_timeout": _SOCKET_SECONDS}
    if not url.startswith("unix:"):
        timeouts["socket_connect_timeout"] = _CONNECT_SECONDS
    try:
        return pool_class.from_url(url, decode_responses=True, **timeouts)
    except ValueError as error:  # its text may quote a part of the password
        raise BrokerUnavailable(f"{without_password(url)!r} is no Redis URL; a part of it is malformed") from error


def without_password(url: str) -> str:
    """A URL that may be shown."""
    return _PASSWORD_FIELD.sub(r"\1***", _LOGIN.sub(r"\1\2:***@", url))


@contextmanager
def broker_errors(url: str) -> Iterator[None]:
    """Turn what redis-py raises into one clear sentence.

    Raises:
        BrokerUnavailable: where Redis does not answer, or refuses the login or a command.
    """
    try:
        yield
    except AuthenticationError as error:
        raise BrokerUnavailable(f"Redis at {without_password(url)} refuses the login: {error}") from error
    except (RedisConnectionError, RedisTimeoutError) as error:
        raise BrokerUnavailable(f"no Redis answers at {without_password(url)}: {error}") from error
    except RedisError as error:
        # Out of memory, read-only, or no Redis at all.
        raise BrokerUnavailable(f"Redis at {without_password(url)} refuses: {reason_of(error)}") from error


def reason_of(error: RedisError) -> str:
    """What an error says, without the command, texts and all, that redis-py puts before it in a pipeline."""
    return str(error).rpartition("of pipeline caused error: ")[2]


def celery_url(url: str) -> str:
    """The same server as Celery and kombu spell it; they have their own form for Unix sockets."""
    parts = urlsplit(url)
    if parts.scheme != "unix":
        return url
    database = dict(parse_qsl(parts.query)).get("db", "0")
    return f"redis+socket://{parts.path}?virtual_host={database}"
