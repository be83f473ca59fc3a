"""The ids of the KV blocks."""

from __future__ import annotations

import random

import pytest
from headrace.engine.block_pool import BlockPool


def test_blocks_are_handed_out_once_and_come_back() -> None:
    pool = BlockPool(num_blocks=4, block_size=16)
    first, second = pool.allocate(3), pool.allocate(1)
    assert sorted(first + second) == [0, 1, 2, 3]
    assert pool.num_free == 0
    pool.release(first)
    assert pool.num_free == 3
    assert sorted(pool.allocate(3)) == sorted(first)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2)])
def test_blocks_for(tokens: int, blocks: int) -> None:
    assert BlockPool(num_blocks=4, block_size=16).blocks_for(tokens) == blocks


def test_more_than_are_free_are_refused_and_none_is_taken() -> None:
    pool = BlockPool(num_blocks=4, block_size=16)
    pool.allocate(2)
    with pytest.raises(RuntimeError, match="3 KV blocks wanted, 2 of 4 free"):
        pool.allocate(3)
    assert pool.num_free == 2


def test_freeing_twice_is_refused() -> None:
    pool = BlockPool(num_blocks=4, block_size=16)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(RuntimeError, match=f"KV block {blocks[0]} is freed twice"):
        pool.release(blocks)


def test_integrity_check_sees_a_lost_and_a_shared_block() -> None:
    pool = BlockPool(num_blocks=4, block_size=16)
    table = pool.allocate(2)
    pool.check_integrity([table])
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([table[:1]])
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([table, table])
    pool._free.pop()
    with pytest.raises(AssertionError, match="a block is lost"):
        pool.check_integrity([table])


def test_random_use_keeps_the_counts_right() -> None:
    pool, tables, generator = BlockPool(num_blocks=13, block_size=4), [], random.Random(5)
    exhausted = 0
    for _ in range(500):
        if generator.random() < 0.6:
            count = generator.randint(1, 4)
            if count > pool.num_free:
                exhausted += 1
            else:
                tables.append(pool.allocate(count))
        elif tables:
            pool.release(tables.pop(generator.randrange(len(tables))))
        pool.check_integrity(tables)
    assert exhausted > 20
