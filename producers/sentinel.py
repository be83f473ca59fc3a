"""Pools of connections that ask sentinels where the primary is, each time that they connect."""

from __future__ import annotations

from typing import Any

from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.asyncio.sentinel import SentinelConnectionPool as AsyncSentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from .server_url import ServerUrl

_SECONDS = 5.0
"""How long a sentinel may take to connect and to answer, before the next is asked."""


def sentinel_pool(parsed: ServerUrl, **options: Any) -> SentinelConnectionPool:
    """A pool over a URL's sentinels.

    Args:
        options: for redis-py's connections to the primary, besides the URL's own.
    """
    sentinels = _Sentinels(parsed.sentinels, sentinel_kwargs=sentinel_options(parsed))  # type: ignore[no-untyped-call]
    return _SentinelPool(parsed.primary, sentinels, ssl=parsed.tls, **{**options, **parsed.options})  # type: ignore[no-untyped-call]


def async_sentinel_pool(parsed: ServerUrl, **options: Any) -> AsyncSentinelConnectionPool:
    """The same for asyncio."""
    no_retries = {"retry": AsyncRetry(NoBackoff(), 0)}
    sentinels = _AsyncSentinels(parsed.sentinels, sentinel_kwargs=sentinel_options(parsed) | no_retries)  # type: ignore[no-untyped-call]
    return _AsyncSentinelPool(parsed.primary, sentinels, ssl=parsed.tls, **{**options, **parsed.options})  # type: ignore[no-untyped-call]


def sentinel_options(parsed: ServerUrl) -> dict[str, Any]:
    """What redis-py needs to connect to a URL's sentinels; where one is silent, the next is asked at once."""
    timeouts = {"socket_timeout": _SECONDS, "socket_connect_timeout": _SECONDS}
    return {**timeouts, **parsed.sentinel_options, "ssl": parsed.tls, "retry": Retry(NoBackoff(), 0)}


def _no_primary(name: str) -> RedisConnectionError:
    """redis-py's own error is no sentence: it holds all options of all connections."""
    return RedisConnectionError(f"no sentinel answers, lets us in and knows a live primary named {name!r}")


class _Sentinels(Sentinel):
    def discover_master(self, service_name: str) -> Any:
        try:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call]
        except RedisConnectionError:
            raise _no_primary(service_name) from None


class _AsyncSentinels(AsyncSentinel):
    async def discover_master(self, service_name: str) -> Any:
        try:
            return await super().discover_master(service_name)
        except RedisConnectionError:
            raise _no_primary(service_name) from None


class _SentinelPool(SentinelConnectionPool):
    """Closes the connections to the sentinels with the others."""

    def disconnect(self, inuse_connections: bool = True) -> None:
        super().disconnect(inuse_connections)
        if inuse_connections:  # else only the primary has changed
            self.sentinel_manager.close()


class _AsyncSentinelPool(AsyncSentinelConnectionPool):
    """Closes the connections to the sentinels with the others."""

    async def aclose(self) -> None:
        await super().aclose()
        for sentinel in self.sentinel_manager.sentinels:
            await sentinel.aclose()
