"""Jobs that were given up: listed, shown, submitted once more, deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from headrace.producers import Client, JobNotFound, JobState
from headrace.producers.dead_letters import DeadLetters
from headrace.producers.hints import HintSender
from headrace.producers.ledger import MAX_DELIVERIES, Ledger, Submission
from redis import Redis

from ..support import headrace
from .attempts import append, claim_one, finish, job

SECRET = "a prompt that nobody should read"


class CountedHints(HintSender):
    """Hints that are counted and not sent."""

    def __init__(self) -> None:
        super().__init__("")
        self.queues: list[str] = []

    def send(self, queue: str) -> None:
        self.queues.append(queue)


@pytest.fixture
def hints() -> CountedHints:
    return CountedHints()


@pytest.fixture
def letters(ledger: Ledger, hints: CountedHints) -> DeadLetters:
    return DeadLetters(ledger, hints)


def give_up(ledger: Ledger, job_id: str, *, queue: str = "default", tenant: str = "", group: str = "") -> None:
    """A job that published a token and was delivered until it was given up."""
    request = json.dumps({"prompt": SECRET, "seed": 1})
    ledger.submit([Submission(job_id, request, queue, 600, group, tenant=tenant)])
    for delivery in range(MAX_DELIVERIES):
        claim = claim_one(ledger, lease_ms=0, queue=queue)
        assert claim.job_id == job_id
        if delivery == 0:
            assert append(ledger, claim, 1, SECRET) == 1
        ledger.reap()


def test_they_are_listed_without_a_word_of_their_texts(letters: DeadLetters, ledger: Ledger) -> None:
    assert letters.list() == []
    give_up(ledger, "first", queue="tiny", tenant="a")
    give_up(ledger, "second")
    ledger.submit([job("alive")])
    found = letters.list()
    assert [(letter.job_id, letter.queue, letter.tenant) for letter in found] == [
        ("first", "tiny", "a"),
        ("second", "default", ""),
    ]
    assert [(letter.deliveries, letter.completion_tokens) for letter in found] == [(MAX_DELIVERIES, 1)] * 2
    assert "gave up after" in found[0].reason
    assert abs(found[0].ended.timestamp() - ledger.redis.time()[0]) < 60
    assert SECRET not in json.dumps([letter.as_json() for letter in found])


def test_one_whose_record_is_gone_is_not_listed(letters: DeadLetters, ledger: Ledger) -> None:
    give_up(ledger, "gone")
    ledger.redis.delete(ledger.keys.job("gone"))
    assert letters.list() == []
    with pytest.raises(JobNotFound):
        letters.show("gone")
    with pytest.raises(JobNotFound):
        letters.requeue("gone")


def test_show_has_the_request_and_the_result(letters: DeadLetters, ledger: Ledger) -> None:
    give_up(ledger, "j")
    shown = letters.show("j")
    assert shown["request"]["prompt"] == SECRET
    assert shown["result"]["error"]["code"] == "too_many_deliveries"
    assert shown["job_id"] == "j"
    ledger.submit([job("alive")])
    for name in ("alive", "nobody"):
        with pytest.raises(JobNotFound, match=f"no dead letter {name}"):
            letters.show(name)


def test_requeued_it_is_a_new_job_that_can_succeed(
    letters: DeadLetters, ledger: Ledger, client: Client, hints: CountedHints, redis: Redis
) -> None:
    give_up(ledger, "old", queue="tiny", tenant="a", group="g")
    before = redis.hgetall(ledger.keys.job("old"))
    new_id = letters.requeue("old")
    assert new_id != "old"
    assert hints.queues == ["tiny"]
    assert client.status(new_id).state is JobState.QUEUED
    claim = claim_one(ledger, queue="tiny")
    assert (claim.job_id, claim.deliveries, claim.seq) == (new_id, 1, 0)
    assert json.loads(claim.request)["prompt"] == SECRET
    assert finish(ledger, claim, text="at last") == 1
    assert client.result(new_id).text == "at last"
    assert client.status("old").state is JobState.FAILED
    assert redis.hgetall(ledger.keys.job("old")) == {**before, "requeued_as": new_id}
    assert redis.hget(ledger.keys.job(new_id), "tenant") == "a"
    assert [job_id for _, job_id in client.endings("g")] == ["old", new_id]
    assert letters.list() == []


def test_requeued_again_after_a_lost_reply_it_is_the_same_new_job(letters: DeadLetters, ledger: Ledger) -> None:
    give_up(ledger, "old")
    assert letters.requeue("old") == letters.requeue("old")
    assert ledger.redis.zcard(ledger.keys.queue("default")) == 1


def test_what_is_no_dead_letter_is_not_requeued(letters: DeadLetters, ledger: Ledger, hints: CountedHints) -> None:
    ledger.submit([job("ended")])
    finish(ledger, claim_one(ledger), JobState.FAILED)
    for name in ("ended", "nobody"):
        with pytest.raises(JobNotFound, match=name):
            letters.requeue(name)
        with pytest.raises(JobNotFound, match=name):
            letters.purge(name)
    assert hints.queues == []
    assert ledger.redis.exists(ledger.keys.job("ended"))


def test_purge_removes_the_record_and_the_log(letters: DeadLetters, ledger: Ledger, redis: Redis) -> None:
    give_up(ledger, "gone")
    give_up(ledger, "kept")
    letters.purge("gone")
    assert redis.exists(ledger.keys.job("gone"), ledger.keys.events("gone")) == 0
    assert redis.exists(ledger.keys.job("kept"), ledger.keys.events("kept")) == 2
    assert [letter.job_id for letter in letters.list()] == ["kept"]
    with pytest.raises(JobNotFound):
        letters.purge("gone")


def test_the_command_lists_and_shows(tmp_path: Path, url: str, ledger: Ledger) -> None:
    give_up(ledger, "j", queue="tiny")
    listed = headrace("dead", "list", "--redis", url, cwd=tmp_path, code=0)
    fields = listed.stdout.rstrip("\n").split("\t")
    assert (fields[0], fields[1], fields[3], fields[4]) == ("j", "tiny", str(MAX_DELIVERIES), "1")
    assert "gave up after" in fields[5]
    as_json = headrace("dead", "list", "--json", "--redis", url, cwd=tmp_path, code=0)
    [letter] = json.loads(as_json.stdout)
    assert letter["job_id"] == "j"
    assert SECRET not in listed.stdout + listed.stderr + as_json.stdout + as_json.stderr
    shown: dict[str, Any] = json.loads(headrace("dead", "show", "j", "--redis", url, cwd=tmp_path, code=0).stdout)
    assert shown["request"]["prompt"] == SECRET


def test_the_command_requeues_and_sends_a_hint(tmp_path: Path, url: str, ledger: Ledger, redis: Redis) -> None:
    for name in ("a", "b", "c"):
        give_up(ledger, name, queue="tiny")
    one = headrace("dead", "requeue", "b", "nobody", "--redis", url, cwd=tmp_path, code=2)
    assert one.stderr == "headrace: there is no dead letter nobody; see `headrace dead list`\n"
    assert headrace("dead", "requeue", "b", "--redis", url, cwd=tmp_path, code=0).stdout == one.stdout
    assert redis.llen("headrace.tiny") == 2
    every = headrace("dead", "requeue", "--all", "--redis", url, cwd=tmp_path, code=0).stdout.split()
    queued = redis.zrange(ledger.keys.queue("tiny"), 0, -1)
    assert [*one.stdout.split(), *every] == queued


def test_the_command_purges(tmp_path: Path, url: str, ledger: Ledger, redis: Redis) -> None:
    for name in ("a", "b", "c"):
        give_up(ledger, name)
    assert headrace("dead", "purge", "b", "--redis", url, cwd=tmp_path, code=0).stdout == "b\n"
    assert not redis.exists(ledger.keys.job("b"))
    assert headrace("dead", "purge", "--all", "--redis", url, cwd=tmp_path, code=0).stdout == "a\nc\n"
    assert headrace("dead", "list", "--redis", url, cwd=tmp_path, code=0).stdout == ""
    assert redis.keys(f"{ledger.keys.prefix}:job:*") == []


@pytest.mark.parametrize("command", ["requeue", "purge"])
def test_ids_or_all_must_be_given_and_not_both(tmp_path: Path, url: str, command: str) -> None:
    for arguments in ([], ["j", "--all"]):
        done = headrace("dead", command, *arguments, "--redis", url, cwd=tmp_path, code=2)
        assert "name the ids, or give --all" in " ".join(done.stderr.replace("│", " ").split())
