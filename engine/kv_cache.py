"""The memory behind the KV blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .errors import ConfigError


@dataclass(frozen=True)
class KVGeometry:
    """Shape of one token's keys and values."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    def block_bytes(self, block_size: int, dtype: torch.dtype) -> int:
        """Bytes of one block over all layers, keys and values."""
        return self.num_layers * 2 * block_size * self.num_kv_heads * self.head_dim * dtype.itemsize


class KVCache:
    """Keys and values of all blocks in one tensor, each block contiguous over all layers.

        [blocks, layers, 2, block_size, kv_heads, head_dim]

    Moving a block to another memory is then one copy, whatever the number of layers. Kernels get one layer's
    view, ``[blocks, block_size, kv_heads, head_dim]``, and go by its strides.

    Args:
        geometry: shape of one token.
        memory: bytes to use at most.
        block_size: tokens a block.
        max_model_len: most tokens of one request; memory for more than ``max_num_seqs`` of them is not taken.
        max_num_seqs: most requests at once.

    Raises:
        ConfigError: where ``memory`` does not hold a single block.
    """

    def __init__(
        self,
        geometry: KVGeometry,
        *,
        memory: int,
        block_size: int,
        max_model_len: int,
        max_num_seqs: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        block_bytes = geometry.block_bytes(block_size, dtype)
        useful = max_num_seqs * -(-max_model_len // block_size)
        self.num_blocks = min(memory // block_bytes, useful)
        if self.num_blocks < 1:
            raise ConfigError(
                f"kv_cache_memory is {memory} bytes; one block of {block_size} tokens takes {block_bytes}"
            )
        self.data = torch.zeros(
            (self.num_blocks, geometry.num_layers, 2, block_size, geometry.num_kv_heads, geometry.head_dim),
            dtype=dtype,
            device=device,
        )

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Key and value views of one layer, each ``[blocks, block_size, kv_heads, head_dim]``."""
        return self.data[:, index, 0], self.data[:, index, 1]
