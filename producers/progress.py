"""What a run shows while it goes: a bar on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from redis.exceptions import RedisError
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from .connection import connect
from .keys import Keys

LINE_SECONDS = 5.0
"""Time between plain lines."""
RECENT_SECONDS = 5.0
"""Span of the recent token rate."""


@dataclass
class RunCounts:
    """Rows of a run by what became of them."""

    total: int = 0
    ok: int = 0
    failed: int = 0
    resumed: int = 0
    """Written by an earlier run; among the done."""
    resumed_failed: int = 0
    """Those of the resumed that have no answer."""
    in_flight: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0

    @property
    def done(self) -> int:
        """Rows that are in the output file."""
        return self.ok + self.failed + self.resumed


class LiveTokens:
    """Listens to a run's channels: counts tokens as they are made, and keeps the newest words for the eye.

    Pub/sub promises nothing, and nothing is promised on it: results come from the ledger.

    Args:
        url: of the Redis server.
        keys: names of keys.
        job_prefix: what the run's job ids begin with.
    """

    def __init__(self, url: str, keys: Keys, job_prefix: str) -> None:
        self.tokens = 0
        self._recent: deque[tuple[float, int]] = deque()
        self._shown_job = ""
        self._shown_text = ""
        self._stopping = threading.Event()
        self._redis = connect(url)
        self._pattern = keys.channel(f"{job_prefix}*")
        self._thread = threading.Thread(target=self._listen, name="headrace-live", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening."""
        self._stopping.set()
        self._thread.join()
        self._redis.close()

    def recent_rate(self) -> float | None:
        """Tokens a second over the last seconds; None before the first."""
        now = time.monotonic()
        while self._recent and self._recent[0][0] < now - RECENT_SECONDS:
            self._recent.popleft()
        if not self._recent:
            return None
        span = max(now - self._recent[0][0], 1.0)
        return sum(count for _, count in list(self._recent)) / span

    def words(self, width: int) -> str:
        """The last ``width`` characters of one of the streams."""
        return " ".join(self._shown_text.split())[-width:]

    def _listen(self) -> None:
        try:
            with self._redis.pubsub(ignore_subscribe_messages=True) as channel:  # type: ignore[no-untyped-call]
                channel.psubscribe(self._pattern)
                while not self._stopping.is_set():
                    message: Any = channel.get_message(timeout=0.2)
                    if message is not None:
                        self._take(message["channel"], json.loads(message["data"]))
        except RedisError:
            self._shown_text = ""  # the run itself reports a lost server

    def _take(self, job: str, event: dict[str, Any]) -> None:
        if event["kind"] == "delta":
            self.tokens += len(event["token_ids"])
            self._recent.append((time.monotonic(), len(event["token_ids"])))
            if not self._shown_job:
                self._shown_job, self._shown_text = job, ""
            if job == self._shown_job:
                self._shown_text = (self._shown_text + event["text"])[-500:]
        elif job == self._shown_job:
            self._shown_job = ""


class Reporter(Protocol):
    """Shows a run's progress."""

    def __enter__(self) -> Reporter: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, counts: RunCounts, live: LiveTokens | None) -> None:
        """Show the state of things; called often."""

    def note(self, text: str) -> None:
        """Say one thing."""


class BarReporter:
    """A progress bar, and below it the newest words of an answer that is under way."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._bar = Progress(
            SpinnerColumn(), BarColumn(bar_width=24), TextColumn("{task.description}", markup=False), console=console
        )
        self._task = self._bar.add_task("loading the model", total=None)
        self._words = Text(style="dim", no_wrap=True, overflow="crop")
        self._live = Live(Group(self._bar, self._words), console=console, transient=True, refresh_per_second=10)

    def __enter__(self) -> BarReporter:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def update(self, counts: RunCounts, live: LiveTokens | None) -> None:
        line = progress_line(counts, live, time.monotonic() - self._started)
        self._bar.update(self._task, total=counts.total, completed=counts.done, description=line)
        words = live.words(max(20, self._console.width - 6)) if live else ""
        self._words.plain = f"  … {words}" if words else ""

    def note(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)


class LineReporter:
    """One plain line every few seconds, for logs and pipes.

    Args:
        write: prints one line.
        clock: monotonic seconds.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._started = clock()
        self._last = clock()

    def __enter__(self) -> LineReporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""

    def update(self, counts: RunCounts, live: LiveTokens | None) -> None:
        if self._clock() - self._last >= LINE_SECONDS:
            self._last = self._clock()
            self._write(progress_line(counts, live, self._last - self._started))

    def note(self, text: str) -> None:
        self._write(text)


def progress_line(counts: RunCounts, live: LiveTokens | None, elapsed: float) -> str:
    """The state of a run in one line; figures that are not known yet are ``--``."""
    recent = live.recent_rate() if live else None
    lifetime = live.tokens / elapsed if live and live.tokens else None
    seconds = _seconds_left(counts, live, recent)
    eta = "--" if seconds is None else _clock_time(seconds)
    parts = [f"{counts.done}/{counts.total}", f"{counts.ok} ok", f"{counts.failed} failed"]
    if counts.resumed:
        parts.append(f"{counts.resumed} resumed")
    parts += [f"{counts.in_flight} in flight", f"{_rate(recent)} tok/s ({_rate(lifetime)} overall)", f"ETA {eta}"]
    return " · ".join(parts)


def _seconds_left(counts: RunCounts, live: LiveTokens | None, rate: float | None) -> float | None:
    """Time to go, if rows to come are as long as those that began; one under way is taken to be half done."""
    if live is None or not rate or not counts.ok:
        return None
    row = live.tokens / (counts.ok + counts.in_flight / 2)
    return max(0.0, row * (counts.ok + counts.total - counts.done) - live.tokens) / rate


def _rate(value: float | None) -> str:
    return "--" if value is None else f"{value:.0f}"


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
