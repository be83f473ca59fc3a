"""Texts that end an answer, found as the answer comes in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


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
            look: False passes over the stops that are complete with it, as before ``min_tokens``.
        """
        if not self._stops:
            return text
        before, text = len(self._held), self._held + text
        first = min(self._complete(text, before), default=None)
        if first is not None and look:
            end, start, self.found = first
            self._held = ""
            return text[: end if self._include else start]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _complete(self, text: str, before: int) -> Iterator[tuple[int, int, str]]:
        """End, start and text of each stop that ends after the first ``before`` characters."""
        for stop in self._stops:
            start = text.find(stop, max(0, before - len(stop) + 1))
            if start >= 0:
                yield start + len(stop), start, stop

    def finish(self) -> str:
        """Return what was held back; no stop came of it."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that ``stop`` begins with and is longer than."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
