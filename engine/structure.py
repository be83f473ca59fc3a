"""Answers that follow a grammar: compiled once, away from the step loop, and stepped token by token.

The work is llguidance's (docs/decisions/0016): most grammars compile in about a millisecond, the next mask
takes tens of microseconds, and the library says which tokens are forced, so that no step is spent on them.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import llguidance
import llguidance.hf
import llguidance.numpy
import numpy as np
from llguidance.gbnf_to_lark import any_to_lark

from .errors import RequestError, first_line

StructureKind = Literal["json_schema", "regex", "grammar", "choice", "lark"]

_CACHED_GRAMMARS = 256
_WHITESPACE = r"[ \n\r\t]{0,24}"
"""Between JSON's tokens; without a bound a small model may write blanks until its tokens run out."""


@dataclass(frozen=True)
class Structure:
    """What an answer has to look like.

    Attributes:
        kind: what ``text`` is: a JSON schema; a regular expression; a grammar in llguidance's Lark dialect or GBNF;
            ``choice``, a JSON list of texts; ``lark``, a grammar that headrace wrote itself.
        text: the definition.
        param: the parameter that it came from, for messages.
    """

    kind: StructureKind
    text: str
    param: str = "response_format"


class StructureState:
    """Where one answer stands in its grammar.

    Args:
        matcher: at the grammar's beginning; this state owns it.
    """

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def fill_bitmask(self, row: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        """Write the mask of the tokens that may come next: int32 ``[words]``, one bit a token."""
        llguidance.numpy.fill_next_token_bitmask(self._matcher, row[None], 0)

    def accept(self, token_id: int) -> None:
        """Take a token. One that the grammar does not allow ends the answer with :attr:`error`."""
        self._matcher.consume_token(token_id)

    def forced_tokens(self) -> list[int]:
        """The tokens that must come next, because nothing else may."""
        forced: list[int] = self._matcher.compute_ff_tokens()
        return forced

    @property
    def ended(self) -> bool:
        """Whether nothing may follow."""
        return bool(self._matcher.is_stopped())

    @property
    def error(self) -> str | None:
        """Why the grammar cannot go on, as when it needs more work than its limits allow."""
        if not self._matcher.is_error():
            return None
        return "the grammar cannot go on: " + str(self._matcher.get_error()).partition("\n")[0]


class StructureCompiler:
    """Compiles grammars for one model's vocabulary and keeps those used last. Thread-safe.

    Args:
        tokenizer: a fast tokenizer of transformers.
        vocab_size: rows of the model's output.
        eos_token_ids: tokens that may end an answer whose grammar is complete.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._vocabulary: llguidance.LLTokenizer | None = None
        self._matchers: OrderedDict[Structure, llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, structure: Structure) -> llguidance.LLMatcher:
        """A matcher at a grammar's beginning, to be copied; one that was used lately is there already.

        Raises:
            RequestError: where it is none, or one that cannot be followed.
        """
        with self._lock:
            if structure in self._matchers:
                self._matchers.move_to_end(structure)
                return self._matchers[structure]
        matcher = self._compile(structure)
        with self._lock:
            self._matchers[structure] = matcher
            while len(self._matchers) > _CACHED_GRAMMARS:
                self._matchers.popitem(last=False)
        return matcher

    def start(self, structure: Structure) -> StructureState:
        """The state of an answer that has no token yet.

        Raises:
            RequestError: see :meth:`compile`.
        """
        return StructureState(self.compile(structure).deep_copy())

    def _compile(self, structure: Structure) -> llguidance.LLMatcher:
        try:
            grammar = _grammar_of(structure)
            error = llguidance.LLMatcher.validate_grammar(grammar, self._lexicon())
            matcher = llguidance.LLMatcher(self._lexicon(), grammar, log_level=0)
        except Exception as failure:  # of the library, over what the user wrote; some are of no narrower class
            error = first_line(failure)
        if error or (error := matcher.get_error()):
            raise RequestError(
                f"{structure.param} cannot be compiled: {' '.join(str(error).split())}",
                code="invalid_schema",
                param=structure.param,
            )
        return matcher

    def _lexicon(self) -> llguidance.LLTokenizer:
        """The vocabulary as llguidance sees it; made on first use, since it takes half a second."""
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = llguidance.hf.from_tokenizer(
                    self._tokenizer, n_vocab=self.vocab_size, eos_token=self._eos_token_ids or None
                )
            return self._vocabulary


def _grammar_of(structure: Structure) -> str:
    """llguidance's form of a definition.

    Raises:
        ValueError: where it is malformed.
    """
    matcher = llguidance.LLMatcher
    match structure.kind:
        case "json_schema":
            schema = json.loads(structure.text)
            if isinstance(schema, dict):
                schema = {"x-guidance": {"whitespace_pattern": _WHITESPACE}, **schema}
            return str(matcher.grammar_from_json_schema(json.dumps(schema)))
        case "regex":
            return str(matcher.grammar_from_regex(structure.text))
        case "choice":
            choices = " | ".join(json.dumps(text, ensure_ascii=False) for text in json.loads(structure.text))
            return str(matcher.grammar_from_lark(f"start: {choices}"))
        case "grammar":
            return str(matcher.grammar_from_lark(any_to_lark(structure.text)))
        case "lark":
            return str(matcher.grammar_from_lark(structure.text))
