"""The output file of a run: appended to as rows end, and read again to go on after an interruption."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from .errors import HeadraceError


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

    def check(self, name: str, rows: Iterable[tuple[str | None, str]]) -> None:
        """Check that every written row is a row of the input, unchanged.

        Args:
            name: of the output file, for the message.
            rows: custom_id and row id of each row of the input.

        Raises:
            LedgerMismatch: naming rows that are not.
        """
        unknown = {row_id: custom_id for custom_id, ids in self.row_ids.items() for row_id in ids}
        for _, row_id in rows:
            unknown.pop(row_id, None)
        if unknown:
            named = ", ".join(repr(custom_id) for custom_id in list(unknown.values())[:3])
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
        """Read what is there, after cutting a torn last line.

        Raises:
            LedgerMismatch: where the file holds something else than output lines.
        """
        written = Written()
        if not self.path.exists():
            return written
        self._cut_torn_tail()
        for number, row_id, custom_id, failed in self._lines():
            if row_id is None:
                raise LedgerMismatch(
                    f"{self.path.name}:{number}: not an output line of headrace; "
                    "--fresh replaces the file, or write to another"
                )
            written.row_ids.setdefault(custom_id, set()).add(row_id)
            if failed:
                written.failed.add(row_id)
        return written

    def _lines(self) -> Iterator[tuple[int, str | None, str | None, bool]]:
        """Number, row id, custom_id and failure of each line; no row id where the line is something else."""
        with self.path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    line = json.loads(raw)
                    yield number, line["id"], line["custom_id"], line["error"] is not None
                except (ValueError, KeyError, TypeError):
                    yield number, None, None, False

    def _cut_torn_tail(self) -> None:
        """Cut what follows the last line end; a line is whole only with it."""
        with self.path.open("r+b") as file:
            size = position = file.seek(0, os.SEEK_END)
            while position > 0:
                step = min(position, 1 << 16)
                position = file.seek(position - step)
                last = file.read(step).rfind(b"\n")
                if last >= 0:
                    position += last + 1
                    break
            if position < size:
                file.truncate(position)

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
