"""What one request forbids, favours and penalises; the state is the request's own, never a batch slot's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..kernels import bitmask_words
from .sampling_params import SamplingParams
from .structure import StructureState
from .token_ids import check_token_ids

Integers = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
Bitmask = np.ndarray[Any, np.dtype[np.int32]]

NO_ADDITIONS = (np.empty(0, np.int64), np.empty(0, np.float32))


class TokenCounts:
    """The different tokens that a request has seen, and how often its output holds each.

    Args:
        prompt: tokens that count as seen, in no output.
    """

    def __init__(self, prompt: Iterable[int]) -> None:
        self._index = {token: index for index, token in enumerate(dict.fromkeys(prompt))}
        self._tokens = np.array([*self._index], dtype=np.int64)
        self._counts = np.zeros(len(self._index), dtype=np.int64)

    def copy(self) -> TokenCounts:
        """The same counts, to go on by themselves."""
        other = TokenCounts(())
        other._index, other._tokens, other._counts = dict(self._index), self._tokens.copy(), self._counts.copy()
        return other

    def add(self, token_id: int) -> None:
        """Count a token of the output."""
        index = self._index.setdefault(token_id, len(self._index))
        if index >= len(self._tokens):
            room = max(16, len(self._tokens))
            self._tokens = np.concatenate([self._tokens, np.zeros(room, np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(room, np.int64)])
        self._tokens[index] = token_id
        self._counts[index] += 1

    @property
    def tokens(self) -> Integers:
        """int64 ``[seen]``."""
        return self._tokens[: len(self._index)]

    @property
    def output_counts(self) -> Integers:
        """int64 ``[seen]``, in the order of :attr:`tokens`."""
        return self._counts[: len(self._index)]


@dataclass(eq=False)
class TokenRules:
    """A request's rules about tokens, and what they need to know of its output.

    Attributes:
        additions: tokens and what is added to their logits, always; -inf forbids a token.
        additions_before_min: the same, while the output is shorter than ``min_tokens``.
        min_tokens: see :class:`SamplingParams`.
        bad_sequences: tokens that must not follow each other, two or more each.
        allowed: int32 ``[words]``, a bit for each token that may come at all; None allows all.
        counts: what penalties count; None without penalties.
        structure: the grammar; None without one.
        may_skip_ahead: whether tokens that the grammar forces may be taken without computing their logits.
    """

    additions: tuple[Integers, Floats]
    additions_before_min: tuple[Integers, Floats]
    min_tokens: int
    bad_sequences: tuple[tuple[int, ...], ...]
    allowed: Bitmask | None
    counts: TokenCounts | None
    structure: StructureState | None
    may_skip_ahead: bool

    def for_sibling(self, structure: StructureState | None) -> TokenRules:
        """The same rules for another answer to the same prompt; neither has any output yet.

        Args:
            structure: the other answer's own state in the grammar.
        """
        return replace(self, counts=None if self.counts is None else self.counts.copy(), structure=structure)

    @property
    def restricts(self) -> bool:
        """Whether :meth:`fill_bitmask` has anything to say."""
        return self.allowed is not None or self.structure is not None

    def accept(self, token_id: int) -> None:
        """Take a token of the output."""
        if self.counts is not None:
            self.counts.add(token_id)
        if self.structure is not None:
            self.structure.accept(token_id)

    def additions_after(self, output: Sequence[int]) -> tuple[Integers, Floats]:
        """What is added to which logits for the token that follows ``output``."""
        additions = self.additions if len(output) >= self.min_tokens else self.additions_before_min
        completed = [sequence[-1] for sequence in self.bad_sequences if _ends_with(output, sequence[:-1])]
        if not completed:
            return additions
        forbidden = np.full(len(completed), -np.inf, np.float32)
        return np.concatenate([additions[0], completed]), np.concatenate([additions[1], forbidden])

    def forced_tokens(self) -> list[int]:
        """Tokens that the grammar leaves no choice about, where no other rule has a say in them."""
        if self.structure is None or not self.may_skip_ahead:
            return []
        return self.structure.forced_tokens()

    def fill_bitmask(self, row: Bitmask) -> None:
        """Write the tokens that may come next: int32 ``[words]``."""
        if self.structure is not None:
            self.structure.fill_bitmask(row)
            if self.allowed is not None:
                row &= self.allowed
        elif self.allowed is not None:
            row[:] = self.allowed


def _ends_with(output: Sequence[int], tail: tuple[int, ...]) -> bool:
    return len(output) >= len(tail) and tuple(output[len(output) - len(tail) :]) == tail


def build_token_rules(
    params: SamplingParams,
    prompt: Sequence[int],
    stop_token_ids: Collection[int],
    *,
    vocab_size: int,
    spellings: Callable[[str], Iterable[tuple[int, ...]]],
    structure: StructureState | None,
) -> TokenRules | None:
    """A request's rules, or None where it has none.

    Args:
        params: of the request.
        prompt: its prompt.
        stop_token_ids: all tokens that end it, which ``min_tokens`` holds off.
        vocab_size: rows of the model's output; the ids that may be named.
        spellings: the token sequences that a bad word may come as.
        structure: at its grammar's beginning; None without a grammar.

    Raises:
        RequestError: where a token id is none of the model's, naming it and the limit.
    """
    check_token_ids("logit_bias", params.logit_bias, vocab_size)
    check_token_ids("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
    bad = {spelling for word in params.bad_words for spelling in spellings(word)}
    additions = dict(params.logit_bias)
    additions.update((sequence[0], -np.inf) for sequence in bad if len(sequence) == 1)
    before_min = additions | dict.fromkeys(stop_token_ids, -np.inf) if params.min_tokens else additions
    rules = TokenRules(
        additions=_arrays(additions),
        additions_before_min=_arrays(before_min),
        min_tokens=params.min_tokens,
        bad_sequences=tuple(sorted(sequence for sequence in bad if len(sequence) > 1)),
        allowed=None if params.allowed_token_ids is None else _bitmask(params.allowed_token_ids, vocab_size),
        counts=TokenCounts(prompt if params.repetition_penalty != 1 else ()) if params.penalises else None,
        structure=structure,
        may_skip_ahead=not additions and not bad and params.allowed_token_ids is None and params.logprobs is None,
    )
    needed = before_min or rules.bad_sequences or rules.restricts or rules.counts is not None
    return rules if needed else None


def _arrays(additions: dict[int, float]) -> tuple[Integers, Floats]:
    if not additions:
        return NO_ADDITIONS
    return np.fromiter(additions.keys(), np.int64), np.fromiter(additions.values(), np.float32)


def _bitmask(token_ids: Iterable[int], vocab_size: int) -> Bitmask:
    bits = np.zeros(bitmask_words(vocab_size) * 32, dtype=np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
