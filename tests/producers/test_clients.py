"""The two clients: submitting, results, states, errors; and that they offer the same methods."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest
from headrace.producers import (
    AsyncClient,
    Client,
    Finished,
    GenerationRequest,
    InvalidRequest,
    JobNotFound,
    JobState,
    WaitTimeout,
)
from headrace.producers.ledger import Ledger
from redis import Redis

from .attempts import MODEL, append, claim_one, finish, job

SHARED = ["submit", "submit_many", "stream", "result", "status", "request", "cancel", "close"]


@pytest.mark.parametrize("name", SHARED)
def test_both_clients_have_the_same_methods(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (Client, AsyncClient))
    assert ours.parameters == theirs.parameters
    assert inspect.signature(Client) == inspect.signature(AsyncClient)


def test_a_job_goes_from_queued_to_its_result(client: Client, ledger: Ledger) -> None:
    job_id = client.submit("Name three rivers.", max_tokens=5, seed=7)
    assert client.status(job_id).state is JobState.QUEUED
    claim = claim_one(ledger)
    request = GenerationRequest.model_validate_json(claim.request)
    assert request.messages and request.messages[0].content == "Name three rivers."
    assert (request.max_tokens, request.seed) == (5, 7)
    append(ledger, claim, 1, "Rhine")
    status = client.status(job_id)
    assert (status.state, status.attempt, status.worker) == (JobState.RUNNING, 1, "w1")
    assert status.completion_tokens == 1
    assert client.results([job_id]) == {}
    finish(ledger, claim, text="Rhine")
    assert client.result(job_id, timeout=5).text == "Rhine"
    assert client.status(job_id).result == client.result(job_id) == client.results([job_id, "other"])[job_id]


def test_the_body_of_a_job_can_be_read_again(client: Client, url: str) -> None:
    body = {"prompt": "Once", "n": 3, "stop": ["."]}
    job_id = client.submit(body)
    kept = client.request(job_id)
    assert kept.items() >= body.items()
    assert isinstance(kept["seed"], int)
    assert client.request(client.submit(kept)) == kept

    async def read(job_id: str) -> dict[str, Any]:
        async with AsyncClient(url) as connected:
            return await connected.request(job_id)

    assert asyncio.run(read(job_id)) == kept
    with pytest.raises(JobNotFound, match="no job nobody"):
        client.request("nobody")
    with pytest.raises(JobNotFound, match="no job nobody"):
        asyncio.run(read("nobody"))


def test_submitting_an_id_again_changes_nothing(client: Client, redis: Redis, ledger: Ledger) -> None:
    assert client.submit("one", job_id="mine") == client.submit("two", job_id="mine") == "mine"
    assert client.submit_many(["three", "four"], job_ids=["mine", "other"]) == ["mine", "other"]
    assert redis.zcard(ledger.keys.queue("default")) == 2
    assert "one" in claim_one(ledger).request


def test_many_jobs_keep_their_order(client: Client, ledger: Ledger) -> None:
    ids = client.submit_many([f"prompt {number}" for number in range(1200)], max_tokens=1)
    assert [claim.job_id for claim in ledger.claim("w1", MODEL, ["default"], 2000, 1000)] == ids


def test_one_bad_request_of_many_queues_none(client: Client, redis: Redis) -> None:
    with pytest.raises(InvalidRequest, match="temperature"):
        client.submit_many(["good", {"prompt": "bad", "temperature": 3}])
    assert redis.dbsize() == 0


@pytest.mark.parametrize("job_id", ["", "a b", "a:b", "ä", "x" * 129, "a\n", "{a}", "*"])
def test_ids_that_cannot_be_part_of_a_key_are_refused(client: Client, job_id: str) -> None:
    with pytest.raises(InvalidRequest, match="is refused"):
        client.submit("hi", job_id=job_id)


def test_cancel_is_durable_and_changes_no_ended_job(client: Client, ledger: Ledger) -> None:
    queued, running, done = client.submit_many(["a", "b", "c"], job_ids=["queued", "running", "done"])
    assert client.cancel(queued) is JobState.CANCELLED
    claims = {claim.job_id: claim for claim in ledger.claim("w1", MODEL, ["default"], 5, 60_000)}
    assert set(claims) == {running, done}, "a job cancelled with no worker up is never started"
    assert client.cancel(running) is client.cancel(running) is JobState.CANCELLED
    assert finish(ledger, claims[running]) == 0
    finish(ledger, claims[done], text="answer")
    assert client.cancel(done) is JobState.SUCCEEDED
    assert client.result(done).text == "answer"
    assert client.result(running).state is JobState.CANCELLED


def test_unknown_jobs(client: Client) -> None:
    for method in (client.status, client.cancel, client.result):
        with pytest.raises(JobNotFound, match="no job nobody"):
            method("nobody")


def test_waiting_for_a_result_has_an_end(client: Client, ledger: Ledger) -> None:
    job_id = client.submit("hi")
    for timeout in (0, 0.1):
        with pytest.raises(WaitTimeout, match=job_id):
            client.result(job_id, timeout=timeout)
    append(ledger, claim_one(ledger), 1, "x")
    with pytest.raises(WaitTimeout):
        client.result(job_id, timeout=0.1)
    assert client.status(job_id).state is JobState.RUNNING, "the job itself goes on"


@pytest.mark.parametrize("moment", ["_bounds", "status"])
def test_a_job_that_ends_between_the_reads_of_result(
    client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    job_id = client.submit("hi")
    claim = claim_one(ledger)
    read = getattr(client, moment)
    fired: list[int] = []

    def read_and_then_end(*arguments: Any) -> Any:
        found = read(*arguments)
        if not fired:
            fired.append(finish(ledger, claim, text="answer"))
        return found

    monkeypatch.setattr(client, moment, read_and_then_end)
    assert client.result(job_id, timeout=10).text == "answer"
    assert fired == [1]


def test_one_client_in_many_threads(client: Client, ledger: Ledger) -> None:
    texts: list[str] = []

    def submit_and_wait(number: int) -> None:
        job_id = client.submit("hi", job_id=f"t{number}")
        texts.append(client.result(job_id, timeout=60).text)

    threads = [threading.Thread(target=submit_and_wait, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    left = 8
    while left:
        for claim in ledger.claim("w1", MODEL, ["default"], 8, 60_000):
            finish(ledger, claim, text=claim.job_id)
            left -= 1
    for thread in threads:
        thread.join()
    assert sorted(texts) == [f"t{number}" for number in range(8)]


def test_endings_of_a_group_come_in_order_and_once(client: Client, ledger: Ledger) -> None:
    client.submit_many(["a", "b", "c"], job_ids=["a", "b", "c"], group="g")
    client.submit("other", group="h")
    claims = ledger.claim("w1", MODEL, ["default"], 3, 60_000)
    assert client.endings("g", block_ms=1) == []
    for claim in reversed(claims[1:]):
        finish(ledger, claim)
    first = client.endings("g")
    assert [job_id for _, job_id in first] == ["c", "b"]
    client.cancel("a")
    assert [job_id for _, job_id in client.endings("g", after=first[-1][0])] == ["a"]


def test_two_prefixes_do_not_see_each_other(url: str) -> None:
    with Client(url, prefix="one") as one, Client(url, prefix="two") as two:
        one.submit("hi", job_id="j")
        with pytest.raises(JobNotFound):
            two.status("j")
        assert one.status("j").state is JobState.QUEUED


def test_a_job_outlives_its_end_by_its_retention(url: str, ledger: Ledger) -> None:
    with Client(url, retention_s=77) as client:
        job_id = client.submit("hi")
    finish(ledger, claim_one(ledger))
    assert 70 < int(ledger.redis.ttl(ledger.keys.job(job_id))) <= 77
    with Client(url, retention_s=0) as client, pytest.raises(InvalidRequest, match="retention_s is 0"):
        client.submit("hi")


@pytest.fixture
def ended(ledger: Ledger) -> str:
    """A finished job."""
    ledger.submit([job("ended")])
    claim = claim_one(ledger)
    append(ledger, claim, 1, "answer")
    finish(ledger, claim, text="answer")
    return "ended"


@pytest.mark.asyncio
async def test_the_async_client_reads_and_waits(url: str, ended: str) -> None:
    async with AsyncClient(url) as client:
        events = [event async for event in client.stream(ended)]
        assert isinstance(events[-1], Finished)
        assert (await client.result(ended)).text == "answer"
        assert (await client.status(ended)).state is JobState.SUCCEEDED
        assert await client.cancel(ended) is JobState.SUCCEEDED
        with pytest.raises(JobNotFound):
            await client.result("nobody")
        with pytest.raises(JobNotFound):
            await client.cancel("nobody")


@pytest.mark.asyncio
async def test_the_async_client_submits_and_cancels(url: str, ledger: Ledger) -> None:
    async with AsyncClient(url) as client:
        one = await client.submit("hi", max_tokens=3)
        many = await client.submit_many(["a", "b"], job_ids=["x", one], group="g")
        assert many == ["x", one]
        assert [claim.job_id for claim in ledger.claim("w1", MODEL, ["default"], 9, 60_000)] == [one, "x"]
        with pytest.raises(InvalidRequest, match="max_tokens"):
            await client.submit("hi", max_tokens=0)
        with pytest.raises(WaitTimeout):
            await client.result(one, timeout=0.1)
        assert await client.cancel(one) is JobState.CANCELLED
        assert (await client.result(one, timeout=5)).state is JobState.CANCELLED
