"""A job that fails for a passing reason near its deadline."""

from __future__ import annotations

import time

from headrace.producers.ledger import Ledger

from .attempts import LONG_MS, claim_one, documents, job, retry


def test_after_its_deadline_it_has_expired(ledger: Ledger) -> None:
    ledger.submit([job("j", ttl_ms=60)])
    claim = claim_one(ledger)
    time.sleep(0.08)
    assert retry(ledger, claim) == 0
    assert [event["kind"] for event in documents(ledger, "j")] == ["started", "expired"]


def test_where_the_deadline_comes_first_it_fails_with_its_reason(ledger: Ledger) -> None:
    ledger.submit([job("j", ttl_ms=LONG_MS)])
    assert retry(ledger, claim_one(ledger), 2 * LONG_MS, "out of memory") == 1
    last = documents(ledger, "j")[-1]
    assert last["kind"] == "error"
    assert last["result"]["error"]["message"] == "out of memory; its deadline comes before another try"
