"""Tenants: what each may use, and how much each has had."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from .errors import ConfigError, RequestError
from .request import Request

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
"""What a computed prompt token and a generated one cost, in the ratio that hardware has them."""


@dataclass(frozen=True)
class Tenant:
    """A tenant's share, and what it may use at most; None is no limit.

    Raises:
        ConfigError: where a limit allows nothing, or the weight is not positive.
    """

    weight: float = 1.0
    """Share of the service under the ``fair`` policy, relative to other tenants' weights."""
    max_prompt_tokens: int | None = None
    """A longer prompt is refused."""
    max_kv_share: float | None = None
    """Share of all KV blocks; a request that would exceed it waits, one that alone exceeds it is refused."""
    max_running: int | None = None
    """Requests at once; more wait."""

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise ConfigError(f"a tenant's weight is {self.weight}; it must be above 0")
        for name in ("max_prompt_tokens", "max_running"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        if self.max_kv_share is not None and not 0 < self.max_kv_share <= 1:
            raise ConfigError(f"max_kv_share is {self.max_kv_share}; it must be above 0 and at most 1")

    def check(self, request: Request, blocks: int, num_blocks: int) -> None:
        """Refuse a request that could never run within the limits.

        Args:
            request: the request.
            blocks: KV blocks at its largest.
            num_blocks: KV blocks there are.

        Raises:
            RequestError: naming the limit.
        """
        prompt_len = len(request.prompt_token_ids)
        if self.max_prompt_tokens is not None and prompt_len > self.max_prompt_tokens:
            raise RequestError(
                f"the prompt has {prompt_len} tokens; tenant {request.tenant!r} may send {self.max_prompt_tokens}",
                code="tenant_limit_exceeded",
            )
        if self.max_kv_share is not None and blocks > self.max_kv_share * num_blocks:
            raise RequestError(
                f"the request needs {blocks} KV blocks; tenant {request.tenant!r} may hold "
                f"{int(self.max_kv_share * num_blocks)} (max_kv_share {self.max_kv_share} of {num_blocks})",
                code="tenant_limit_exceeded",
            )


class TenantUsage:
    """Service that each tenant had, and what it uses now.

    The service counters are the virtual token counters of Sheng et al. 2024, "Fairness in Serving Large Language
    Models": weighted tokens served, lifted to the least active counter when a tenant returns from idleness, so that
    nobody saves up a claim on the machine.
    """

    def __init__(self, weights: dict[str, float]) -> None:
        self.served: dict[str, float] = defaultdict(float)
        self.running: dict[str, int] = defaultdict(int)
        self.blocks: dict[str, int] = defaultdict(int)
        """KV blocks reserved for running requests at their largest."""
        self._weights = weights

    def charge(self, tenant: str, tokens: float) -> None:
        """Count weighted tokens as served."""
        self.served[tenant] += tokens / self._weights.get(tenant, 1.0)

    def lift(self, tenant: str, active: list[str]) -> None:
        """Have a tenant that was idle start level with the least served of the active ones."""
        if active:
            self.served[tenant] = max(self.served[tenant], min(self.served[name] for name in active))

    def start(self, tenant: str, blocks: int) -> None:
        """Count a request that begins to run."""
        self.running[tenant] += 1
        self.blocks[tenant] += blocks

    def stop(self, tenant: str, blocks: int) -> None:
        """Count a request that stops running."""
        self.running[tenant] -= 1
        self.blocks[tenant] -= blocks
