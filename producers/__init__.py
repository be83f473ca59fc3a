"""The producer side: submit jobs, follow their tokens, read their results. Needs no torch."""

from .aclient import AsyncClient
from .client import Client
from .errors import (
    BrokerUnavailable,
    HeadraceError,
    InvalidRequest,
    JobFailed,
    JobNotFound,
    StreamPositionError,
    WaitTimeout,
)
from .events import Delta, Event, Finished, Reset, Started
from .results import ErrorInfo, JobResult, JobState, JobStatus
from .schema import GenerationRequest

__all__ = [
    "AsyncClient",
    "BrokerUnavailable",
    "Client",
    "Delta",
    "ErrorInfo",
    "Event",
    "Finished",
    "GenerationRequest",
    "HeadraceError",
    "InvalidRequest",
    "JobFailed",
    "JobNotFound",
    "JobResult",
    "JobState",
    "JobStatus",
    "Reset",
    "Started",
    "StreamPositionError",
    "WaitTimeout",
]
