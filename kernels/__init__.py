"""Operations on tensors: one operation a file, one signature for every device.

Kernels know nothing of requests, schedules or queues. Each has a slow, obviously right twin in
:mod:`headrace.kernels.reference` or in its test, which is the oracle.
"""

from .attention_batch import AttentionBatch, AttentionLayout
from .bulk_index import BulkIndex
from .cache_directory import cache_directory
from .copy_blocks import copy_blocks, copy_within
from .cpu_library import describe_kernels
from .gated_activation import Activation, gated_activation
from .int8_linear import make_int8_linear
from .linear import Linear, make_linear
from .logit_edits import SeenTokens, add_to_logits, penalize_seen_tokens
from .logprobs import token_logprobs
from .paged_attention import paged_attention
from .rms_norm import rms_norm
from .rotate_and_store import HeadNorms, rotate_and_store
from .sampling import draw_tokens, philox_uniform
from .store_kv import store_kv
from .token_bitmask import apply_token_bitmask, bitmask_words

__all__ = [
    "Activation",
    "AttentionBatch",
    "AttentionLayout",
    "BulkIndex",
    "HeadNorms",
    "Linear",
    "SeenTokens",
    "add_to_logits",
    "apply_token_bitmask",
    "bitmask_words",
    "cache_directory",
    "copy_blocks",
    "copy_within",
    "describe_kernels",
    "draw_tokens",
    "gated_activation",
    "make_int8_linear",
    "make_linear",
    "paged_attention",
    "penalize_seen_tokens",
    "philox_uniform",
    "rms_norm",
    "rotate_and_store",
    "store_kv",
    "token_logprobs",
]
