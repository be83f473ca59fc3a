"""Which failures are tried again, and when. Pure functions; the ledger counts the tries."""

from __future__ import annotations

import random

from ..producers.results import ErrorInfo

BASE_SECONDS = 1.0
MOST_SECONDS = 60.0


def is_transient(error: ErrorInfo) -> bool:
    """Whether the same request may succeed another time: the fault is not in the request (HTTP's 5xx, 408, 429)."""
    return error.status_code >= 500 or error.status_code in (408, 429)


def retry_delay(error: ErrorInfo, deliveries: int, source: random.Random) -> float:
    """Seconds until the next try.

    Full jitter: evenly spread between nothing and a bound that doubles with each delivery, so that jobs which
    failed together do not come back together (Brooker 2015, "Exponential Backoff And Jitter"). Where the error
    says how long to wait, that comes first, and the spread on top.

    Args:
        error: of the last try.
        deliveries: so far, at least 1.
        source: of randomness.
    """
    bound = min(MOST_SECONDS, BASE_SECONDS * 2 ** (deliveries - 1))
    return (error.retry_after_seconds or 0.0) + source.uniform(0, bound)
