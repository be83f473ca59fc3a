"""Drive an engine and collect what it says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.engine import Engine, FinishReason, RequestOutput, SamplingParams
from headrace.engine.invariants import check_scheduler
from headrace.engine.request import Request

MOST_STEPS = 10_000


@dataclass
class Answer:
    """All outputs of one request, joined."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    pieces: list[str] = field(default_factory=list)
    last: RequestOutput | None = None

    @property
    def finish_reason(self) -> FinishReason | None:
        return None if self.last is None else self.last.finish_reason


def collect(outputs: Iterable[RequestOutput], answers: dict[str, Answer]) -> None:
    """Add outputs to their requests' answers; nothing may come after an end."""
    for output in outputs:
        answer = answers.setdefault(output.request_id, Answer())
        assert answer.finish_reason is None, f"{output.request_id} went on after its end"
        answer.token_ids += output.token_ids
        answer.text += output.text
        answer.pieces.append(output.text)
        answer.last = output


def drain(engine: Engine, answers: dict[str, Answer] | None = None) -> dict[str, Answer]:
    """Step until nothing is left, checking the scheduler after each step."""
    answers = {} if answers is None else answers
    for _ in range(MOST_STEPS):
        if not engine.has_work:
            return answers
        collect(engine.step(), answers)
        check_scheduler(engine.scheduler)
    raise AssertionError("the engine does not come to an end")


def greedy(max_tokens: int | None = None, *, ignore_eos: bool = True) -> SamplingParams:
    """Sampling settings for a repeatable answer."""
    return SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=ignore_eos)


def run(engine: Engine, prompts: dict[str, list[int]], params: SamplingParams) -> dict[str, Answer]:
    """Answer prompts that all arrive at once."""
    for request_id, prompt in prompts.items():
        engine.add(request_id, prompt, params)
    return drain(engine)


def requests_of(engine: Engine) -> dict[str, Request]:
    """The requests that have not ended, by id; of several answers the first."""
    return {request_id: group.first for request_id, group in engine._groups.items()}


def assert_idle(engine: Engine) -> None:
    """Nothing is held for anybody."""
    check_scheduler(engine.scheduler)
    assert not engine.has_work
    assert engine.pool.num_free == engine.pool.num_blocks
    assert not engine._groups
