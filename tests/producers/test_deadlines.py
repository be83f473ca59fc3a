"""A job's deadline in the ledger: nothing of it happens afterwards, everything before, and its end is told."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from headrace.producers import AsyncClient, Client, Delta, Finished, InvalidRequest, JobState
from headrace.producers.ledger import Ledger
from redis import Redis

from ..support import wait_until
from .attempts import LONG_MS, MODEL, append, claim_one, documents, finish, job, release, retry

BODY: dict[str, Any] = {"prompt": "hi", "max_tokens": 5}


def server_ms(redis: Redis) -> int:
    """The server's clock."""
    seconds, microseconds = redis.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def expired(ledger: Ledger, job_id: str) -> dict[str, Any]:
    """The result of a job that has expired; checks that its log says so once, and last."""
    events = documents(ledger, job_id)
    assert [event["kind"] for event in events].count("expired") == 1
    assert events[-1]["kind"] == "expired"
    assert ledger.redis.hget(ledger.keys.job(job_id), "state") == "expired"
    assert not ledger.redis.zcard(ledger.keys.deadlines)
    result: dict[str, Any] = events[-1]["result"]
    return result


def pass_deadline(ledger: Ledger, job_id: str) -> None:
    """Wait until the job's time is over, by the server's clock and by no other."""
    deadline = int(ledger.redis.hget(ledger.keys.job(job_id), "deadline_ms"))  # type: ignore[arg-type]
    wait_until(lambda: server_ms(ledger.redis) >= deadline, "the deadline is over")


def test_a_job_is_not_claimed_after_its_deadline(ledger: Ledger) -> None:
    ledger.submit([job("late", ttl_ms=30), job("endless")])
    pass_deadline(ledger, "late")
    assert claim_one(ledger).job_id == "endless"
    assert expired(ledger, "late")["error"]["message"] == "the job did not end within its ttl of 0.03 s"
    assert ledger.redis.hget(ledger.keys.job("late"), "attempt") == "0"


def test_a_job_is_claimed_and_ends_before_its_deadline(ledger: Ledger) -> None:
    ledger.submit([job("early", ttl_ms=LONG_MS)])
    claim = claim_one(ledger)
    assert ledger.expire("early") is False
    assert ledger.reap().expired == 0
    assert append(ledger, claim, 1, "a") == 1
    assert finish(ledger, claim, text="a") == 1
    assert ledger.expire("early") is False
    assert not ledger.redis.zcard(ledger.keys.deadlines)


@pytest.mark.parametrize("write", ["append", "finish"])
def test_nothing_is_written_after_the_deadline(ledger: Ledger, write: str) -> None:
    ledger.submit([job("j", ttl_ms=80)])
    claim = claim_one(ledger)
    assert append(ledger, claim, 1, "in time") == 1
    pass_deadline(ledger, "j")
    late = append(ledger, claim, 2, "late") if write == "append" else finish(ledger, claim, text="late")
    assert late == 0
    result = expired(ledger, "j")
    assert (result["attempt"], result["completion_tokens"]) == (1, 1), "what it had is counted"
    assert ledger.renew([claim], LONG_MS) == [claim]


def test_c12_a_late_completion_cannot_overwrite_an_end(ledger: Ledger) -> None:
    ledger.submit([job("j", ttl_ms=1)])
    pass_deadline(ledger, "j")
    assert ledger.reap().expired == 1
    assert ledger.cancel("j") == "expired"
    assert ledger.claim("w", MODEL, ["default"], 1, LONG_MS) == []
    expired(ledger, "j")


def test_a_job_waiting_for_its_second_try_expires_too(ledger: Ledger) -> None:
    ledger.submit([job("j", ttl_ms=300)])
    assert retry(ledger, claim_one(ledger), delay_ms=200) == 1
    assert ledger.redis.zcard(ledger.keys.delayed) == 1
    pass_deadline(ledger, "j")
    assert (ledger.reap().expired, ledger.reap().retried) == (1, 0)
    expired(ledger, "j")
    assert not ledger.redis.exists(ledger.keys.delayed, ledger.keys.queued)


def test_c10_the_deadline_beats_the_retry(ledger: Ledger) -> None:
    ledger.submit([job("j", ttl_ms=LONG_MS)])
    claim = claim_one(ledger)
    assert retry(ledger, claim, delay_ms=2 * LONG_MS) == 1
    result = documents(ledger, "j")[-1]["result"]
    assert result["state"] == "failed"
    assert result["error"]["message"] == "it broke; its deadline comes before another try"


def test_a_job_handed_back_keeps_its_deadline(ledger: Ledger) -> None:
    ledger.submit([job("j", ttl_ms=150)])
    assert release(ledger, claim_one(ledger)) == 1
    pass_deadline(ledger, "j")
    assert ledger.claim("w", MODEL, ["default"], 1, LONG_MS) == []
    expired(ledger, "j")


def test_c12_deadlines_of_many_jobs_and_their_accounting(ledger: Ledger, client: Client) -> None:
    """Some end in time, the others expire; a reader of the group hears of each once."""
    ids = client.submit_many([BODY] * 25, group="g", ttl=0.4)
    claims = ledger.claim("w", MODEL, ["default"], 10, LONG_MS)
    for claim in claims[:5]:
        assert finish(ledger, claim, text="done") == 1
    pass_deadline(ledger, ids[-1])
    for claim in claims[5:]:
        assert finish(ledger, claim, text="late") == 0
    ledger.reap()
    states = [result.state for result in client.results(ids).values()]
    assert (states.count(JobState.SUCCEEDED), states.count(JobState.EXPIRED)) == (5, 20)
    endings = [job_id for _, job_id in client.endings("g")]
    assert sorted(endings) == sorted(ids)


def test_a_waiting_reader_is_told_though_no_worker_is_up(client: Client, url: str, ledger: Ledger) -> None:
    first, second, third = client.submit_many([BODY] * 3, ttl=0.2)
    result = client.result(first, timeout=20)
    assert result.state is JobState.EXPIRED
    assert result.error is not None
    assert (result.error.code, result.error.status_code) == ("expired", 408)
    assert client.status(second).state is JobState.EXPIRED

    async def ends() -> list[Any]:
        async with AsyncClient(url) as connected:
            assert (await connected.status(second)).state is JobState.EXPIRED
            return [event async for event in connected.stream(third, timeout=20)]

    [last] = asyncio.run(ends())
    assert isinstance(last, Finished)
    assert last.result.state is JobState.EXPIRED
    for job_id in (first, second, third):
        expired(ledger, job_id)


def test_a_reader_in_mid_sentence_is_told(client: Client, ledger: Ledger) -> None:
    job_id = client.submit(BODY, ttl=0.5)
    append(ledger, claim_one(ledger), 1, "begun")
    began = time.monotonic()
    events = list(client.stream(job_id, timeout=20))
    assert isinstance(events[1], Delta)
    assert isinstance(events[-1], Finished)
    assert events[-1].result.state is JobState.EXPIRED
    assert time.monotonic() - began > 0.3, "not early"


@pytest.mark.parametrize("ttl", [0, -1, 1e9, "soon", True, float("nan")])
def test_a_ttl_that_makes_no_sense_is_refused(client: Client, ttl: Any) -> None:
    with pytest.raises(InvalidRequest, match="ttl") as caught:
        client.submit(BODY, ttl=ttl)
    assert caught.value.param == "ttl"
