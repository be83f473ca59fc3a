"""A request inside the engine: what is known of it, and what is computed."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field

from .sampling_params import SamplingParams


class RequestStatus(enum.Enum):
    """Where a request is between arrival and end."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(enum.Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(eq=False)
class Request:
    """One prompt on its way through the engine.

    Prefill, a chunk of it, decode and resumption are one case here: a request knows some tokens, has the
    keys and values of some of them, and each step computes more of the rest.

        known tokens     prompt ......................... output ....
        computed         ==============================
        in flight                                      ----
                         0                             ^              ^
                                     num_computed_tokens              num_tokens

    Invariants (:func:`headrace.engine.scheduler.check_scheduler`):
        ``num_computed_tokens + num_inflight_tokens <= num_tokens``; a request holds blocks only while running,
        and then enough for the tokens computed and in flight.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    """``params.max_tokens`` after clamping to the room left."""
    eos_token_ids: frozenset[int]
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_inflight_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    error: str | None = None
    arrival: float = field(default_factory=time.monotonic)
    first_scheduled: float | None = None
    first_token: float | None = None

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and output."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Known tokens that no step has computed or is computing."""
        return self.num_tokens - self.num_computed_tokens - self.num_inflight_tokens

    @property
    def max_kv_tokens(self) -> int:
        """Tokens whose keys and values this request holds at its largest: all but the last one drawn."""
        return len(self.prompt_token_ids) + self.max_tokens - 1

    def token_ids(self, start: int, length: int) -> list[int]:
        """Known tokens ``start .. start + length``."""
        prompt_len = len(self.prompt_token_ids)
        if start >= prompt_len:
            return self.output_token_ids[start - prompt_len : start - prompt_len + length]
        head = self.prompt_token_ids[start : start + length]
        return head + self.output_token_ids[: length - len(head)]

    def append_token(self, token_id: int) -> None:
        """Take a drawn token, and end where it is an end-of-sequence token or the last one allowed."""
        self.output_token_ids.append(token_id)
        if token_id in self.eos_token_ids and not self.params.ignore_eos:
            self.finish_reason = FinishReason.STOP
        elif len(self.output_token_ids) >= self.max_tokens:
            self.finish_reason = FinishReason.LENGTH
