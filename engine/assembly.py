"""Puts a scheduler together from its parts."""

from __future__ import annotations

from collections.abc import Mapping

from .block_pool import BlockPool
from .policy import parse_policy
from .preemption import CostModel
from .prefix_cache import Digest, PrefixCache, blake2b_digest
from .scheduler import Scheduler
from .tenants import Tenant, TenantUsage
from .waiting import WaitingQueue


def build_scheduler(
    pool: BlockPool,
    swap_pool: BlockPool,
    *,
    policy: str,
    tenants: Mapping[str, Tenant],
    cost: CostModel,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    digest: Digest = blake2b_digest,
) -> Scheduler:
    """A scheduler over two pools, with its waiting queue and prefix cache.

    Args:
        pool, swap_pool: ids of the blocks in the KV cache and in the swap space.
        policy: see :func:`headrace.engine.policy.parse_policy`.
        tenants: shares and limits by name.
        cost: of the ways to pause a request.
        max_num_seqs, max_num_batched_tokens: see :class:`Scheduler`.
        digest: of the prefix cache.

    Raises:
        ConfigError: where the policy is none.
    """
    cache = PrefixCache(pool, digest)
    policies, modifiers = parse_policy(policy)
    usage = TenantUsage({name: tenant.weight for name, tenant in tenants.items()})
    waiting = WaitingQueue(
        policies,
        modifiers,
        usage,
        tenants,
        num_blocks=pool.num_blocks,
        blocks_for=lambda request: pool.blocks_for(request.max_kv_tokens),
        cached_tokens=lambda request: cache.cached_blocks(request, request.num_tokens - 1),
    )
    return Scheduler(
        pool,
        cache,
        waiting,
        usage,
        cost=cost,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        swap_pool=swap_pool,
    )
