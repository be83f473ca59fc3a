"""The ledger under random calls of several workers, against a model in plain Python."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from headrace.producers.connection import connect
from headrace.producers.keys import Keys
from headrace.producers.ledger import GAP, MAX_DELIVERIES, Claim, Ledger, Submitted
from headrace.producers.results import JobState
from headrace.worker.embedded import EmbeddedServer
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from redis import Redis

from .attempts import LONG_MS, MODEL, append, documents, finish, job, release, reset, retry

QUEUES = ["default", "model"]
TERMINAL = {"done", "error", "cancelled", "expired"}
ENDS = st.sampled_from([JobState.SUCCEEDED, JobState.FAILED])


@dataclass
class Expected:
    """What the model knows of a job."""

    queue: str
    order: int
    state: str = "queued"
    attempt: int = 0
    deliveries: int = 0
    token: str | None = None
    lease_over: bool = False
    ended_by: str | None = None
    seq: int = 0
    reset_by: str | None = None
    late: bool = False
    """Whether its deadline is over."""
    delayed: bool = False
    texts: dict[int, list[str]] = field(default_factory=dict)
    """Deltas by attempt; they stand until a reset."""
    kinds: list[str] = field(default_factory=list)
    """The event log's kinds."""

    @property
    def ended(self) -> bool:
        return self.state not in ("queued", "running")

    def end(self, state: str, kind: str) -> None:
        assert not self.ended
        self.state, self.token = state, None
        self.kinds.append(kind)


OWNERS_CALLS = ("append", "gap", "again", "finish", "cancel", "expire")


class LedgerMachine(RuleBasedStateMachine):
    """Workers that claim, write, lose leases and come back; producers that submit twice and cancel."""

    redis: Redis
    seen: ClassVar[Counter[str]]
    prefixes = itertools.count()
    claims = Bundle("claims")

    @initialize()
    def begin(self) -> None:
        self.ledger = Ledger(self.redis, Keys(f"machine{next(self.prefixes)}"))
        self.jobs: dict[str, Expected] = {}
        self.orders = itertools.count(1)
        self.owners: dict[str, Claim] = {}
        """The last claim of each job."""

    @rule(number=st.integers(0, 5), queue=st.sampled_from(QUEUES))
    def submit(self, number: int, queue: str) -> None:
        job_id = f"j{number}"
        new = job_id not in self.jobs
        assert self.ledger.submit([job(job_id, queue=queue)] * 2) == [Submitted(new), Submitted.EXISTS]
        if new:
            self.jobs[job_id] = Expected(queue, next(self.orders))
        else:
            self.seen["submitted again"] += 1

    @rule(
        target=claims,
        worker=st.sampled_from(["w1", "w2", "w3"]),
        queues=st.lists(st.sampled_from(QUEUES), min_size=1, max_size=2, unique=True),
        count=st.integers(1, 4),
        lease_ms=st.sampled_from([0, LONG_MS]),
    )
    def claim(self, worker: str, queues: list[str], count: int, lease_ms: int) -> object:
        return multiple(*self.claim_first(worker, queues, count, lease_ms))

    def claim_first(self, worker: str, queues: list[str], count: int, lease_ms: int) -> list[Claim]:
        waiting = [name for name in self.in_order() if self.jobs[name].queue in queues][:count]
        claims = self.ledger.claim(worker, MODEL, queues, count, lease_ms)
        assert [claim.job_id for claim in claims] == waiting
        for claim in claims:
            expected = self.jobs[claim.job_id]
            expected.attempt += 1
            expected.deliveries += 1
            assert claim.attempt == expected.attempt
            assert claim.waited_ms >= 0
            expected.state, expected.token, expected.lease_over = "running", claim.token, lease_ms == 0
            expected.kinds.append("started")
            assert claim.seq == expected.seq
            assert claim.deliveries == expected.deliveries
            self.seen["resumed"] += expected.seq > 0
            self.owners[claim.job_id] = claim
        return claims

    @rule(number=st.integers(0, 5), calls=st.lists(st.sampled_from(OWNERS_CALLS)))
    def owner_goes_on(self, number: int, calls: list[str]) -> None:
        """The worker that owns a job: most claims that random calls choose among are void."""
        name = f"j{number}"
        for call in calls:
            if name not in self.jobs or self.jobs[name].state != "running":
                return
            if call == "finish":
                self.finish(self.owners[name], JobState.SUCCEEDED)
                self.finish(self.owners[name], JobState.SUCCEEDED)
            elif call == "cancel":
                self.cancel(number)
            elif call == "expire":
                self.deadline_is_over(number)
            else:
                self.append(self.owners[name], {"append": 1, "gap": 2, "again": 0}[call])

    @rule(target=claims, by_retry=st.booleans(), chance=st.integers(0, 12))
    def poison(self, by_retry: bool, chance: int) -> object:
        """The first job fails its workers again and again, each of which publishes a little more of it."""
        taken: list[Claim] = []
        while chance == 0 and (claims := self.claim_first("w1", QUEUES, 1, LONG_MS)):
            [claim] = claims
            taken.append(claim)
            self.append(claim, 1)
            if by_retry:
                self.retry(claim, 0)
            else:
                self.lease_runs_out(claim)
            if self.jobs[claim.job_id].ended:
                break
        return multiple(*taken)

    @rule(claim=claims, ahead=st.sampled_from([1, 1, 0, -1, 2]))
    def append(self, claim: Claim, ahead: int) -> None:
        expected = self.jobs[claim.job_id]
        owned = claim.token == expected.token
        seq = max(expected.seq + ahead, 1)
        text = f"{claim.attempt}.{seq} "
        if owned and ahead == 2:
            assert append(self.ledger, claim, seq, text) == GAP
            assert finish(self.ledger, claim, num_deltas=seq) == GAP
            self.seen["gap"] += 1
            return
        # The second call is the first one repeated, as after a reply that was lost.
        assert [append(self.ledger, claim, seq, text) for _ in range(2)] == [int(owned)] * 2
        if owned and seq > expected.seq:
            expected.seq = seq
            expected.kinds.append("delta")
            expected.texts.setdefault(claim.attempt, []).append(text)
        self.seen["append fenced"] += not owned
        self.seen["append repeated late"] += owned and ahead < 1

    @rule(claim=claims)
    def reset(self, claim: Claim) -> None:
        expected = self.jobs[claim.job_id]
        owned = claim.token == expected.token
        assert [reset(self.ledger, claim) for _ in range(2)] == [int(owned)] * 2
        if owned and expected.reset_by != claim.token:
            expected.reset_by, expected.seq = claim.token, 0
            expected.kinds.append("reset")
            self.seen["reset"] += 1
        self.seen["reset fenced"] += not owned

    @rule(claim=claims, delay_ms=st.sampled_from([0, LONG_MS]))
    def retry(self, claim: Claim, delay_ms: int) -> None:
        expected = self.jobs[claim.job_id]
        owned = claim.token == expected.token
        assert [retry(self.ledger, claim, delay_ms) for _ in range(2)] == [int(owned), 0]
        if not owned:
            return
        if expected.deliveries >= MAX_DELIVERIES:
            expected.end("failed", "error")
            self.seen["given up after a retry"] += 1
            last = documents(self.ledger, claim.job_id)[-1]["result"]["error"]
            assert "in the last, it broke" in last["message"]
        else:
            expected.state, expected.token, expected.delayed = "queued", None, delay_ms > 0
            self.seen["retried"] += 1

    @rule()
    def delays_are_over(self) -> None:
        names = [name for name, expected in self.jobs.items() if expected.delayed]
        for name in names:
            self.redis.zadd(self.ledger.keys.delayed, {name: 0})
            self.jobs[name].delayed = False
        self.expect_reaped(len(names))
        self.seen["second try"] += len(names)

    @rule(claim=claims)
    def retry_and_its_delay_is_over(self, claim: Claim) -> None:
        self.retry(claim, LONG_MS)
        self.delays_are_over()

    @rule(number=st.integers(0, 12))
    def deadline_is_over(self, number: int) -> None:
        """As if the job had been submitted with a ttl that ends now; whoever touches it next ends it."""
        expected = self.jobs.get(f"j{number}")
        if expected is None or expected.ended:
            return
        self.redis.hset(self.ledger.keys.job(f"j{number}"), mapping={"ttl_ms": 1, "deadline_ms": 1})
        self.redis.zadd(self.ledger.keys.deadlines, {f"j{number}": 1})
        expected.late = True
        assert [self.ledger.expire(f"j{number}") for _ in range(2)] == [True, False]
        self.seen[f"expired when {expected.state}"] += 1
        expected.delayed = False
        expected.end("expired", "expired")

    @rule(claim=claims, state=ENDS)
    def finish(self, claim: Claim, state: JobState) -> None:
        expected = self.jobs[claim.job_id]
        owned = claim.token == expected.token
        accepted = owned or expected.ended_by == claim.token
        assert [finish(self.ledger, claim, state) for _ in range(2)] == [int(accepted)] * 2
        if owned:
            expected.ended_by = claim.token
            expected.end(state.value, "done" if state is JobState.SUCCEEDED else "error")
        self.seen["finish fenced"] += not accepted
        self.seen["finish repeated late"] += accepted and not owned

    @rule(number=st.integers(0, 8))
    def cancel(self, number: int) -> None:
        expected = self.jobs.get(f"j{number}")
        reply = self.ledger.cancel(f"j{number}")
        if expected is None:
            assert reply is None
            return
        if not expected.ended:
            self.seen[f"cancelled when {expected.state}"] += 1
            expected.delayed = False
            expected.end("cancelled", "cancelled")
        assert reply == expected.state

    @rule(claim=claims)
    def release(self, claim: Claim) -> None:
        expected = self.jobs[claim.job_id]
        owned = claim.token == expected.token
        assert [release(self.ledger, claim) for _ in range(2)] == [int(owned), 0]
        if owned:
            expected.state, expected.token = "queued", None
            expected.deliveries -= 1
            self.seen["released"] += 1

    @rule(claim=claims, lease_ms=st.sampled_from([0, LONG_MS]))
    def renew(self, claim: Claim, lease_ms: int) -> None:
        expected = self.jobs[claim.job_id]
        owned = claim.token == expected.token
        lost = not owned and expected.ended_by != claim.token
        assert self.ledger.renew([claim], lease_ms) == [claim] * lost
        if owned:
            self.seen["renewed after its end"] += expected.lease_over and lease_ms > 0
            expected.lease_over = lease_ms == 0
        self.seen["lease lost"] += lost

    @rule()
    def reap(self) -> None:
        self.expect_reaped(0)

    def expect_reaped(self, retried: int) -> None:
        over = {name for name, expected in self.jobs.items() if expected.state == "running" and expected.lease_over}
        buried = {name for name in over if self.jobs[name].deliveries >= MAX_DELIVERIES}
        reaped = self.ledger.reap()
        assert (reaped.taken_over, reaped.expired, reaped.retried) == (len(over - buried), 0, retried)
        for name in over:
            expected = self.jobs[name]
            if name in buried:
                expected.end("failed", "error")
                self.seen["buried"] += 1
                last = documents(self.ledger, name)[-1]["result"]["error"]
                assert last["code"] == "too_many_deliveries"
                assert f"{MAX_DELIVERIES} deliveries" in last["message"]
            else:
                expected.state, expected.token = "queued", None
                self.seen["reaped"] += 1

    @rule(claim=claims)
    def lease_runs_out(self, claim: Claim) -> None:
        self.renew(claim, 0)
        self.reap()

    @rule(claim=claims)
    def worker_comes_back_in_time(self, claim: Claim) -> None:
        self.renew(claim, 0)
        self.renew(claim, LONG_MS)

    def in_order(self) -> list[str]:
        """Queued jobs that do not wait for a second try, first submitted first."""
        queued = [name for name, job in self.jobs.items() if job.state == "queued" and not job.delayed]
        return sorted(queued, key=lambda name: self.jobs[name].order)

    @invariant()
    def records_are_as_expected(self) -> None:
        for name, expected in getattr(self, "jobs", {}).items():
            record = self.redis.hgetall(self.ledger.keys.job(name))
            assert isinstance(record, dict)
            assert record["state"] == expected.state
            assert record.get("token") == expected.token
            assert int(record["attempt"]) == expected.attempt
            assert int(record["deliveries"]) == expected.deliveries <= MAX_DELIVERIES
            assert (record.get("result") is not None) == expected.ended
            assert (record.get("ended_by") or None) == expected.ended_by

    @invariant()
    def sets_are_as_expected(self) -> None:
        if not hasattr(self, "jobs"):
            return
        keys = self.ledger.keys
        for queue in QUEUES:
            queued = [name for name in self.in_order() if self.jobs[name].queue == queue]
            assert self.redis.zrange(keys.queue(queue), 0, -1) == queued
        delayed = {name for name, expected in self.jobs.items() if expected.delayed}
        assert set(self.redis.zrange(keys.delayed, 0, -1)) == delayed
        num_queued = sum(expected.state == "queued" for expected in self.jobs.values())
        assert int(self.redis.hget(keys.queued, "") or 0) == num_queued
        assert self.redis.zcard(keys.deadlines) == 0
        running = {name for name, expected in self.jobs.items() if expected.state == "running"}
        assert set(self.redis.zrange(keys.running, 0, -1)) == running

    @invariant()
    def logs_are_as_expected(self) -> None:
        for name, expected in getattr(self, "jobs", {}).items():
            events = documents(self.ledger, name)
            kinds = [event["kind"] for event in events]
            assert kinds == expected.kinds
            assert sum(kind in TERMINAL for kind in kinds) == expected.ended
            for attempt, texts in expected.texts.items():
                written = [e["text"] for e in events if e["kind"] == "delta" and e["attempt"] == attempt]
                assert written == texts


MOST_ROUNDS = 6
RARE_PATHS = [
    "append fenced",
    "append repeated late",
    "buried",
    "cancelled when queued",
    "cancelled when running",
    "finish fenced",
    "finish repeated late",
    "lease lost",
    "reaped",
    "released",
    "renewed after its end",
    "expired when queued",
    "expired when running",
    "gap",
    "given up after a retry",
    "reset",
    "reset fenced",
    "resumed",
    "retried",
    "second try",
    "submitted again",
]


def test_random_calls_keep_the_ledgers_promises(server: EmbeddedServer) -> None:
    class Machine(LedgerMachine):
        redis = connect(server.url)
        seen: ClassVar[Counter[str]] = Counter()

    calls = settings(
        max_examples=60, stateful_step_count=60, derandomize=False, suppress_health_check=list(HealthCheck)
    )
    for _ in range(MOST_ROUNDS):
        run_state_machine_as_test(Machine, settings=calls)
        missing = [path for path in RARE_PATHS if not Machine.seen[path]]
        if not missing:
            break
    Machine.redis.close()
    assert missing == [], "these never happened"
