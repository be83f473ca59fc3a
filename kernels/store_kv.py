"""Write a step's keys and values into the paged cache."""

from __future__ import annotations

import torch


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Scatter keys and values to their slots, in place.

    Args:
        key, value: ``[tokens, kv_heads, head_dim]``, in the cache's dtype.
        key_cache, value_cache: ``[blocks, block_size, kv_heads, head_dim]``, any strides.
        slot_mapping: int64 ``[tokens]``, ``block * block_size + offset``. A negative slot is padding and
            writes nothing: indexing from the end would overwrite the last real slot.
    """
    padding = slot_mapping < 0
    if bool(padding.any()):
        key, value, slot_mapping = key[~padding], value[~padding], slot_mapping[~padding]
    block_size = key_cache.shape[1]
    blocks, offsets = slot_mapping // block_size, slot_mapping % block_size
    key_cache[blocks, offsets] = key
    value_cache[blocks, offsets] = value
