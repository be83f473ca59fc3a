"""Settings of a worker."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass, field

from ..producers.keys import DEFAULT_PREFIX
from ..producers.ledger import MAX_DELIVERIES

LEASE_MS = 15_000
"""A job whose worker is silent for this long goes to another, unless the worker was told otherwise."""


def _new_worker_id() -> str:
    """An id that no other process ever has: attempt tokens are built on it."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True)
class WorkerSettings:
    """Everything that a worker needs to know besides the engine's settings."""

    redis_url: str
    prefix: str = DEFAULT_PREFIX
    worker_id: str = field(default_factory=_new_worker_id)
    lease_ms: int = LEASE_MS
    """A job whose worker is silent for this long goes to another."""
    poll_s: float = 1.0
    """Longest wait before the ledger is asked for work, hint or no hint."""
    flush_s: float = 0.025
    """Shortest time between two writes; the deltas that come in it are written together."""
    drain_grace_s: float = 30.0
    """Time for running jobs to finish when the worker is told to stop."""
    max_deliveries: int = MAX_DELIVERIES
    """Deliveries of a job before it is given up."""
