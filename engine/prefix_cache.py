"""Finds blocks that already hold the keys and values of a prompt's beginning.

A block's key is a hash over everything before it: ``digest_i = H(digest_{i-1}, tokens of block i)``, from a root
that names the model, the adapter and the tenant's salt, each with its tag, so that no two kinds of name can be
mistaken for each other. The hash is strong (BLAKE2b, 128 bits), and a hit compares tokens and parents all the
same: a collision is a miss, never somebody else's keys and values.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable

from .block_pool import BlockPool, CachedBlock
from .request import Request

Digest = Callable[[bytes, bytes], bytes]
"""From the parent's digest and a block's tokens (int32, native order) to the block's digest."""


def blake2b_digest(parent: bytes, tokens: bytes) -> bytes:
    """128 bits of BLAKE2b over both."""
    return hashlib.blake2b(parent + tokens, digest_size=16).digest()


def namespace_root(model: str, *, adapter: str = "", tenant: str = "", salt: str = "") -> bytes:
    """Digest that a chain begins with; equal only where all four names are equal.

    Args:
        model: name of the model.
        adapter: digest of the adapter's weights, not its name: a name may come to mean other weights.
        tenant: tenants never share blocks.
        salt: requests of one tenant share blocks only with those of the same salt.
    """
    state = hashlib.blake2b(digest_size=16)
    for tag, value in (("model", model), ("adapter", adapter), ("tenant", tenant), ("salt", salt)):
        encoded = value.encode("utf-8", "surrogatepass")
        state.update(f"{tag}:{len(encoded)}:".encode() + encoded)
    return state.digest()


class PrefixCache:
    """Index of full blocks by content, over one pool.

    Args:
        pool: whose blocks these are; it tells this index of each block that it evicts.
        digest: the hash; tests give a weak one to force collisions.
    """

    def __init__(self, pool: BlockPool, digest: Digest = blake2b_digest) -> None:
        self.collisions = 0
        self._pool = pool
        pool.on_evict = self._forget
        self._digest = digest
        self._entries: dict[bytes, CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def match(self, request: Request, limit: int) -> list[CachedBlock]:
        """Longest chain of known blocks at a request's beginning, within its first ``limit`` tokens.

        Nothing is acquired; the blocks may be evicted by the next allocation.
        """
        chain: list[CachedBlock] = []
        if not request.prefix_cache:
            return chain
        parent: CachedBlock | bytes = request.cache_root
        for index in range(limit // self._pool.block_size):
            entry = self._entries.get(self._digest_of(request, index))
            if entry is None:
                break
            if entry.tokens != self._tokens_of(request, index) or _differ(entry.parent, parent):
                self.collisions += 1
                break
            chain.append(entry)
            parent = entry
        return chain

    def cached_blocks(self, request: Request, limit: int) -> int:
        """About how many blocks :meth:`match` would find; cheaper, since digests are not verified."""
        if not request.prefix_cache:
            return 0
        for index in range(limit // self._pool.block_size):
            if self._digest_of(request, index) not in self._entries:
                return index
        return limit // self._pool.block_size

    def adopt(self, request: Request, chain: list[CachedBlock]) -> None:
        """Let a request begin with known blocks: it becomes one of their holders."""
        for entry in chain:
            self._pool.acquire(entry.block)
            request.block_table.append(entry.block)
        request.cached_chain = list(chain)
        request.num_adopted_blocks = len(chain)

    def register(self, request: Request) -> None:
        """Make a request's computed full blocks known, those that are not yet."""
        if not request.prefix_cache:
            return
        full = request.num_computed_tokens // self._pool.block_size
        chain = request.cached_chain
        while len(chain) < full:
            index = len(chain)
            parent: CachedBlock | bytes = chain[-1] if chain else request.cache_root
            chain.append(self._entry(request, index, parent))

    def _entry(self, request: Request, index: int, parent: CachedBlock | bytes) -> CachedBlock:
        """The entry for one block: one that is there, with the same history, or a new one in its place."""
        digest, tokens = self._digest_of(request, index), self._tokens_of(request, index)
        known = self._entries.get(digest)
        if known is not None:
            if known.tokens == tokens and not _differ(known.parent, parent):
                return known
            self._drop(known)
            self._pool.discard(known.block)
        block = request.block_table[index]
        entry = CachedBlock(digest, parent, tokens, block)
        self._entries[digest] = self._by_block[block] = entry
        self._pool.retain(block)
        return entry

    def _forget(self, block: int) -> None:
        """Drop a block whose contents the pool gave up."""
        self._drop(self._by_block[block])

    def _drop(self, entry: CachedBlock) -> None:
        del self._entries[entry.digest]
        del self._by_block[entry.block]

    def _digest_of(self, request: Request, index: int) -> bytes:
        """Digest of a request's block; computed once, since known tokens never change."""
        digests = request.block_digests
        while len(digests) <= index:
            parent = digests[-1] if digests else request.cache_root
            digests.append(self._digest(parent, self._tokens_of(request, len(digests))))
        return digests[index]

    def _tokens_of(self, request: Request, index: int) -> bytes:
        size = self._pool.block_size
        return array("i", request.token_ids(index * size, size)).tobytes()

    def check_integrity(self) -> None:
        """Check the index against itself and the pool.

        Raises:
            AssertionError: where an entry is not found under its block, or its block may be given to others.
        """
        assert {id(entry) for entry in self._entries.values()} == {id(entry) for entry in self._by_block.values()}
        for digest, entry in self._entries.items():
            assert entry.digest == digest, "an entry is filed under another digest"
            assert self._by_block[entry.block] is entry, "a block has two contents"


def _differ(one: CachedBlock | bytes, other: CachedBlock | bytes) -> bool:
    """Whether two parents differ: roots by value, blocks by identity."""
    if isinstance(one, bytes) or isinstance(other, bytes):
        return one != other
    return one is not other
