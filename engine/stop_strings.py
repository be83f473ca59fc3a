"""Texts that end an answer, found as the answer comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Looks for the first stop in a text that comes in pieces, and holds back as little as it can.

    What is found does not depend on how the text is cut into pieces: the stop that is complete first ends the
    answer, and of two that are complete at once the longer one. Held back is only an end of the text that is
    the beginning of some stop, and not all of it.

    Args:
        stops: the texts; none is empty.
        include: whether the answer keeps the stop.
    """

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._stops = stops
        self._include = include
        self._held = ""
        self.found: str | None = None
        """The stop that ended the answer."""

    def add(self, text: str, *, look: bool = True) -> str:
        """Take more text; return what is certain to be part of the answer.

        Args:
            text: the next piece.
            look: False lets it pass unseen, as before ``min_tokens``.
        """
        if not self._stops or not look:
            return text
        text = self._held + text
        ends = ((start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0)
        first = min(ends, default=None)
        if first is not None:
            end, start, self.found = first
            self._held = ""
            return text[: end if self._include else start]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """Return what was held back; no stop came of it."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that ``stop`` begins with, and does not end with."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
