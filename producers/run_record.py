"""The record of a run beside its output file: which run it is, and how it went."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .output_file import LedgerMismatch
from .progress import RunCounts
from .results import JobResult


def record_path(output: Path) -> Path:
    """Where the record of an output file is: ``out.jsonl`` has ``out.jsonl.run.json``."""
    return output.with_name(f"{output.name}.run.json")


@dataclass
class RunRecord:
    """A run's identity, which its job ids are built on, and its summary."""

    run_id: str
    input: str
    output: str
    counts: RunCounts = field(default_factory=RunCounts)
    finish_reasons: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    wall_s: float = 0.0
    exit_code: int | None = None
    """None while the run goes on, or where it was killed."""
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def new(cls, source: Path, output: Path) -> RunRecord:
        """A run that has never been."""
        return cls(f"run-{secrets.token_hex(8)}", str(source), str(output))

    @classmethod
    def resume(cls, source: Path, output: Path) -> RunRecord | None:
        """The run that wrote the record beside an output file; None where there is none.

        Raises:
            LedgerMismatch: where the record cannot be read.
        """
        path = record_path(output)
        if not path.exists():
            return None
        try:
            return cls(str(json.loads(path.read_text())["run_id"]), str(source), str(output))
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerMismatch(f"{path} is not a run's record; --fresh starts over") from error

    def take(self, result: JobResult | None, error_code: str | None) -> None:
        """Count one row's end."""
        if error_code is None:
            self.counts.ok += 1
        else:
            self.counts.failed += 1
            self.errors[error_code] = self.errors.get(error_code, 0) + 1
        if result is not None:
            self.counts.output_tokens += result.completion_tokens
            self.counts.prompt_tokens += result.prompt_tokens
            if result.finish_reason:
                count = self.finish_reasons.get(result.finish_reason, 0)
                self.finish_reasons[result.finish_reason] = count + 1

    def save(self) -> None:
        """Write the record; the old one stays until the new one is whole."""
        fields = asdict(self)
        del fields["started"]
        fields["output_tok_s"] = self.output_tok_s
        path = record_path(Path(self.output))
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(json.dumps(fields, indent=2) + "\n")
        partial.replace(path)

    @property
    def output_tok_s(self) -> float:
        """Output tokens a second over the whole run, the model's loading included."""
        return self.counts.output_tokens / self.wall_s if self.wall_s else 0.0

    def summary(self) -> list[str]:
        """The run in a few lines."""
        counts = self.counts
        rows = f"{counts.done} of {counts.total} rows: {counts.ok} ok, {counts.failed} failed"
        if counts.resumed:
            rows += f", {counts.resumed} from an earlier run ({counts.resumed_failed} failed)"
        lines = [
            rows,
            f"{counts.prompt_tokens} prompt tokens, {counts.output_tokens} output tokens in {self.wall_s:.1f} s "
            f"({self.output_tok_s:.0f} output tok/s)",
        ]
        if self.finish_reasons:
            lines.append("finished by " + _most_common(self.finish_reasons))
        if self.errors:
            lines.append("errors: " + _most_common(self.errors))
        lines.append(f"wrote {self.output} and {record_path(Path(self.output)).name}")
        return lines


def _most_common(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in Counter(counts).most_common(5))
