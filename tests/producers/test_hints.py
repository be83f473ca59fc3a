"""A hint that cannot be sent: the job is queued all the same, and the program is told so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from headrace.producers import AsyncClient, Client, JobState
from headrace.producers.hints import HintSender, celery_queue
from headrace.producers.keys import Keys
from headrace.producers.ledger import Ledger
from redis import Redis

from .attempts import claim_one

NOWHERE = "unix:///nowhere/redis.sock"


def test_a_job_is_submitted_where_its_hint_cannot_be_sent(client: Client, ledger: Ledger) -> None:
    client._hints = HintSender(NOWHERE)
    job_id = client.submit("hi")
    assert client.status(job_id).state is JobState.QUEUED
    assert claim_one(ledger).job_id == job_id


def test_so_is_an_asyncio_clients(url: str, ledger: Ledger) -> None:
    async def submit() -> str:
        async with AsyncClient(url) as client:
            client._hints = HintSender(NOWHERE)
            return await client.submit("hi")

    assert asyncio.run(submit()) == claim_one(ledger).job_id


@pytest.mark.parametrize("listening", [False, True])
def test_a_hint_is_sent_where_no_worker_has_heard(client: Client, redis: Redis, *, listening: bool) -> None:
    redis.delete(celery_queue("quiet"))
    server: Any = redis
    with server.pubsub() as worker:
        if listening:
            worker.subscribe(client.keys.arrivals("quiet"))
            assert worker.get_message(timeout=5) is not None
        client.submit_many(["hi", "there"], model="quiet")
        assert redis.llen(celery_queue("quiet")) == (0 if listening else 1)
        if listening:
            heard = [worker.get_message(timeout=wait) for wait in (5, 0.1)]
            assert [message and message["type"] for message in heard] == ["message", None], "once for both"
        client.submit("more", model="quiet")
        assert redis.llen(celery_queue("quiet")) == 1, "a worker that heard and died would leave this one behind"


@pytest.mark.parametrize("listening", [False, True])
def test_so_does_an_asyncio_client(url: str, redis: Redis, *, listening: bool) -> None:
    async def submit() -> None:
        async with AsyncClient(url) as client:
            await client.submit("hi", model="still" if listening else "silent")

    server: Any = redis
    with server.pubsub() as worker:
        worker.subscribe(Keys().arrivals("still"))
        assert worker.get_message(timeout=5) is not None
        asyncio.run(submit())
    assert redis.llen(celery_queue("still" if listening else "silent")) == (0 if listening else 1)
