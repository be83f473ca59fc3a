"""No new jobs where Redis is nearly full, so that workers keep room to finish those that are there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from .errors import QueueFull
from .keys import Keys
from .ledger import Submission

MEMORY_PERCENT = 90.0
"""Share of ``maxmemory`` above which nothing is submitted, unless the limit ``memory_percent`` says otherwise."""
CACHE_SECONDS = 1.0
"""How long a reading of Redis' memory counts."""


class MemoryGuard:
    """Reads Redis' memory about once a second, and refuses new jobs while too much is used. Thread-safe.

    Where Redis has no ``maxmemory``, or does not tell this user, nothing is refused.

    Args:
        keys: of the server.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._reading: tuple[float, str] | None = None
        """When it was read, and why nothing may be submitted; empty where it may."""

    def check(self, redis: Redis, queued_before: Sequence[Submission] = ()) -> None:
        """Check that there is room for new jobs.

        Args:
            redis: a connection.
            queued_before: jobs of the same call that are queued already, for the error.

        Raises:
            QueueFull: where there is not.
        """
        if not self._is_fresh():
            with redis.pipeline(transaction=False) as pipe:
                self._put_question(pipe)
                self._read(pipe.execute(raise_on_error=False))
        self._refuse(queued_before)

    async def check_async(self, redis: AsyncRedis, queued_before: Sequence[Submission] = ()) -> None:
        """The same over an asyncio connection."""
        if not self._is_fresh():
            async with redis.pipeline(transaction=False) as pipe:
                self._put_question(pipe)
                self._read(await pipe.execute(raise_on_error=False))
        self._refuse(queued_before)

    def _put_question(self, pipe: Any) -> None:
        pipe.info("memory")
        pipe.hget(self._keys.limits, "memory_percent")

    def _is_fresh(self) -> bool:
        reading = self._reading
        return reading is not None and time.monotonic() - reading[0] < CACHE_SECONDS

    def _read(self, reply: list[Any]) -> None:
        memory, percent = reply
        reason = "" if isinstance(memory, Exception) else _reason(memory, percent)
        self._reading = (time.monotonic(), reason)

    def _refuse(self, queued_before: Sequence[Submission]) -> None:
        if self._reading is not None and self._reading[1]:
            raise QueueFull(self._reading[1], accepted_ids=[job.job_id for job in queued_before])


def _reason(memory: dict[str, Any], percent: Any) -> str:
    used, most = int(memory.get("used_memory", 0)), int(memory.get("maxmemory", 0))
    allowed = _number(percent)
    if most == 0 or used * 100 <= most * allowed:
        return ""
    return (
        f"Redis uses {used * 100 / most:.0f} % of its memory, and new jobs are taken up to {allowed:g} %; "
        "try again when some have ended"
    )


def _number(percent: Any) -> float:
    """The limit that an operator set; what is no number sets none."""
    try:
        return float(percent)
    except (TypeError, ValueError):
        return MEMORY_PERCENT
