"""Which failures are tried again and when, and that a worker does so."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace.producers import Client, Delta, ErrorInfo, JobState, Started
from headrace.producers.ledger import MAX_DELIVERIES
from headrace.worker.embedded import EmbeddedServer
from headrace.worker.retry_policy import BASE_SECONDS, MOST_SECONDS, is_transient, retry_delay
from redis import Redis

from ..support import wait_until
from .services import engine_of, service


def failure(status_code: int, retry_after: float | None = None) -> ErrorInfo:
    return ErrorInfo(code="x", message="x", status_code=status_code, retry_after_seconds=retry_after)


@pytest.mark.parametrize(
    ("status_code", "transient"),
    [
        *((status_code, False) for status_code in (400, 401, 404, 413, 422)),
        *((status_code, True) for status_code in (408, 429, 500, 503, 504)),
    ],
)
def test_c10_faults_of_the_request_are_final(status_code: int, transient: bool) -> None:
    assert is_transient(failure(status_code)) is transient


def test_c10_nothing_is_tried_again_before_it_makes_sense() -> None:
    source = random.Random(1)
    delays = [retry_delay(failure(429, 60), 1, source) for _ in range(200)]
    assert min(delays) >= 60
    assert max(delays) <= 60 + BASE_SECONDS


@pytest.mark.parametrize(("deliveries", "bound"), [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (50, 60)])
def test_c10_wake_ups_are_spread_over_the_window(deliveries: int, bound: float) -> None:
    source = random.Random(2)
    delays = [retry_delay(failure(503), deliveries, source) for _ in range(400)]
    assert bound <= MOST_SECONDS
    assert 0 <= min(delays) < 0.05 * bound
    assert 0.95 * bound < max(delays) <= bound
    quarters = [sum(low <= delay / bound * 4 < low + 1 for delay in delays) for low in range(4)]
    assert min(quarters) > 60, "evenly"


def test_c10_a_passing_failure_is_tried_again_and_goes_on(
    server: EmbeddedServer, client: Client, redis: Redis, tiny_model: Path
) -> None:
    body: dict[str, Any] = {"prompt": "retried", "max_tokens": 30, "ignore_eos": True, "seed": 4}
    with service(server.url, tiny_model) as worker:
        undisturbed = client.result(client.submit(body), timeout=60).text
        model: Any = engine_of(worker)._model
        forward, broken = model.forward, [12]

        def breaks_once(batch: Any, kv_cache: Any) -> torch.Tensor:
            logits = forward(batch, kv_cache)
            if broken and batch.sampled and len(batch.sampled[0].output_token_ids) == broken[0]:
                broken.clear()
                return torch.full_like(logits, float("nan"))
            return logits  # type: ignore[no-any-return]

        model.forward = breaks_once
        job_id = client.submit(body)
        result = client.result(job_id, timeout=60)
        events = list(client.stream(job_id))
    assert (result.state, result.attempt, result.text) == (JobState.SUCCEEDED, 2, undisturbed)
    starts = [event for event in events if isinstance(event, Started)]
    assert [start.seq > 0 for start in starts] == [False, True]
    tokens = [token for event in events if isinstance(event, Delta) for token in event.token_ids]
    assert len(tokens) == 30
    assert not redis.exists("headrace:delayed")


def test_c10_what_fails_each_time_is_given_up_after_one_layer_of_tries(
    server: EmbeddedServer, client: Client, redis: Redis, tiny_model: Path
) -> None:
    with service(server.url, tiny_model) as worker:
        model: Any = engine_of(worker)._model
        forward = model.forward

        def breaks(batch: Any, kv_cache: Any) -> torch.Tensor:
            logits = forward(batch, kv_cache).clone()
            for row, request in enumerate(batch.sampled):
                if request.prompt_token_ids[0] == request.prompt_token_ids[1]:
                    logits[row] = float("nan")
            return logits  # type: ignore[no-any-return]

        model.forward = breaks
        bad, good = client.submit_many([{"prompt": "aab", "max_tokens": 9}, {"prompt": "abb", "max_tokens": 9}])
        wrong = client.submit({"prompt": "x" * 5000})
        result = client.result(bad, timeout=60)
        assert client.result(good, timeout=60).state is JobState.SUCCEEDED
        refused = client.result(wrong, timeout=60)
    assert (result.state, result.attempt) == (JobState.FAILED, MAX_DELIVERIES)
    assert result.error is not None
    assert result.error.code == "too_many_deliveries"
    assert "in the last, " in result.error.message
    assert bad in redis.zrange("headrace:dead", 0, -1)
    assert (refused.state, refused.attempt) == (JobState.FAILED, 1), "the request's own fault is not tried again"
    wait_until(lambda: not redis.exists("headrace:running"), "nothing is left")
