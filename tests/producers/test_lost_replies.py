"""A script was run and its reply got lost: calling it again leaves the ledger as one call does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from headrace.producers.keys import Keys
from headrace.producers.ledger import MAX_DELIVERIES, SCRIPTS, Ledger, Reaped, Submitted
from headrace.producers.results import JobState
from headrace.worker.embedded import EmbeddedServer
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from .attempts import LONG_MS, MODEL, append, claim_one, documents, finish, job, release, reset, retry, takes_over
from .lossy_proxy import LossyProxy

Call = Callable[[Ledger], Any]
Case = Callable[[Ledger], Call]
"""Brings a ledger to where a script is called; returns the call, to be made over any connection."""

CLOCKS = {"created_ms", "deadline_ms", "ended_ms"}
TIMED = ("running", "delayed", "deadlines", "dead")
"""Sets whose scores are times."""


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[LossyProxy]:
    """A way to the server that can lose replies."""
    with LossyProxy(server.socket) as running:
        yield running


def _submit(ledger: Ledger) -> Call:
    return lambda used: used.submit([job("j", tenant="t", ttl_ms=LONG_MS)])


def _renew(ledger: Ledger) -> Call:
    ledger.submit([job("j")])
    claim = claim_one(ledger)
    return lambda used: used.renew([claim], LONG_MS)


def _append(ledger: Ledger) -> Call:
    ledger.submit([job("j")])
    claim = claim_one(ledger)
    append(ledger, claim, 1, "before ")
    return lambda used: append(used, claim, 2, "once")


def _reset(ledger: Ledger) -> Call:
    ledger.submit([job("j")])
    claim = claim_one(ledger)
    append(ledger, claim, 1, "void")
    second = takes_over(ledger, claim, "w2")
    return lambda used: reset(used, second)


def _finish(ledger: Ledger) -> Call:
    ledger.submit([job("j", group="g")])
    claim = claim_one(ledger)
    return lambda used: finish(used, claim, text="all")


def _release(ledger: Ledger) -> Call:
    ledger.submit([job("j", tenant="t")])
    claim = claim_one(ledger)
    append(ledger, claim, 1, "stands")
    return lambda used: release(used, claim)


def _retry_later(ledger: Ledger) -> Call:
    ledger.submit([job("j", tenant="t")])
    claim = claim_one(ledger)
    return lambda used: retry(used, claim, LONG_MS)


def _retry_no_more(ledger: Ledger) -> Call:
    ledger.submit([job("j", group="g")])
    for _ in range(MAX_DELIVERIES - 1):
        retry(ledger, claim_one(ledger))
    claim = claim_one(ledger)
    return lambda used: retry(used, claim)


def _retry_too_late(ledger: Ledger) -> Call:
    ledger.submit([job("j", group="g", ttl_ms=60)])
    claim = claim_one(ledger)
    time.sleep(0.08)
    return lambda used: retry(used, claim)


def _cancel_queued(ledger: Ledger) -> Call:
    ledger.submit([job("j", group="g", tenant="t"), job("other", tenant="t")])
    return lambda used: used.cancel("j")


def _cancel_running(ledger: Ledger) -> Call:
    ledger.submit([job("j", group="g")])
    append(ledger, claim_one(ledger), 1, "so far")
    return lambda used: used.cancel("j")


def _expire(ledger: Ledger) -> Call:
    ledger.submit([job("j", group="g", ttl_ms=1)])
    time.sleep(0.01)
    return lambda used: used.expire("j")


def _reap(ledger: Ledger) -> Call:
    """One job of each kind is due: its lease, its deadline, its second try, its last delivery."""
    ledger.submit([job("silent", tenant="t"), job("tried")])
    silent, tried = ledger.claim("w1", MODEL, ["default"], 2, LONG_MS)
    retry(ledger, tried, 1)
    ledger.submit([job("late", group="g", ttl_ms=1)])
    ledger.submit([job("hopeless", queue="sink")])
    for _ in range(MAX_DELIVERIES - 1):
        retry(ledger, claim_one(ledger, queue="sink"))
    hopeless = claim_one(ledger, queue="sink")
    ledger.renew([silent, hopeless], 0)
    time.sleep(0.01)
    return lambda used: used.reap()


def _give_up(ledger: Ledger) -> None:
    """Job ``j`` is among the dead letters."""
    ledger.submit([job("j", tenant="t")])
    for _ in range(MAX_DELIVERIES):
        retry(ledger, claim_one(ledger))


def _requeue(ledger: Ledger) -> Call:
    _give_up(ledger)
    return lambda used: used.requeue("j", "again")


def _requeue_under_another_id(ledger: Ledger) -> Call:
    _give_up(ledger)
    names = iter(("again", "and again"))
    return lambda used: used.requeue("j", next(names))


def _purge(ledger: Ledger) -> Call:
    _give_up(ledger)
    return lambda used: used.purge("j")


CASES: dict[str, list[tuple[Case, Any]]] = {
    "submit": [(_submit, [Submitted.EXISTS])],
    "renew": [(_renew, [])],
    "append": [(_append, 1)],
    "reset": [(_reset, 1)],
    "finish": [(_finish, 1)],
    "release": [(_release, 0)],
    "retry": [(_retry_later, 0), (_retry_no_more, 0), (_retry_too_late, 0)],
    "cancel": [(_cancel_queued, "cancelled"), (_cancel_running, "cancelled")],
    "expire": [(_expire, False)],
    "reap": [(_reap, Reaped(0, 0, 0))],
    "requeue": [(_requeue, "again"), (_requeue_under_another_id, "again")],
    "purge": [(_purge, False)],
}
"""How to come to each script, and what the second call says. Claim has tests of its own: it is to find other jobs."""


def state_of(ledger: Ledger) -> dict[str, Any]:
    """All that stands under a ledger's prefix, without times."""
    redis: Any = ledger.redis
    state: dict[str, Any] = {}
    for key in redis.scan_iter(f"{ledger.keys.prefix}:*"):
        name = key.removeprefix(f"{ledger.keys.prefix}:")
        match redis.type(key):
            case "hash":
                state[name] = {field: "" if field in CLOCKS else value for field, value in redis.hgetall(key).items()}
            case "zset":
                scored = redis.zrange(key, 0, -1, withscores=True)
                state[name] = [member for member, _ in scored] if name in TIMED else scored
            case "stream":
                state[name] = [fields for _, fields in redis.xrange(key)]
            case "string":
                state[name] = redis.get(key)
            case kind:
                raise AssertionError(f"{key} is a {kind}")
        state[f"{name} has an end"] = redis.ttl(key) >= 0
    return state


@pytest.mark.parametrize("script", [name for name in SCRIPTS if name != "claim"])
def test_a_repeated_call_leaves_what_one_leaves(redis: Redis, proxy: LossyProxy, script: str) -> None:
    for number, (case, reply) in enumerate(CASES[script]):
        once, twice = (Ledger(redis, Keys(f"{times}{number}")) for times in ("once", "twice"))
        case(once)(once)
        call = case(twice)
        with proxy.client() as client:
            lossy = Ledger(client, twice.keys)
            proxy.lose_next_reply()
            with pytest.raises(RedisConnectionError):
                call(lossy)
            assert state_of(twice) == state_of(once), "the lost call was made"
            assert call(lossy) == reply
        assert state_of(twice) == state_of(once)
    assert proxy.lost == len(CASES[script])


def test_jobs_whose_claim_was_lost_come_back_after_their_lease(redis: Redis, ledger: Ledger, proxy: LossyProxy) -> None:
    ledger.submit([job("a"), job("b"), job("c")])
    with proxy.client() as client:
        lossy = Ledger(client, ledger.keys)
        proxy.lose_next_reply()
        with pytest.raises(RedisConnectionError):
            lossy.claim("w1", MODEL, ["default"], 2, 100)
        assert redis.zcard(ledger.keys.running) == 2, "they are claimed, and nobody knows"
        [other] = lossy.claim("w1", MODEL, ["default"], 2, LONG_MS)
    assert other.job_id == "c", "the same worker goes on with what is left"
    time.sleep(0.15)
    assert ledger.reap() == Reaped(taken_over=2, expired=0, retried=0)
    claims = ledger.claim("w2", MODEL, ["default"], 9, LONG_MS)
    assert [(claim.job_id, claim.attempt, claim.deliveries) for claim in claims] == [("a", 2, 2), ("b", 2, 2)]
    assert [finish(ledger, claim, text="done") for claim in (*claims, other)] == [1, 1, 1]
    kinds = [[event["kind"] for event in documents(ledger, job_id)] for job_id in "abc"]
    assert kinds == [["started", "started", "done"], ["started", "started", "done"], ["started", "done"]]
    assert redis.zcard(ledger.keys.running) == 0


def test_a_claim_that_is_always_lost_ends_with_the_job_given_up(
    redis: Redis, ledger: Ledger, proxy: LossyProxy
) -> None:
    ledger.submit([job("j")])
    with proxy.client() as client:
        for _ in range(MAX_DELIVERIES):
            proxy.lose_next_reply()
            with pytest.raises(RedisConnectionError):
                Ledger(client, ledger.keys).claim("w1", MODEL, ["default"], 1, 0)
            time.sleep(0.01)
            ledger.reap()
    assert redis.hget(ledger.keys.job("j"), "state") == JobState.FAILED.value
    assert redis.zrange(ledger.keys.dead, 0, -1) == ["j"]
