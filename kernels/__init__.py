"""Operations on tensors: one operation a file, one signature for every device.

Kernels know nothing of requests, schedules or queues. Each has a slow, obviously right twin in
:mod:`headrace.kernels.reference` or in its test, which is the oracle.
"""

from .bulk_index import BulkIndex
from .copy_blocks import copy_blocks, copy_within
from .logit_edits import SeenTokens, add_to_logits, penalize_seen_tokens
from .logprobs import token_logprobs
from .paged_attention import AttentionBatch, AttentionLayout, paged_attention
from .sampling import draw_tokens, philox_uniform
from .store_kv import store_kv
from .token_bitmask import apply_token_bitmask, bitmask_words

__all__ = [
    "AttentionBatch",
    "AttentionLayout",
    "BulkIndex",
    "SeenTokens",
    "add_to_logits",
    "apply_token_bitmask",
    "bitmask_words",
    "copy_blocks",
    "copy_within",
    "draw_tokens",
    "paged_attention",
    "penalize_seen_tokens",
    "philox_uniform",
    "store_kv",
    "token_logprobs",
]
