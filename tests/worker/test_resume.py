"""A job that another worker began: one unbroken answer, or a clear new beginning where that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from headrace.producers import Client, Delta, JobResult, JobState, Reset
from headrace.producers.events import delta_document
from headrace.producers.keys import Keys
from headrace.producers.ledger import Ledger
from headrace.worker.embedded import EmbeddedServer
from redis import Redis

from ..support import wait_until
from .services import service

SCHEMA = {
    "type": "object",
    "properties": {"words": {"type": "string", "minLength": 60, "maxLength": 90}},
    "required": ["words"],
    "additionalProperties": False,
}
LONG: dict[str, Any] = {"max_tokens": 120, "ignore_eos": True}
BODIES: dict[str, dict[str, Any]] = {
    "greedy": {"prompt": "greedy", "temperature": 0, **LONG},
    "seeded": {"prompt": "seeded", "seed": 3, **LONG},
    "penalties": {"prompt": "penalties", "seed": 4, "frequency_penalty": 1.0, "repetition_penalty": 1.3, **LONG},
    "several": {"prompt": "several", "seed": 5, "n": 3, **LONG},
    "echo": {"prompt": "echo", "seed": 6, "echo": True, **LONG},
    "logprobs": {"prompt": "logprobs", "seed": 7, "logprobs": 2, "prompt_logprobs": 1, **LONG},
    "schema": {"prompt": "schema", "seed": 8, "guided_json": SCHEMA, "max_tokens": 300},
    "chat": {"messages": [{"role": "user", "content": "chat"}], "seed": 9, **LONG},
}


def assert_alike(one: Any, other: Any, where: str = "result") -> None:
    """Two results say the same but for what depends on when and where they were made; numbers may be rounded."""
    if isinstance(one, JobResult):
        hidden = {"job_id", "attempt", "cached_tokens", "queue_seconds", "ttft_seconds", "total_seconds"}
        one, other = one.model_dump(exclude=hidden), other.model_dump(exclude=hidden)
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name in one:
            assert_alike(one[name], other[name], f"{where}.{name}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_alike(left, right, f"{where}[{index}]")
    else:
        assert one == (pytest.approx(other, abs=1e-3) if isinstance(other, float) else other), where


def texts(events: list[Any]) -> dict[int, str]:
    """The text of each answer as a reader joins it; checks that no delta is missing."""
    joined: dict[int, str] = {}
    seq = 0
    for event in events:
        if isinstance(event, Reset):
            joined, seq = {}, 0
        elif isinstance(event, Delta):
            seq += 1
            assert event.seq == seq
            joined[event.index] = joined.get(event.index, "") + event.text
    return joined


def deltas_of(redis: Redis, ids: dict[str, str]) -> dict[str, int]:
    """How many deltas each job has."""
    return {name: int(str(redis.hget(Keys().job(job_id), "seq"))) for name, job_id in ids.items()}


def test_every_kind_of_answer_goes_on_in_mid_sentence(
    server: EmbeddedServer, client: Client, redis: Redis, tiny_model: Path
) -> None:
    """Handed back by a worker that drains, twice; what a reader sees is what an undisturbed run gives."""
    with service(server.url, tiny_model):
        undisturbed = {name: client.result(client.submit(body), timeout=60) for name, body in BODIES.items()}
    ids = {name: client.submit(body) for name, body in BODIES.items()}
    for _ in range(2):
        before = deltas_of(redis, ids)
        with service(server.url, tiny_model, step_seconds=0.01):
            wait_until(
                lambda before=before: all(seq > before[name] for name, seq in deltas_of(redis, ids).items()),  # type: ignore[misc]
                "each job has new text",
            )
        states = {client.status(job_id).state for job_id in ids.values()}
        assert JobState.QUEUED in states
    with service(server.url, tiny_model):
        results = {name: client.result(job_id, timeout=60) for name, job_id in ids.items()}
    for name, result in results.items():
        assert_alike(result, undisturbed[name], name)
        events = list(client.stream(ids[name]))
        assert not [event for event in events if isinstance(event, Reset)]
        assert texts(events) == {choice.index: choice.text for choice in result.choices}, name
        assert redis.hget(Keys().job(ids[name]), "deliveries") == "1", "what was handed back does not count"
        assert result.ttft_seconds < result.total_seconds
    resumed = [name for name, job_id in ids.items() if client.status(job_id).attempt == 3]
    assert len(resumed) >= 6, f"only {resumed} were interrupted twice"
    assert json.loads(results["schema"].text)["words"]


@pytest.mark.parametrize(
    ("model", "last_token", "kept", "voided"),
    [("another", 62, 4, 0), ("tiny", 62, 2, 0), ("tiny", 259_000, 4, 3)],
    ids=["another-model", "trimmed", "tokens-that-lead-nowhere"],
)
def test_an_answer_that_cannot_go_on_starts_over(
    server: EmbeddedServer,
    client: Client,
    redis: Redis,
    tiny_model: Path,
    model: str,
    last_token: int,
    kept: int,
    voided: int,
) -> None:
    ledger, body = Ledger(redis, Keys()), {"prompt": "begun", "seed": 1, **LONG}
    job_id = client.submit(body)
    [claim] = ledger.claim("elsewhere", model, ["default"], 1, 600_000)
    for seq, token in enumerate((60, 61, last_token), start=1):
        with redis.pipeline(transaction=False) as pipe:
            ledger.append(pipe, claim, seq, delta_document(1, seq, "void", [token]), seq)
            assert pipe.execute() == [1]
    redis.xtrim(Keys().events(job_id), maxlen=kept, approximate=False)
    assert ledger.renew([claim], lease_ms=0) == []
    assert ledger.reap().taken_over == 1
    with service(server.url, tiny_model) as worker:
        assert worker.model == "tiny"
        result = client.result(job_id, timeout=60)
        undisturbed = client.result(client.submit(body), timeout=60)
        wasted = worker.describe()["tokens_wasted_reset"]
    assert_alike(result, undisturbed)
    entries: Any = redis.xrange(Keys().events(job_id))
    kinds = [json.loads(fields["event"])["kind"] for _, fields in entries]
    assert kinds.count("reset") == 1
    assert kinds[kinds.index("reset") - 1] == "started"
    if kept == 4:
        assert texts(list(client.stream(job_id))) == {0: undisturbed.text}
    assert wasted == voided, "what could be read of the log was given to the engine, which refused it"


@pytest.mark.parametrize("document", ["no JSON", '{"kind": "delta", "attempt": 1}', '{"attempt": 1}', "[]"])
def test_a_log_that_cannot_be_read_starts_over(
    server: EmbeddedServer, client: Client, redis: Redis, tiny_model: Path, document: str
) -> None:
    ledger, body = Ledger(redis, Keys()), {"prompt": "begun", "seed": 1, "max_tokens": 5}
    job_id = client.submit(body)
    [claim] = ledger.claim("elsewhere", "tiny", ["default"], 1, 600_000)
    with redis.pipeline(transaction=False) as pipe:
        ledger.append(pipe, claim, 1, document, 1)
        assert pipe.execute() == [1]
    assert ledger.renew([claim], lease_ms=0) == []
    assert ledger.reap().taken_over == 1
    with service(server.url, tiny_model):
        result = client.result(job_id, timeout=60)
        assert_alike(result, client.result(client.submit(body), timeout=60))
    entries: Any = redis.xrange(Keys().events(job_id))
    assert sum('"reset"' in fields["event"] for _, fields in entries) == 1
