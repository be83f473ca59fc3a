"""The producer side: submit jobs, follow their tokens, read their results. Needs no torch."""

from .aclient import AsyncClient
from .client import Client
from .errors import (
    AccessDenied,
    BrokerUnavailable,
    HeadraceError,
    InvalidRequest,
    JobFailed,
    JobNotFound,
    MalformedUrl,
    QueueFull,
    StreamPositionError,
    WaitTimeout,
)
from .events import Delta, Event, Finished, Reset, Started
from .results import ErrorInfo, JobResult, JobState, JobStatus
from .schema import GenerationRequest

__all__ = [
    "AccessDenied",
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
    "MalformedUrl",
    "QueueFull",
    "Reset",
    "Started",
    "StreamPositionError",
    "WaitTimeout",
]
