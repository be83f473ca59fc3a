"""An operator's connection: to the ledger itself, for what no tenant may do where tenants are kept apart."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from .client import URL_VARIABLE
from .connection import DEFAULT_URL, broker_errors, connect
from .errors import AccessDenied
from .hints import HintSender
from .keys import Keys
from .ledger import Ledger
from .tenants import OPERATOR, Credentials, TenantCheck


class Operator:
    """A ledger, after a check that the caller may have it.

    Attributes:
        url: of the server.
        ledger: its jobs.
        hints: wake its workers.
        credentials: who the caller says it is.
    """

    def __init__(self, url: str, keys: Keys, credentials: Credentials) -> None:
        self.url = url
        self.ledger = Ledger(connect(url), keys)
        self.hints = HintSender(url)
        self.credentials = credentials

    def check(self) -> None:
        """Check that the caller is an operator.

        Raises:
            AccessDenied: where tenants are kept apart and it is not.
        """
        if TenantCheck(self.ledger.keys, self.credentials).ask(self.ledger.redis, self.url).restricted:
            raise AccessDenied(f"only the tenant {OPERATOR!r}, the operator, may do this")

    def close(self) -> None:
        """Drop the connections."""
        self.hints.close()
        self.ledger.redis.close()


@contextmanager
def operator(
    url: str | None = None,
    *,
    prefix: str | None = None,
    tenant: str | None = None,
    tenant_token: str | None = None,
    checked: bool = True,
) -> Iterator[Operator]:
    """An operator's connection for the length of a block; the arguments are :class:`Client`'s.

    Args:
        url: of the server.
        prefix: of all keys.
        tenant: who the caller says it is.
        tenant_token: that proves it.
        checked: whether the caller must be an operator; False leaves the check to the block.

    Raises:
        AccessDenied: where tenants are kept apart and the caller is not the operator.
        BrokerUnavailable: where Redis does not answer, now or within the block.
    """
    address = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    connected = Operator(address, Keys.chosen(prefix), Credentials.chosen(tenant, tenant_token))
    try:
        with broker_errors(address):
            if checked:
                connected.check()
            yield connected
    finally:
        connected.close()
