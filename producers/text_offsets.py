"""Where each token of an answer begins in the answer's text."""

from __future__ import annotations

import codecs
from collections.abc import Iterable


def text_offsets(text: str, tokens: Iterable[bytes]) -> list[int]:
    """Positions in a text, in characters, of the tokens that it was made of.

    The tokens' lengths do not add up to it: several may share a character, and some have no text there, such as
    special tokens and what a stop text cut off. A token inside a character has the character's position, and one
    without text that of what follows.

    Args:
        text: made of all the tokens.
        tokens: the bytes of each, in order.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offsets, place = [], 0
    for token in tokens:
        offsets.append(place)
        before = decoder.getstate()
        piece = decoder.decode(token)
        # By itself a token of sentencepiece has lost the space before it.
        space = 0 if text.startswith(piece, place) else int(text.startswith(" " + piece, place))
        if text.startswith(piece, place + space):
            place += space + len(piece)
        elif piece.startswith(text[place:]):  # the text was cut inside the token, or before it
            place = len(text)
        else:
            decoder.setstate(before)
    return offsets
