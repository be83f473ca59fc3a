"""Tenants: who may submit and see which jobs, where an operator has given out tokens.

The hash ``P:tenants`` has the SHA-256 of each tenant's token. While it is empty, nobody is asked for anything. Once it
is not, every client names its tenant and proves it with the token: it submits on that tenant's account, and the jobs
of others do not exist for it. The tenant ``*`` is the operator, who may do everything.

This keeps tenants apart who use headrace's clients and workers. It does not stop somebody who has the password of
Redis and speaks to it directly.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from .connection import broker_errors
from .errors import AccessDenied, InvalidRequest
from .keys import Keys
from .schema import GenerationRequest

TENANT_VARIABLE = "HEADRACE_TENANT"
TOKEN_VARIABLE = "HEADRACE_TENANT_TOKEN"
OPERATOR = "*"
"""Name of the tenant that may do everything."""
CACHE_SECONDS = 3.0
"""How long a token that was right is not looked at again; a removed tenant is out after that."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True)
class Credentials:
    """Who a caller says it is. The token is never shown."""

    tenant: str = ""
    token: str = field(default="", repr=False)

    @classmethod
    def chosen(cls, tenant: str | None = None, token: str | None = None) -> Credentials:
        """What was given, else what the environment says."""
        return cls(
            os.environ.get(TENANT_VARIABLE, "") if tenant is None else tenant,
            os.environ.get(TOKEN_VARIABLE, "") if token is None else token,
        )


@dataclass(frozen=True)
class Access:
    """What a caller may do."""

    tenant: str = ""
    """On whose account jobs are submitted that name no tenant."""
    restricted: bool = False
    """Whether only the tenant's own jobs are there for the caller."""

    def may_see(self, owner: str | None) -> bool:
        """Whether a job of this tenant is there for the caller."""
        return not self.restricted or owner == self.tenant

    def stamped(self, request: GenerationRequest) -> GenerationRequest:
        """The request on the caller's account.

        Raises:
            AccessDenied: where it names another tenant.
        """
        if request.tenant == self.tenant or not self.tenant:
            return request
        if not request.tenant:
            return request.model_copy(update={"tenant": self.tenant})
        if self.restricted:
            raise AccessDenied(f"the tenant {self.tenant!r} may not submit jobs of the tenant {request.tenant!r}")
        return request


EVERYTHING = Access()
"""Access where nobody is asked for a token, and the operator's."""


def digest(token: str) -> str:
    """What is kept of a token: it is long and random, so a plain hash tells nobody what it was."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def access_of(credentials: Credentials, num_tenants: int, expected: str | None) -> Access:
    """What a caller may do.

    Args:
        credentials: the caller's.
        num_tenants: that have tokens.
        expected: digest of the named tenant's token; None where there is no such tenant.

    Raises:
        AccessDenied: where there are tokens and the caller has not the right one.
    """
    name = credentials.tenant
    if num_tenants == 0:
        return EVERYTHING if name == OPERATOR else Access(name)
    if not name or not credentials.token:
        raise AccessDenied(
            f"this server keeps tenants apart; give tenant and tenant_token, or set {TENANT_VARIABLE} and "
            f"{TOKEN_VARIABLE}"
        )
    # An unknown name takes as long as a wrong token, and gets the same answer.
    right = hmac.compare_digest(digest(credentials.token).encode(), (expected or "").encode())
    if not right:
        raise AccessDenied(f"there is no tenant {name!r} with this token")
    return EVERYTHING if name == OPERATOR else Access(name, restricted=True)


class TenantCheck:
    """Asks Redis what a caller may do, and remembers the answer for a few seconds. Thread-safe.

    Args:
        keys: of the server.
        credentials: the caller's.
    """

    def __init__(self, keys: Keys, credentials: Credentials) -> None:
        self._keys = keys
        self._credentials = credentials
        self._known: tuple[float, Access] | None = None

    def ask(self, redis: Redis, url: str) -> Access:
        """What the caller may do.

        Raises:
            AccessDenied: where it may do nothing.
            BrokerUnavailable: where Redis at ``url`` does not answer.
        """
        if (access := self._remembered()) is not None:
            return access
        with broker_errors(url), redis.pipeline(transaction=False) as pipe:
            self._put_question(pipe)
            reply = pipe.execute()
        return self._remember(reply)

    async def ask_async(self, redis: AsyncRedis, url: str) -> Access:
        """The same over an asyncio connection."""
        if (access := self._remembered()) is not None:
            return access
        with broker_errors(url):
            async with redis.pipeline(transaction=False) as pipe:
                self._put_question(pipe)
                reply = await pipe.execute()
        return self._remember(reply)

    def _put_question(self, pipe: Any) -> None:
        pipe.hlen(self._keys.tenants)
        pipe.hget(self._keys.tenants, self._credentials.tenant)

    def _remembered(self) -> Access | None:
        known = self._known
        return known[1] if known is not None and time.monotonic() - known[0] < CACHE_SECONDS else None

    def _remember(self, reply: list[Any]) -> Access:
        access = access_of(self._credentials, *reply)
        self._known = (time.monotonic(), access)
        return access


def add_tenant(redis: Redis, keys: Keys, name: str) -> str:
    """Make a tenant, and from the first one on keep tenants apart.

    Returns:
        Its token, which is nowhere else and cannot be had again.

    Raises:
        InvalidRequest: where the name cannot be one, or is there already.
    """
    if name != OPERATOR and not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"the tenant {name!r} is refused; names are 1 to 128 letters, digits, dots, dashes and underscores, "
            f"or {OPERATOR} for the operator",
            param="tenant",
        )
    token = secrets.token_urlsafe(32)
    if not redis.hsetnx(keys.tenants, name, digest(token)):
        raise InvalidRequest(f"there is a tenant {name!r} already; remove it to give it a new token", param="tenant")
    return token


def remove_tenant(redis: Redis, keys: Keys, name: str) -> int:
    """Forget a tenant; its jobs stay, and run. Clients that have just used its token may for a few seconds more.

    Returns:
        How many tenants are left. With none, nobody is asked for a token any more.

    Raises:
        InvalidRequest: where there is none of that name.
    """
    if not redis.hdel(keys.tenants, name):
        raise InvalidRequest(f"there is no tenant {name!r}", param="tenant")
    left: Any = redis.hlen(keys.tenants)
    return int(left)


def tenant_names(redis: Redis, keys: Keys) -> list[str]:
    """Tenants that have a token."""
    names: Any = redis.hkeys(keys.tenants)
    return sorted(names)
