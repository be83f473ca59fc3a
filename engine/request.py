"""A request inside the engine: what is known of it, and what is computed."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field

from .block_pool import CachedBlock
from .sampling_params import SamplingParams
from .token_rules import TokenRules


class RequestStatus(enum.Enum):
    """Where a request is between arrival and end."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    """Paused to make room: its keys and values are in the swap pool, or have to be computed again."""
    FINISHED = "finished"


class FinishReason(enum.Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(eq=False, slots=True)
class Request:
    """One prompt and one answer to it on their way through the engine.

    Prefill, a chunk of it, decode and resumption are one case here: a request knows some tokens, has the
    keys and values of some of them, and each step computes more of the rest.

        known tokens     prompt ......................... output ....
        computed         ==============================
        in flight                                      ----
                         0                             ^              ^
                                     num_computed_tokens              num_tokens

    Invariants (:func:`headrace.engine.invariants.check_scheduler`):
        ``num_computed_tokens + num_inflight_tokens <= num_tokens``; a request holds blocks only while running,
        and then just enough for the tokens computed and in flight; it holds swap blocks only while preempted.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    """``params.max_tokens`` after clamping to the room left."""
    eos_token_ids: frozenset[int]
    """The model's own; ``params.ignore_eos`` goes on past them."""
    stop_token_ids: frozenset[int] = frozenset()
    """Further tokens that end the answer."""
    sample_index: int = 0
    """Which of the prompt's independent answers this is."""
    rules: TokenRules | None = None
    """What the request forbids, favours and penalises."""
    num_pending_siblings: int = 0
    """Answers to the same prompt that begin once this one's prompt is computed, and share its blocks."""
    priority: int = 0
    tenant: str = ""
    prefix_cache: bool = True
    """Whether blocks may be shared with requests that begin alike."""
    cache_root: bytes = b""
    """Root of the prefix-cache namespace."""
    arrival: float = field(default_factory=time.monotonic)
    """Seconds, on the clock of all requests of one scheduler."""

    output_token_ids: list[int] = field(default_factory=list)
    num_scored_tokens: int = 0
    """Tokens of the prompt, from the second on, whose log-probabilities are known."""
    num_tokens: int = field(init=False)
    """Known tokens: prompt and output."""
    num_computed_tokens: int = 0
    num_inflight_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    swap_table: list[int] = field(default_factory=list)
    block_digests: list[bytes] = field(default_factory=list)
    cached_chain: list[CachedBlock] = field(default_factory=list)
    num_adopted_blocks: int = 0
    """Blocks at the table's beginning that came from the prefix cache, and are shared or were."""
    num_cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache at the first admission; None before it."""
    key: tuple[float, int] = (0.0, 0)
    """Place in the order of admission: the policy's key, then the order of arrival."""
    passed_over: int = 0
    resumed_at_step: int = -1
    num_preemptions: int = 0
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """The token that ended the answer; it has no text."""
    error: str | None = None
    first_scheduled: float | None = None
    first_token: float | None = None

    def __post_init__(self) -> None:
        self.num_tokens = len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Known tokens that no step has computed or is computing."""
        return self.num_tokens - self.num_computed_tokens - self.num_inflight_tokens

    @property
    def max_kv_tokens(self) -> int:
        """Tokens whose keys and values this request holds at its largest: all but the last one drawn."""
        return len(self.prompt_token_ids) + self.max_tokens - 1

    @property
    def remaining_output(self) -> int:
        """Output tokens that may still come."""
        return self.max_tokens - len(self.output_token_ids)

    @property
    def remaining_tokens(self) -> int:
        """Work to the end, if all allowed tokens come: tokens to compute and tokens to generate."""
        return self.num_tokens - self.num_computed_tokens + self.remaining_output

    def token_ids(self, start: int, length: int) -> list[int]:
        """Known tokens ``start .. start + length``."""
        prompt_len = len(self.prompt_token_ids)
        if start >= prompt_len:
            return self.output_token_ids[start - prompt_len : start - prompt_len + length]
        head = self.prompt_token_ids[start : start + length]
        return head + self.output_token_ids[: length - len(head)]

    def append_token(self, token_id: int) -> None:
        """Take a token, and end where it or the answer's grammar says so, or where it is the last one allowed."""
        self.output_token_ids.append(token_id)
        self.num_tokens += 1
        structure = None
        if self.rules is not None:
            self.rules.accept(token_id)
            structure = self.rules.structure
        if token_id in self.stop_token_ids or (token_id in self.eos_token_ids and not self.params.ignore_eos):
            self.finish_reason = FinishReason.STOP
            self.stop_token_id = token_id
        elif structure is not None and structure.error is not None:
            self.finish_reason, self.error = FinishReason.ERROR, structure.error
        elif structure is not None and structure.ended:
            self.finish_reason = FinishReason.STOP
        elif len(self.output_token_ids) >= self.max_tokens:
            self.finish_reason = FinishReason.LENGTH


def admission_key(request: Request) -> tuple[float, int]:
    """A request's place in the order of admission, to sort by."""
    return request.key
