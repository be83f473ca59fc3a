"""In which order waiting requests are admitted: pure functions of the request.

Every policy is a *handicap* in seconds. A request is served as if it had arrived that much later:

    key(request) = arrival + sum of the handicaps of the chosen policies

Waiting lowers nobody's key, but arrivals raise everybody else's, which is ageing without any bookkeeping. As each
handicap has a largest value, so has unfairness: **a request can be overtaken only by requests that arrive less
than** ``largest handicap - own handicap`` **seconds after it.** Each policy below states its own bound in that form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .errors import ConfigError
from .request import Request

Policy = Callable[[Request], float]

PRIORITIES = 10
"""Priorities are 0, the soonest, to 9."""
PRIORITY_SECONDS = 30.0
"""One level of priority is worth having arrived this much earlier."""
SRPT_SECONDS_PER_TOKEN = 0.02
"""One token of remaining work is worth having arrived this much later."""
SRPT_MAX_SECONDS = 120.0
"""No amount of work is worth more than this."""


def fcfs(_request: Request) -> float:
    """First come, first served. Bound: nobody who arrives later overtakes."""
    return 0.0


def priority(request: Request) -> float:
    """Urgent requests first. Bound: overtaken only by requests of a lower number that arrive less than
    ``30 s x (difference of the numbers)`` later, so at most 270 s for priority 9.
    """
    return request.priority * PRIORITY_SECONDS


def srpt(request: Request) -> float:
    """Shortest remaining processing time first, by tokens still to compute and generate (Schrage 1968: it
    minimises the mean time in the system). Bound: overtaken only by shorter requests that arrive less than
    ``0.02 s x (difference in tokens)`` later, and never by any that arrive more than 120 s later.
    """
    return min(request.remaining_tokens * SRPT_SECONDS_PER_TOKEN, SRPT_MAX_SECONDS)


POLICIES: dict[str, Policy] = {"fcfs": fcfs, "priority": priority, "srpt": srpt}
MODIFIERS = ("fair", "prefix")
"""Not keys, but choices among keys, made by the waiting queue: see :class:`headrace.engine.waiting.WaitingQueue`."""


def parse_policy(text: str) -> tuple[list[Policy], set[str]]:
    """Policies and modifiers from a setting such as ``fair,priority,srpt``.

    Raises:
        ConfigError: where a name is unknown.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in POLICIES and name not in MODIFIERS:
            raise ConfigError(f"policy is {text!r}; {name!r} is none of {', '.join([*POLICIES, *MODIFIERS])}")
    if not names:
        raise ConfigError(f"policy is empty; name some of {', '.join([*POLICIES, *MODIFIERS])}")
    return [POLICIES[name] for name in names if name in POLICIES], {name for name in names if name in MODIFIERS}


def policy_key(policies: Sequence[Policy], request: Request) -> float:
    """When a request counts as having arrived, in seconds of the clock that set its arrival."""
    return request.arrival + sum(policy(request) for policy in policies)
