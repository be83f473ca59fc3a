"""The output file of a run: appended to as rows end, and read again to go on after an interruption."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from .errors import HeadraceError

_BEGINNING = b'{"id": "'
"""How every line begins that this program writes."""


class LedgerMismatch(HeadraceError):
    """The output file does not belong to this input."""


@dataclass
class Written:
    """What an output file holds already: row ids by custom_id, and which of the rows failed."""

    row_ids: dict[str | None, set[str]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    @property
    def done(self) -> set[str]:
        """Ids of all rows that are written."""
        return {row_id for ids in self.row_ids.values() for row_id in ids}

    def check(self, name: str, found: set[str]) -> None:
        """Check that every written row is a row of the input, unchanged.

        Args:
            name: of the output file, for the message.
            found: those of the written rows' ids that the input has.

        Raises:
            LedgerMismatch: naming rows that are not.
        """
        unknown = [custom_id for custom_id, ids in self.row_ids.items() for _ in ids - found]
        if unknown:
            named = ", ".join(repr(custom_id) for custom_id in unknown[:3])
            raise LedgerMismatch(
                f"{name} holds {len(unknown)} rows that are changed in, or missing from, the input, such as {named}; "
                "--fresh starts over, or write to another file"
            )


class OutputFile:
    """Appends lines to a file; what an interrupted write left of a last line is cut off first.

    Args:
        path: of the file; made where it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None

    def read(self) -> Written:
        """Read what is there, and cut a torn last line; a line is whole only with its line end.

        Raises:
            LedgerMismatch: where the file holds something else than output lines; it is left as it is.
        """
        written, torn = Written(), 0
        if not self.path.exists():
            return written
        with self.path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n") and _begins_like_ours(raw):
                    torn = len(raw)
                else:
                    self._take(written, number, raw)
        if torn:
            os.truncate(self.path, self.path.stat().st_size - torn)
        return written

    def _take(self, written: Written, number: int, raw: bytes) -> None:
        try:
            line = json.loads(raw)
            row_id, custom_id, failed = line["id"], line["custom_id"], line["error"] is not None
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerMismatch(
                f"{self.path.name}:{number}: not an output line of headrace; "
                "--fresh replaces the file, or write to another"
            ) from error
        written.row_ids.setdefault(custom_id, set()).add(row_id)
        if failed:
            written.failed.add(row_id)

    def drop(self, row_ids: set[str]) -> None:
        """Rewrite the file without some rows; the old one stays until the new one is whole."""
        partial = self.path.with_name(f".{self.path.name}.partial")
        with self.path.open("rb") as old, partial.open("wb") as new:
            new.writelines(raw for raw in old if json.loads(raw)["id"] not in row_ids)
        partial.replace(self.path)

    def append(self, lines: Iterable[str]) -> None:
        """Write whole lines; they are in the file, for other processes too, when this returns."""
        if self._file is None:
            self._file = self.path.open("ab")
        self._file.writelines(line.encode() + b"\n" for line in lines)
        self._file.flush()

    def close(self) -> None:
        """Have everything on disk and close."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None


def _begins_like_ours(raw: bytes) -> bool:
    """Whether bytes may be what an interrupted write left: a file of somebody else's is not to be cut."""
    return raw.startswith(_BEGINNING) or _BEGINNING.startswith(raw)
