"""Input files for ``headrace run``, the command over a tiny model, and what is in its output."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..support import HEADRACE, headrace


def row(custom_id: str, prompt: str | None = "Once upon a time", *, max_tokens: int = 5, **body: Any) -> dict[str, Any]:
    """A request that makes just so many tokens."""
    fields = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "seed": 1, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": fields}


@dataclass(frozen=True)
class RunFiles:
    """A run's directory; the cache is in it too, so that its processes are known by it."""

    directory: Path
    flags: tuple[str, ...]
    """Which model the run starts, or which server it uses."""

    @property
    def output(self) -> Path:
        return self.directory / "out.jsonl"

    @property
    def variables(self) -> dict[str, str]:
        return {"XDG_CACHE_HOME": str(self.directory / "cache")}

    def write(self, *rows: dict[str, Any] | str) -> None:
        """The input: requests, or lines as they are."""
        lines = [one if isinstance(one, str) else json.dumps(one) for one in rows]
        (self.directory / "in.jsonl").write_text("".join(f"{line}\n" for line in lines))

    def arguments(self, *flags: str) -> list[str]:
        """``run``'s arguments."""
        return ["run", "in.jsonl", "-o", "out.jsonl", *self.flags, *flags]

    def command(self, *flags: str) -> list[str]:
        """The whole command."""
        return [*HEADRACE, *self.arguments(*flags)]

    def run(self, *flags: str, code: int) -> str:
        """Run to the end, with this exit code; returns standard error. Standard output stays empty."""
        done = headrace(*self.arguments(*flags), cwd=self.directory, variables=self.variables, code=code)
        assert done.stdout == ""
        return done.stderr

    def lines(self) -> list[dict[str, Any]]:
        """Whole lines of the output so far."""
        if not self.output.exists():
            return []
        return [json.loads(line) for line in self.output.read_bytes().split(b"\n")[:-1]]

    def answers(self) -> dict[str, str]:
        """Texts by custom_id; each id stands once."""
        lines = self.lines()
        texts = {line["custom_id"]: line["response"]["body"]["choices"][0]["text"] for line in lines}
        assert len(texts) == len(lines)
        return texts

    def record(self) -> dict[str, Any]:
        """The run's record."""
        fields: dict[str, Any] = json.loads((self.directory / "out.jsonl.run.json").read_text())
        return fields
