"""A worker's batch, and jobs that nobody gave a hint of."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from headrace.producers import Client, Delta, Finished, JobState, Started
from headrace.producers.keys import Keys
from headrace.producers.ledger import Ledger, script_source
from headrace.producers.records import request_from, submission
from headrace.worker.embedded import EmbeddedServer
from redis import Redis

from ..support import wait_until
from .services import service


def test_64_prompts_at_once_run_in_one_batch(server: EmbeddedServer, client: Client, tiny_model: Path) -> None:
    bodies = [{"prompt": f"prompt {number}", "max_tokens": 40, "ignore_eos": True} for number in range(64)]
    ids = client.submit_many(bodies)
    with service(server.url, tiny_model, max_num_seqs=64) as worker:
        results = [client.result(job_id, timeout=60) for job_id in ids]
        described = worker.describe()
    assert {result.state for result in results} == {JobState.SUCCEEDED}
    assert {result.completion_tokens for result in results} == {40}
    assert int(described["peak_running"]) > 32
    assert described["generation_tokens"] == 64 * 40
    assert described["fenced_writes"] == described["leases_lost"] == 0


def test_a_late_short_prompt_answers_while_an_earlier_long_one_runs(
    server: EmbeddedServer, client: Client, tiny_model: Path
) -> None:
    with service(server.url, tiny_model, step_seconds=0.005):
        long = client.submit({"prompt": "long"}, max_tokens=1000, ignore_eos=True)
        events = client.stream(long)
        assert isinstance(next(events), Started)
        assert isinstance(next(events), Delta)
        short = client.submit({"prompt": "short"}, max_tokens=3, ignore_eos=True)
        first = next(event for event in client.stream(short) if isinstance(event, Delta))
        assert client.result(short, timeout=60).completion_tokens == 3
        assert client.status(long).state is JobState.RUNNING
        client.cancel(long)
        *_, last = events
    assert first.token_ids
    assert isinstance(last, Finished)


def test_an_idle_worker_hears_of_a_job_without_a_hint(
    server: EmbeddedServer, client: Client, redis: Redis, tiny_model: Path
) -> None:
    redis.delete("headrace")  # hints of other tests, which nobody took
    with service(server.url, tiny_model, poll_s=100.0):
        arrivals = client.keys.arrivals("default")
        wait_until(lambda: redis.pubsub_numsub(arrivals) == [(arrivals, 1)], "the worker listens")
        time.sleep(0.1)  # its first look at the queue is over
        for _ in range(3):
            assert client.result(client.submit("hi", max_tokens=3), timeout=30).state is JobState.SUCCEEDED
            assert redis.llen("headrace") == 0, "a hint was sent though the worker has heard"


def test_jobs_queued_while_the_engine_is_full_are_taken_once_it_is_not(
    server: EmbeddedServer, client: Client, tiny_model: Path
) -> None:
    """Nobody says anything of those that come to a queue that is not empty."""
    with service(server.url, tiny_model, poll_s=100.0, max_num_seqs=1, step_seconds=0.005) as worker:
        time.sleep(0.1)
        ids = [client.submit("hi", max_tokens=5, ignore_eos=True) for _ in range(3 * worker.max_inflight)]
        assert {client.result(job_id, timeout=60).state for job_id in ids} == {JobState.SUCCEEDED}


def test_a_job_of_which_no_worker_was_told_runs_anyway(
    server: EmbeddedServer, client: Client, redis: Redis, tiny_model: Path
) -> None:
    with service(server.url, tiny_model, poll_s=0.3) as worker:
        time.sleep(0.1)
        worker._lease._on_queued = lambda: None
        ledger = Ledger(redis, Keys())
        ledger.submit([submission(request_from({"prompt": "unheard"}, {"max_tokens": 3}), job_id="unheard")])
        assert client.result("unheard", timeout=60).state is JobState.SUCCEEDED


def test_a_job_whose_hint_was_lost_runs_anyway(
    server: EmbeddedServer, client: Client, redis: Redis, tiny_model: Path
) -> None:
    with service(server.url, tiny_model):
        time.sleep(0.1)  # the worker waits for work by now
        redis.delete("headrace")  # hints of other tests, which nobody took
        ledger = Ledger(redis, Keys())
        ledger.submit([submission(request_from({"prompt": "no hint"}, {"max_tokens": 3}), job_id="unhinted")])
        assert client.result("unhinted", timeout=60).state is JobState.SUCCEEDED
    assert redis.llen("headrace") == 0, "no hint was there at any time"


def test_equal_seeds_give_equal_texts_whatever_runs_beside(
    server: EmbeddedServer, client: Client, tiny_model: Path
) -> None:
    body = {"prompt": "same", "max_tokens": 30, "ignore_eos": True, "seed": 5, "temperature": 1.0}
    with service(server.url, tiny_model):
        alone = client.result(client.submit(body), timeout=60)
        others = client.submit_many([{**body, "prompt": f"other {number}", "seed": number} for number in range(20)])
        beside = client.result(client.submit(body), timeout=60)
        texts = {client.result(job_id, timeout=60).text for job_id in others}
    assert alone.text == beside.text
    assert len(texts) == 20


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({"prompt": ""}, "", "prompt is empty"),
        ({"prompt": "x" * 5000}, "context_length_exceeded", "5000 tokens"),
        ({"prompt": [1, 259]}, "", "token id 259"),
    ],
)
def test_what_the_model_cannot_take_is_refused_and_the_next_answers(
    server: EmbeddedServer, client: Client, tiny_model: Path, body: dict[str, object], code: str, words: str
) -> None:
    with service(server.url, tiny_model):
        refused, good = client.submit_many([body, {"prompt": "good", "max_tokens": 3, "ignore_eos": True}])
        result = client.result(refused, timeout=60)
        assert client.result(good, timeout=60).state is JobState.SUCCEEDED
    assert result.state is JobState.FAILED
    assert result.error is not None
    assert result.error.status_code == 400
    assert words in result.error.message
    assert code in result.error.code
    assert [type(event) for event in client.stream(refused)] == [Started, Finished]


def test_a_job_for_another_model_is_left_alone(server: EmbeddedServer, client: Client, tiny_model: Path) -> None:
    with service(server.url, tiny_model) as worker:
        other = client.submit({"prompt": "x", "model": "other"}, max_tokens=2)
        named = client.submit({"prompt": "x", "model": "tiny"}, max_tokens=2)
        assert client.result(named, timeout=60).model == "tiny"
        assert client.status(other).state is JobState.QUEUED
        [info] = client.workers()
        assert (info.worker_id, info.model, info.state) == (worker.settings.worker_id, "tiny", "ready")
    client.cancel(other)
    wait_until(lambda: client.workers() == [], "the worker has signed off")


def test_a_draining_worker_hands_back_and_counts_no_delivery(
    server: EmbeddedServer, client: Client, redis: Redis, tiny_model: Path
) -> None:
    body = {"prompt": "long", "max_tokens": 400, "ignore_eos": True, "seed": 3}
    with service(server.url, tiny_model, step_seconds=0.005):
        job_id = client.submit(body)
        next(event for event in client.stream(job_id) if isinstance(event, Delta))
    assert client.status(job_id).state is JobState.QUEUED
    assert redis.hget(Keys().job(job_id), "deliveries") == "0"
    with service(server.url, tiny_model):
        result = client.result(job_id, timeout=60)
        undisturbed = client.result(client.submit(body), timeout=60)
    assert (result.attempt, result.text) == (2, undisturbed.text)


@pytest.mark.parametrize("request_bytes", [b"\xff\xfe{", b"no JSON", b"[]", b'{"prompt": "a\xff", "n": "many"}', b""])
def test_what_a_foreign_producer_wrote_harms_nobody(
    server: EmbeddedServer, client: Client, redis: Redis, tiny_model: Path, request_bytes: bytes
) -> None:
    raw = Redis(unix_socket_path=str(server.socket))
    arguments: list[Any] = ["headrace", "foreign", request_bytes, "default", 60, "", 0, "", 0]
    redis.delete("headrace:job:foreign", "headrace:events:foreign")
    assert raw.eval(script_source("submit"), 0, *arguments) == [1]
    beside = client.submit({"prompt": "beside", "max_tokens": 3})
    with service(server.url, tiny_model):
        assert client.result(beside, timeout=60).state is JobState.SUCCEEDED
        refused = client.result("foreign", timeout=60)
        assert client.result(client.submit({"prompt": "later", "max_tokens": 3}), timeout=60).text
    raw.close()
    assert refused.state is JobState.FAILED
    assert refused.error is not None
    assert refused.error.status_code == 422
    assert refused.attempt == 1
