"""Copy whole KV blocks: between two caches, for instance a device's and CPU memory, or inside one."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def copy_blocks(source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy blocks ``source[a]`` to ``target[b]`` for each pair ``(a, b)``.

    A block is contiguous over all layers, so each is one run of memory. Between devices the blocks are gathered
    into one buffer first, so that one transfer carries all of them.

    Args:
        source, target: ``[blocks, ...]``, equal but for the number of blocks.
        pairs: no target twice.
    """
    if not pairs:
        return
    sources, targets = zip(*pairs, strict=True)
    gathered = source.index_select(0, torch.tensor(sources, device=source.device))
    # To the host the copy must have ended before the next line reads it; to a device the stream keeps the order.
    moved = gathered.to(target.device, non_blocking=target.is_cuda)
    target.index_copy_(0, torch.tensor(targets, device=target.device), moved)


def copy_within(cache: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy blocks ``cache[a]`` to ``cache[b]`` for each pair ``(a, b)``, as if all were read before any is written.

    Args:
        cache: ``[blocks, ...]``.
        pairs: no target twice.
    """
    copy_blocks(cache, cache, pairs)
