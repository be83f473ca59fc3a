"""The jobs of a run with faults: a stream that never dries up, and what each must answer."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.producers import Client, HeadraceError, JobState

POLL_SECONDS = 0.2
WAIT_SECONDS = 300.0
SCHEMA = {
    "type": "array",
    "items": {"type": "object", "properties": {"kind": {"enum": ["river", "lake"]}, "deep": {"type": "boolean"}}},
    "maxItems": 12,
}
Answers = tuple[tuple[str, str | None], ...]
"""Text and finish reason of each of a job's answers."""


def bodies(source: random.Random) -> list[dict[str, Any]]:
    """Requests of every kind: greedy and seeded, short and long, several answers, stop texts, JSON by a schema."""
    many: list[dict[str, Any]] = []
    for number in range(20):
        long = number % 2 == 0
        body: dict[str, Any] = {
            "prompt": f"{number}: " + "water " * source.randint(1, 40),
            "max_tokens": source.randint(300, 1500) if long else source.randint(5, 60),
            "temperature": 0 if number % 3 == 0 else 1,
            "seed": source.randint(0, 1 << 30),
            "ignore_eos": number % 5 != 0,
        }
        if number % 6 == 1:
            body["n"] = 2
        if number % 7 == 2:
            body |= {"stop": ["ab", "!", "z"], "min_tokens": 4}
        many.append(body)
    form = {"type": "json_schema", "json_schema": {"name": "waters", "schema": SCHEMA}}
    many += [
        {"prompt": "as JSON: ", "max_tokens": 400, "seed": seed, "response_format": form, "n": seed} for seed in (1, 2)
    ]
    return many


@dataclass(frozen=True)
class Sent:
    """A job that was submitted."""

    job_id: str
    body: dict[str, Any]
    answers: Answers
    """What it answers where nothing disturbs it."""
    ends: frozenset[JobState] = frozenset({JobState.SUCCEEDED})
    """The states in which it may end."""


class Load:
    """Keeps jobs in flight, in a thread.

    Args:
        url: of the server.
        in_flight: jobs that have not ended at any time.
        seed: of all choices.

    Attributes:
        sent: every job, by id.
    """

    def __init__(self, url: str, in_flight: int, seed: int) -> None:
        self.client = Client(url)
        self.sent: dict[str, Sent] = {}
        self._in_flight = in_flight
        self._source = random.Random(seed)
        self._known: list[tuple[dict[str, Any], Answers]] = []
        self._open: set[str] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> None:
        """Ask each question once while nothing is disturbed, and then keep asking.

        Raises:
            RuntimeError: where a job does not succeed even so.
        """
        asked = bodies(self._source)
        ids = self.client.submit_many(asked)
        for body, job_id in zip(asked, ids, strict=True):
            result = self.client.result(job_id, timeout=WAIT_SECONDS)
            if result.state is not JobState.SUCCEEDED or result.attempt != 1:
                raise RuntimeError(f"{body} {result.state.value} in attempt {result.attempt}: {result.error}")
            self._known.append((body, tuple((choice.text, choice.finish_reason) for choice in result.choices)))
        self._thread.start()

    def next_job(self, *, long: bool = False, ends: Sequence[JobState] = (JobState.SUCCEEDED,)) -> Sent:
        """A job that is to be submitted by the caller, under the id that is given here."""
        with self._lock:
            known = [one for one in self._known if one[0]["max_tokens"] >= 300 or not long]
            body, answers = self._source.choice(known)
            sent = Sent(f"fault-{len(self.sent)}", body, answers, frozenset(ends))
            self.sent[sent.job_id] = sent
            self._open.add(sent.job_id)
            return sent

    def submit(self, sent: Sent, **parameters: Any) -> None:
        """Submit a job, again and again until the server has it."""
        insist(lambda: self.client.submit(sent.body, job_id=sent.job_id, **parameters))

    def still_open(self) -> set[str]:
        """Jobs that have not ended, as far as is known."""
        with self._lock:
            return set(self._open)

    def stop(self) -> None:
        """Submit nothing more."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """See which jobs have ended."""
        waiting = sorted(self.still_open())
        ended = insist(lambda: self.client.results(waiting))
        with self._lock:
            self._open -= ended.keys()

    def _run(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            self.look()
            for _ in range(self._in_flight - len(self.still_open())):
                self.submit(self.next_job())


def insist(call: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Call until it works: a producer whose connection was cut does the same."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except HeadraceError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
