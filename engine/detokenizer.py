"""From tokens to text, a piece at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

REPLACEMENT = "�"
# Enough of the prompt to know how the first output token joins on to it.
_PROMPT_TAIL = 8


class Detokenizer:
    """Text of one request as its tokens come.

    A token's text depends on its neighbours: a byte-level token may be half a character, a sentencepiece token
    carries its space only after another. So each piece is the difference of two decodes over a short window
    that begins before the new tokens, and a window that ends inside a character is held back.

    The pieces joined are ``decode(prompt + output)`` less ``decode(prompt)``, special tokens skipped, without
    a character that the last token left incomplete.

    Args:
        tokenizer: a tokenizer of transformers.
        prompt_token_ids: the prompt; its last tokens are context, never output.
    """

    def __init__(self, tokenizer: Any, prompt_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._token_ids = list(prompt_token_ids[-_PROMPT_TAIL:])
        self._window_start = 0
        self._read_to = len(self._token_ids)
        self._window_text = self._decode(self._read_to)

    def _decode(self, end: int) -> str:
        text: str = self._tokenizer.decode(
            self._token_ids[self._window_start : end],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        return text

    def add(self, token_ids: Sequence[int]) -> str:
        """Take new tokens; return the text that is certain by now, possibly empty."""
        self._token_ids += token_ids
        text = self._decode(len(self._token_ids))
        if text.endswith(REPLACEMENT):
            return ""
        return self._advance(text)

    def finish(self) -> str:
        """Return what was held back, less an incomplete last character."""
        text = self._decode(len(self._token_ids)).rstrip(REPLACEMENT)
        return self._advance(text) if len(text) > len(self._window_text) else ""

    def _advance(self, text: str) -> str:
        piece = text[len(self._window_text) :]
        # The window keeps the tokens read last as context for the next ones.
        self._window_start = self._read_to if self._read_to < len(self._token_ids) else self._window_start
        self._read_to = len(self._token_ids)
        self._window_text = self._decode(self._read_to)
        return piece
