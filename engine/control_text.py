"""The text of control tokens in what users write stays text, and never ends a turn or begins another.

A tokenizer turns ``<|im_end|>`` into the control token wherever it stands: it cannot know who wrote it. So the user's
strings get a mark, a character that stands nowhere else, inside every such text before the template joins them with
its own control tokens. The tokenizer then reads the user's as ordinary text, and the mark's own tokens are dropped.
The text is tokenised once and as a whole, so that spaces and neighbours are treated as ever.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from .errors import RequestError

# Unicode's last private-use plane, which fonts leave alone: a mark is the first of it that the request has not.
_MARKS = range(0x100000, 0x10FFFE)


class ControlText:
    """Finds the text of a tokenizer's control tokens, and tokenises it as text.

    Control tokens are the special ones of two characters or more. (One of a single character is how that character
    is written, and cannot be told from it.)

    Args:
        tokenizer: a tokenizer of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        tokens = [token for token in special if len(token) > 1]
        # Looking ahead finds those that overlap, too.
        self._pattern = re.compile(f"(?=({_any_of(tokens) if tokens else '(?!)'}))")
        self._beginnings = frozenset(token[:length] for token in tokens for length in range(1, len(token)))
        self._longest = max(map(len, tokens), default=0)

    def found_in(self, data: Any) -> bool:
        """Whether a string anywhere in lists and dicts holds a control token's text."""
        return any(self._pattern.search(text) for text in _strings(data))

    def marked(self, data: Any, mark: str, *, content: bool = False) -> Any:
        """The same lists and dicts with a mark inside each control token's text.

        A template may put the content of two turns side by side, so that one begins such a text and the next ends it.
        So content is marked where it could do so. (Other strings are not, since templates ask for their values.)
        """
        if isinstance(data, str):
            cuts = {start + 1 for start, _ in self._spans(data)}
            return _with_marks(data, sorted(cuts | self._loose_ends(data) if content else cuts), mark)
        if isinstance(data, dict):
            return {
                self.marked(key, mark): self.marked(value, mark, content=content or key == "content")
                for key, value in data.items()
            }
        if isinstance(data, (list, tuple)):
            return [self.marked(value, mark, content=content) for value in data]
        return data

    def restored(self, rendered: str, mark: str) -> tuple[str, list[int]]:
        """Take the marks out of what a template made of marked strings.

        Returns:
            The text, and where in it a mark is needed: inside control tokens' texts that users had a part in.
        """
        # Templates may write strings as JSON in ASCII.
        pieces = re.split(f"{mark}|{re.escape(json.dumps(mark)[1:-1])}", rendered)
        marks = set(itertools.accumulate(len(piece) for piece in pieces[:-1]))
        text = "".join(pieces)
        inside = {place for start, end in self._spans(text) for place in range(start + 1, end)}
        return text, sorted(marks & inside)

    def encode(self, text: str, cuts: Sequence[int], *, mark: str, add_special_tokens: bool, param: str) -> list[int]:
        """Tokens of a text in which no control token reaches over a cut. They decode to the text.

        Raises:
            RequestError: where the tokenizer does not say which token stands for which characters.
        """
        if not cuts:
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))
        if not self._tokenizer.is_fast:
            raise RequestError(_cannot_keep(param), param=param)
        cut_text = _with_marks(text, cuts, mark)
        encoding = self._tokenizer(cut_text, add_special_tokens=add_special_tokens, return_offsets_mapping=True)
        token_ids: list[int] = []
        for token_id, (start, end) in zip(encoding["input_ids"], encoding["offset_mapping"], strict=True):
            piece = cut_text[start:end]
            if mark not in piece:
                token_ids.append(token_id)
            elif piece != mark:
                raise RequestError(_cannot_keep(param), param=param)
        return token_ids

    def encode_as_text(self, text: str, *, param: str) -> list[int]:
        """Tokens of a text that is a user's alone, with the special tokens that the tokenizer adds around it.

        Raises:
            RequestError: see :meth:`encode`.
        """
        cuts = [start + 1 for start, _ in self._spans(text)]
        return self.encode(text, cuts, mark=unused_mark(text), add_special_tokens=True, param=param)

    def _loose_ends(self, text: str) -> set[int]:
        """Where to mark a text that ends with the beginning of a control token's text."""
        end = len(text.rstrip())  # templates may trim
        lengths = range(1, min(self._longest, end + 1))
        return {end - length + 1 for length in lengths if text[end - length : end] in self._beginnings}

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        for match in self._pattern.finditer(text):
            yield match.span(1)


def unused_mark(*data: Any) -> str:
    """A character that no string in the data has.

    Raises:
        RequestError: where the data use up a whole plane of Unicode.
    """
    used = set().union(*map(set, _strings(data)))
    for code in _MARKS:
        if chr(code) not in used:
            return chr(code)
    raise RequestError("the text has every private-use character from U+100000 on; it must leave one out")


def _any_of(tokens: Sequence[str]) -> str:
    """A pattern of the longest of some texts, as a tree of characters: models have up to a thousand special tokens."""
    rests: dict[str, list[str]] = {}
    for token in tokens:
        if token:
            rests.setdefault(token[0], []).append(token[1:])
    if not rests:
        return ""
    branches = (re.escape(first) + _any_of(rest) for first, rest in rests.items())
    return f"(?:{'|'.join(branches)}){'?' if '' in tokens else ''}"


def _strings(data: Any) -> Iterator[str]:
    """The strings in lists and dicts, keys among them."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        yield from _strings(list(data))
        yield from _strings(list(data.values()))
    elif isinstance(data, (list, tuple)):
        for value in data:
            yield from _strings(value)


def _with_marks(text: str, cuts: Sequence[int], mark: str) -> str:
    return mark.join(text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])) if cuts else text


def _cannot_keep(param: str) -> str:
    return f"{param} holds the text of a control token, which this model's tokenizer cannot read as ordinary text"
