"""Which keys there are, that Lua and Python name them alike, and that nothing outlives its retention."""

from __future__ import annotations

from headrace.producers import JobState
from headrace.producers.keys import Keys
from headrace.producers.ledger import MAX_DELIVERIES, Ledger
from redis import Redis

from ..support import wait_until
from .attempts import LONG_MS, MODEL, append, claim_one, finish, job, release, takes_over

KEYS = Keys("some:prefix")


def all_keys(redis: Redis) -> set[str]:
    return set(redis.scan_iter(count=1000))


def test_the_scripts_build_the_documented_names(redis: Redis) -> None:
    ledger = Ledger(redis, KEYS)
    ledger.submit([job("a", queue="m", group="g"), job("b", queue="m")])
    queued = {KEYS.job("a"), KEYS.job("b"), KEYS.queue("m"), KEYS.queued, KEYS.sequence}
    assert all_keys(redis) == queued

    with redis.pubsub() as channel:  # type: ignore[no-untyped-call]
        channel.subscribe(KEYS.channel("a"))
        claim = claim_one(ledger, queue="m")
        assert all_keys(redis) == {*queued, KEYS.events("a"), KEYS.running}
        assert append(ledger, claim, 1, "text") == 1
        assert finish(ledger, claim) == 1
        heard = [wait_until(lambda: channel.get_message(timeout=0.1), "a message") for _ in range(4)]
    assert [message["type"] for message in heard] == ["subscribe", "message", "message", "message"]
    assert all_keys(redis) == {*queued, KEYS.events("a"), KEYS.group("g")}
    give_up(ledger, "m")
    assert all_keys(redis) == {*queued, KEYS.events("a"), KEYS.group("g"), KEYS.events("b"), KEYS.dead} - {
        KEYS.queue("m"),
        KEYS.queued,
    }


def give_up(ledger: Ledger, queue: str) -> None:
    """Deliver the queued job until it is given up."""
    for _ in range(MAX_DELIVERIES):
        claim_one(ledger, lease_ms=0, queue=queue)
        ledger.reap()


def test_all_keys_of_an_ended_job_have_a_ttl(redis: Redis, ledger: Ledger) -> None:
    for job_id in ("succeeded", "failed", "cancelled", "buried"):
        ledger.submit([job(job_id, retention_s=900, group="g")])
        if job_id == "buried":
            give_up(ledger, "default")
            continue
        claim = claim_one(ledger)
        if job_id == "cancelled":
            ledger.cancel(job_id)
        else:
            finish(ledger, claim, JobState(job_id))
    ledger.submit([job("cancelled while queued", retention_s=900, group="g")])
    ledger.cancel("cancelled while queued")
    without = {key for key in all_keys(redis) if redis.ttl(key) == -1}
    assert without == {ledger.keys.sequence}
    assert all(0 < int(redis.ttl(key)) <= 900 for key in all_keys(redis) - without)


def test_after_all_retentions_only_the_counter_is_left(redis: Redis, ledger: Ledger) -> None:
    ledger.submit([job(f"j{number}", retention_s=1, group="g") for number in range(10)])
    claims = ledger.claim("w1", MODEL, ["default"], 9, LONG_MS)
    taken = ledger.renew(claims[3:6], lease_ms=0)
    assert taken == []
    for claim in claims[:3]:
        append(ledger, claim, 1, "x")
        finish(ledger, claim)
    assert ledger.reap().taken_over == 3
    again = ledger.claim("w2", MODEL, ["default"], 4, LONG_MS)
    assert {claim.attempt for claim in again} == {1, 2}
    for claim in [*again, *claims[6:8]]:
        finish(ledger, claim, JobState.FAILED)
    assert release(ledger, claims[8]) == 1
    ledger.cancel(claims[8].job_id)
    ledger.submit([job("poison", retention_s=1)])
    give_up(ledger, "default")
    assert redis.exists(ledger.keys.dead, ledger.keys.group("g")) == 2
    wait_until(lambda: all_keys(redis) == {ledger.keys.sequence}, "only the counter is left", seconds=10)


def test_a_job_with_a_short_retention_leaves_other_dead_letters_alone(redis: Redis, ledger: Ledger) -> None:
    for job_id, retention_s in (("long", 900), ("short", 1)):
        ledger.submit([job(job_id, retention_s=retention_s)])
        give_up(ledger, "default")
    wait_until(lambda: not redis.exists(ledger.keys.job("short")), "the short one is gone", seconds=10)
    assert "long" in redis.zrange(ledger.keys.dead, 0, -1)
    ledger.submit([job("later", retention_s=600)])
    give_up(ledger, "default")
    assert redis.zrange(ledger.keys.dead, 0, -1) == ["later", "long"], "those whose records are gone are forgotten"


def test_c3_a_poison_job_is_delivered_so_often_and_then_dead(redis: Redis, ledger: Ledger) -> None:
    ledger.submit([job("poison"), job("healthy")])
    for attempt in range(1, MAX_DELIVERIES + 1):
        claim = claim_one(ledger, f"w{attempt}", lease_ms=0)
        assert (claim.job_id, claim.attempt) == ("poison", attempt)
        ledger.reap()
    assert redis.zrange(ledger.keys.dead, 0, -1) == ["poison"]
    result = str(redis.hget(ledger.keys.job("poison"), "result"))
    assert f"gave up after {MAX_DELIVERIES} deliveries; in the last, its worker, w{MAX_DELIVERIES}, stopped" in result
    assert claim_one(ledger).job_id == "healthy"


def test_jobs_handed_back_in_order_are_never_given_up(ledger: Ledger) -> None:
    ledger.submit([job("j")])
    for attempt in range(1, 3 * MAX_DELIVERIES):
        claim = claim_one(ledger)
        assert claim.attempt == attempt
        assert release(ledger, claim) == 1


def test_claims_are_first_come_first_served_over_all_queues(ledger: Ledger) -> None:
    queues = ["a", "b", "c"]
    names = [f"j{number}" for number in range(30)]
    ledger.submit([job(name, queue=queues[number * 7 % 3]) for number, name in enumerate(names)])
    first = ledger.claim("w1", MODEL, ["c", "a", "b"], 8, LONG_MS)
    assert [release(ledger, claim) for claim in first[:4]] == [1] * 4, "handed back, they have their old places again"
    taken = first[4:]
    while claims := ledger.claim("w2", MODEL, ["b", "c", "a"], 5, LONG_MS):
        taken += claims
    assert [claim.job_id for claim in taken] == [*names[4:8], *names[:4], *names[8:]]


def test_a_token_opens_nothing_after_a_takeover_by_the_same_worker(ledger: Ledger) -> None:
    ledger.submit([job("j")])
    first = claim_one(ledger, "w1")
    second = takes_over(ledger, first, "w1")
    assert append(ledger, first, 1, "old") == 0
    assert finish(ledger, first) == 0
    assert ledger.renew([first, second], LONG_MS) == [first]
    assert finish(ledger, second) == 1
