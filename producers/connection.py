"""Connections to Redis, from one URL; through sentinels, they follow the primary wherever it goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis import ConnectionPool, Redis
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .errors import BrokerUnavailable
from .sentinel import async_sentinel_pool, sentinel_pool
from .server_url import DEFAULT_URL, ServerUrl, check_files, parse_server_url, without_password

__all__ = [
    "DEFAULT_URL",
    "broker_errors",
    "connect",
    "connect_async",
    "reason_of",
    "without_password",
]

_CONNECT_SECONDS = 5.0
# Longer than any blocking read, so that only a dead connection reaches it.
_SOCKET_SECONDS = 30.0


def connect(url: str, *, socket_seconds: float = _SOCKET_SECONDS) -> Redis:
    """A client for a URL (:func:`parse_server_url`); it connects on first use.

    Args:
        socket_seconds: how long an answer may take, where the URL does not say.

    Raises:
        MalformedUrl: where the URL is none, or names a file that does not exist.
    """
    parsed = parse_server_url(url)
    check_files(parsed, url)
    options = _options(parsed, socket_seconds)
    if parsed.sentinels:
        return Redis.from_pool(sentinel_pool(parsed, **options))
    return Redis.from_pool(ConnectionPool.from_url(url, **options))


def connect_async(url: str) -> AsyncRedis:
    """An asyncio client for a URL (:func:`parse_server_url`); it connects on first use.

    Raises:
        MalformedUrl: where the URL is none, or names a file that does not exist.
    """
    parsed = parse_server_url(url)
    check_files(parsed, url)
    options = _options(parsed, _SOCKET_SECONDS)
    if parsed.sentinels:
        return AsyncRedis.from_pool(async_sentinel_pool(parsed, **options))
    return AsyncRedis.from_pool(AsyncConnectionPool.from_url(url, **options))


def _options(parsed: ServerUrl, socket_seconds: float) -> dict[str, Any]:
    # What somebody else wrote need not be UTF-8; it must not end the thread that happens to read it.
    options = {"decode_responses": True, "encoding_errors": "replace", "socket_timeout": socket_seconds}
    if "path" in parsed.options:
        return options
    return {**options, "socket_connect_timeout": _CONNECT_SECONDS}


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
