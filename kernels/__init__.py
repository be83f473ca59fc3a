"""Operations on tensors: one operation a file, one signature for every device.

Kernels know nothing of requests, schedules or queues. Each has a slow, obviously right twin in
:mod:`headrace.kernels.reference`, which is the oracle of its tests.
"""

from .bulk_index import BulkIndex
from .copy_blocks import copy_blocks
from .paged_attention import AttentionBatch, AttentionLayout, paged_attention
from .sampling import draw_tokens, philox_uniform
from .store_kv import store_kv

__all__ = [
    "AttentionBatch",
    "AttentionLayout",
    "BulkIndex",
    "copy_blocks",
    "draw_tokens",
    "paged_attention",
    "philox_uniform",
    "store_kv",
]
