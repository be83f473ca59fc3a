"""Operations on tensors: one operation a file, one signature for every device.

Kernels know nothing of requests, schedules or queues. Each has a slow, obviously right twin in
:mod:`headrace.kernels.reference`, which is the oracle of its tests.
"""

from .paged_attention import AttentionBatch, paged_attention
from .sampling import draw_tokens, philox_uniform
from .store_kv import store_kv

__all__ = ["AttentionBatch", "draw_tokens", "paged_attention", "philox_uniform", "store_kv"]
