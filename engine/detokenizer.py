"""From tokens to text, a piece at a time."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Any

REPLACEMENT = "\ufffd"
# Enough of the prompt to know how the first output token joins on to it.
_PROMPT_TAIL = 8
_LONGEST_CHARACTER = 4  # bytes, in UTF-8
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The printable characters that byte-level BPE vocabularies write bytes as (Radford et al. 2019, GPT-2).

    A printable byte stands for itself; the others are numbered from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_ALPHABET = _byte_alphabet()


class TokenDecoder:
    """What detokenisers ask of a tokenizer; one serves all requests of an engine.

    Args:
        tokenizer: a tokenizer of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._special_texts = {token.content: token_id for token_id, token in added.items() if token.special}
        self._size = len(tokenizer)

    def visible(self, token_ids: Sequence[int], hidden: frozenset[int]) -> list[int]:
        """Tokens that have text: neither hidden ones nor rows of the model past the tokenizer's end."""
        return [t for t in token_ids if t < self._size and t not in hidden]

    def text(self, token_ids: Sequence[int]) -> str:
        """Text of visible tokens, with U+FFFD for bytes that are no character."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def token_text(self, token_id: int) -> str:
        """Text of one token by itself; none for a row of the model past the tokenizer's end."""
        return self.text([token_id]) if token_id < self._size else ""

    def spellings(self, text: str) -> set[tuple[int, ...]]:
        """The tokens that a text may come as: at the beginning, and after a space."""
        word = text.lstrip()
        forms = [text] if word != text else [word, " " + word]
        return {tuple(self._tokenizer.encode(form, add_special_tokens=False)) for form in forms} - {()}

    def special_id(self, text: str) -> int | None:
        """The special token that is spelled so, if any."""
        return self._special_texts.get(text)

    def certain(self, token_ids: Sequence[int]) -> tuple[int, str]:
        """What stands before an incomplete character at the tokens' end.

        Returns:
            How many tokens have no part in that character, and the text up to it.
        """
        unfinished = self.unfinished_bytes(token_ids)
        whole = len(token_ids)
        while unfinished and len(self.token_bytes(token_ids[whole - 1])) <= unfinished:
            whole -= 1
            unfinished -= len(self.token_bytes(token_ids[whole]))
        text = self.text(token_ids[:whole])
        # What is left of it now is the end of a token that has whole characters too.
        return (whole - 1, text.removesuffix(REPLACEMENT)) if unfinished else (whole, text)

    def unfinished_bytes(self, token_ids: Sequence[int]) -> int:
        """How many bytes at the end of the tokens begin a character without ending it."""
        tail = b""
        for token_id in reversed(token_ids):
            if len(tail) >= _LONGEST_CHARACTER:
                break
            tail = self.token_bytes(token_id) + tail
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(tail)
        pending, _ = decoder.getstate()
        return len(pending)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for, which need not be whole characters."""
        text = self.token_text(token_id)
        if REPLACEMENT not in text:
            return text.encode()
        token: str = self._tokenizer.convert_ids_to_tokens(token_id)
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(match[1])
        if all(character in _BYTE_ALPHABET for character in token):
            return bytes(_BYTE_ALPHABET[character] for character in token)
        return text.encode()

    def prompt_tail(self, token_ids: Sequence[int], hidden: frozenset[int]) -> list[int]:
        """The last tokens of a prompt that have text, beginning with a whole character."""
        visible = self.visible(token_ids[-(_PROMPT_TAIL * 4) :], hidden)
        start = max(0, len(visible) - _PROMPT_TAIL)
        for _ in range(_LONGEST_CHARACTER - 1):
            first = self.token_bytes(visible[start])[:1] if start else b""
            if first and 0x80 <= first[0] < 0xC0:
                start -= 1
        return visible[start:]


class Detokenizer:
    """Text of one request as its tokens come.

    A token's text depends on its neighbours: a byte-level token may be half a character, a sentencepiece token
    carries its space only after another. So each piece is the difference of two decodes over a short window
    that begins before the new tokens, and a window that ends inside a character is held back.

    The pieces joined are what ``decode(prompt + output)`` has past the text that it shares with
    ``decode(prompt)``, hidden tokens skipped, without a last character that was left incomplete.

    Args:
        decoder: of the model's tokenizer.
        prompt_token_ids: the prompt; its last tokens are context, never output.
        hidden: tokens without text; None hides the special ones.
    """

    def __init__(
        self, decoder: TokenDecoder, prompt_token_ids: Sequence[int], hidden: frozenset[int] | None = None
    ) -> None:
        self._decoder = decoder
        self._hidden = decoder.special_ids if hidden is None else hidden
        self._window = decoder.prompt_tail(prompt_token_ids, self._hidden)
        # A prompt may end inside a character, which the output then completes or spoils.
        self._num_read, certain_text = decoder.certain(self._window)
        self._read_texts = [certain_text, decoder.text(self._window)]

    def add(self, token_ids: Sequence[int]) -> str:
        """Take new tokens; return the text that is certain by now, possibly empty."""
        # Hidden tokens stay out of the window: they have no text, and context must have some.
        self._window += self._decoder.visible(token_ids, self._hidden)
        text = self._decoder.text(self._window)
        if text.endswith(REPLACEMENT) and self._decoder.unfinished_bytes(self._window):
            return ""
        piece = self._past_read(text)
        if piece:
            # The tokens read now are the context of the next ones.
            self._window = self._window[self._num_read :]
            self._num_read = len(self._window)
            self._read_texts = [self._decoder.text(self._window)]
        return piece

    def finish(self) -> str:
        """Return what was held back, less an incomplete last character. Nothing may be added after it."""
        _, text = self._decoder.certain(self._window)
        return self._past_read(text)

    def _past_read(self, text: str) -> str:
        return text[max(_shared_length(read, text) for read in self._read_texts) :]


def _shared_length(first: str, second: str) -> int:
    """Length of the longest prefix that two texts share."""
    for index, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return index
    return min(len(first), len(second))
