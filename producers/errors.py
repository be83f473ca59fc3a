"""What the producer side raises."""

from __future__ import annotations

from collections.abc import Iterable


class HeadraceError(Exception):
    """Base of the errors that headrace raises on purpose."""


class InvalidRequest(HeadraceError, ValueError):
    """A request is refused before it is queued.

    Attributes:
        message: one sentence: what is wrong, and what is allowed.
        code: OpenAI's machine-readable reason.
        param: the parameter at fault, where there is one.
    """

    def __init__(self, message: str, *, code: str = "invalid_value", param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param


class BrokerUnavailable(HeadraceError):
    """Redis does not answer, or is not at the address."""


class MalformedUrl(BrokerUnavailable, ValueError):
    """What should be the URL of a server is none."""


class QueueFull(HeadraceError):
    """Jobs are refused because too many wait, or Redis has too little memory left. Try again later.

    Attributes:
        accepted_ids: jobs of the same call that are in the queue all the same. Submitting them again under the same
            ids changes nothing.
    """

    def __init__(self, message: str, *, accepted_ids: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.accepted_ids = frozenset(accepted_ids)

    @property
    def num_accepted(self) -> int:
        """How many jobs of the same call are in the queue."""
        return len(self.accepted_ids)


class AccessDenied(HeadraceError):
    """The server keeps tenants apart, and the caller is not who may do this."""


class JobNotFound(HeadraceError, LookupError):
    """There is no such job, or its record has outlived its retention."""


class JobFailed(HeadraceError):
    """A job ended without an answer; raised where its text was asked for."""


class StreamPositionError(HeadraceError, ValueError):
    """Events cannot be replayed from the position that was asked for."""


class WaitTimeout(HeadraceError, TimeoutError):
    """The time allowed for waiting is over; the job itself goes on."""
