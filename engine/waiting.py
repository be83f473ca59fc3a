"""The waiting room: who is admitted next, at a cost that does not depend on how many wait."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count

from .policy import Policy, policy_key
from .request import Request, RequestStatus, admission_key
from .tenants import Tenant, TenantUsage

FRONT = 8
"""Requests of a tenant that are compared for their cached prefixes."""
TIE_SECONDS = 1.0
"""Keys closer than this count as equal."""
MAX_PASSES = 16
"""A request that others with longer cached prefixes have passed so often is next."""


class _TenantQueue:
    """One tenant's waiting requests: the first few in order, the others in a heap behind them.

    Invariant: no key in ``front`` is above a key in ``heap``.
    """

    def __init__(self) -> None:
        self.front: list[Request] = []
        self.heap: list[tuple[tuple[float, int], Request]] = []

    def add(self, request: Request) -> None:
        if (self.front and request.key < self.front[-1].key) or (len(self.front) < FRONT and not self.heap):
            insort(self.front, request, key=admission_key)
            if len(self.front) > FRONT:
                last = self.front.pop()
                heapq.heappush(self.heap, (last.key, last))
        else:
            heapq.heappush(self.heap, (request.key, request))

    def refill(self) -> None:
        """Bring requests forward; those that were aborted in the heap are dropped here."""
        while self.heap and len(self.front) < FRONT:
            request = heapq.heappop(self.heap)[1]
            if request.status is RequestStatus.WAITING:
                self.front.append(request)

    def __iter__(self) -> Iterator[Request]:
        yield from self.front
        yield from (request for _, request in self.heap if request.status is RequestStatus.WAITING)


class WaitingQueue:
    """Waiting requests in the order of their policies' keys.

    Modifiers choose among keys:

    * ``fair``: the tenant who was served least, by weight, is next, and the keys order only its own requests.
      Bound: of two tenants that both wait all the time, neither is ever ahead of the other by more than one
      request's weighted tokens (Sheng et al. 2024).
    * ``prefix``: among the first few requests whose keys are within a second, the one with the longest cached
      prefix is next. Bound: a request is passed over :data:`MAX_PASSES` times at most.

    Args:
        policies: handicaps that make up the key.
        modifiers: see above.
        usage: what tenants have had and use now.
        limits: of each tenant, by name.
        num_blocks: KV blocks there are.
        blocks_for: KV blocks of a request at its largest.
        cached_tokens: length of a request's cached prefix.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        modifiers: Collection[str],
        usage: TenantUsage,
        limits: Mapping[str, Tenant],
        *,
        num_blocks: int,
        blocks_for: Callable[[Request], int],
        cached_tokens: Callable[[Request], int],
    ) -> None:
        self._policies = policies
        self._fair = "fair" in modifiers
        self._prefix = "prefix" in modifiers
        self._usage = usage
        self._limits = limits
        self._num_blocks = num_blocks
        self._blocks_for = blocks_for
        self._cached_tokens = cached_tokens
        self._tenants: dict[str, _TenantQueue] = {}
        self._sequence = count()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Request]:
        for queue in self._tenants.values():
            yield from queue

    def add(self, request: Request) -> None:
        """Queue a request and give it its key."""
        request.key = (policy_key(self._policies, request), next(self._sequence))
        queue = self._tenants.get(request.tenant)
        if queue is None:
            queue = self._tenants[request.tenant] = _TenantQueue()
            if self._fair and not self._usage.running[request.tenant]:
                active = {name for name in self._tenants if name != request.tenant}
                active.update(name for name, running in self._usage.running.items() if running)
                self._usage.lift(request.tenant, sorted(active))
        queue.add(request)
        self._length += 1

    def remove(self, request: Request) -> None:
        """Take a request out, to run it or because it was aborted. The caller changes its status.

        One that stands deep in a heap is only counted out here; it is dropped when it comes to the front.
        """
        self._length -= 1
        queue = self._tenants[request.tenant]
        if request in queue.front:
            queue.front.remove(request)
            queue.refill()
        if not queue.front:
            del self._tenants[request.tenant]

    def next(self) -> Request | None:
        """The request to admit next; None where nobody waits, or all who do are at a limit of their tenants."""
        best: Request | None = None
        for queue in self._tenants.values():
            head = queue.front[0]
            if best is not None and not self._before(head, best):
                continue
            if self.within_limits(head):
                best = head
        if best is None or not self._prefix:
            return best
        return self._longest_cached(self._tenants[best.tenant].front)

    def _before(self, one: Request, other: Request) -> bool:
        if self._fair:
            served = self._usage.served
            return (served[one.tenant], one.key) < (served[other.tenant], other.key)
        return one.key < other.key

    def within_limits(self, request: Request) -> bool:
        """Whether a request's tenant may run one more now."""
        limits, usage, tenant = self._limits.get(request.tenant), self._usage, request.tenant
        if limits is None:
            return True
        if limits.max_running is not None and usage.running[tenant] >= limits.max_running:
            return False
        if limits.max_kv_share is None:
            return True
        return usage.blocks[tenant] + self._blocks_for(request) <= limits.max_kv_share * self._num_blocks

    def _longest_cached(self, front: list[Request]) -> Request:
        """Among the requests that tie with the first, the one with the longest cached prefix."""
        head = front[0]
        if head.passed_over >= MAX_PASSES:
            return head
        tied = [request for request in front if request.key[0] <= head.key[0] + TIE_SECONDS]
        chosen = max(tied, key=self._cached_tokens)  # the first of equals
        if chosen is not head and not self.within_limits(chosen):
            return head
        for request in front[: front.index(chosen)]:
            request.passed_over += 1
        return chosen
