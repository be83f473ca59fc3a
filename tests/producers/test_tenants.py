"""Tenants with tokens: each operation, tried by its owner, by another tenant, by nobody, and by the operator."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from headrace.producers import (
    AccessDenied,
    AsyncClient,
    Client,
    HeadraceError,
    InvalidRequest,
    JobNotFound,
    JobState,
    tenants,
)
from headrace.producers.ledger import MAX_DELIVERIES, Ledger
from headrace.producers.tenants import OPERATOR, Credentials, add_tenant, digest, remove_tenant
from redis import Redis

from ..support import headrace, wait_until
from ..worker.services import service
from .attempts import append, claim_one, finish
from .run_files import RunFiles, row


@dataclass(frozen=True)
class Tenants:
    """A server that keeps two tenants apart, and their clients."""

    url: str
    tokens: dict[str, str]

    def client(self, name: str) -> Client:
        return Client(self.url, tenant=name, tenant_token=self.tokens[name])

    def async_client(self, name: str) -> AsyncClient:
        return AsyncClient(self.url, tenant=name, tenant_token=self.tokens[name])

    def variables(self, name: str) -> dict[str, str]:
        return {"HEADRACE_TENANT": name, "HEADRACE_TENANT_TOKEN": self.tokens[name]}


@pytest.fixture
def two(url: str, ledger: Ledger) -> Tenants:
    tokens = {name: add_tenant(ledger.redis, ledger.keys, name) for name in ("ann", "bob", OPERATOR)}
    return Tenants(url, tokens)


@pytest.fixture
def ann(two: Tenants) -> Iterator[Client]:
    with two.client("ann") as client:
        yield client


@pytest.fixture
def bob(two: Tenants) -> Iterator[Client]:
    with two.client("bob") as client:
        yield client


ON_A_JOB: dict[str, Callable[[Client, str], Any]] = {
    "status": lambda client, job_id: client.status(job_id),
    "result": lambda client, job_id: client.result(job_id, timeout=0.2),
    "request": lambda client, job_id: client.request(job_id),
    "cancel": lambda client, job_id: client.cancel(job_id),
    "stream": lambda client, job_id: list(client.stream(job_id, timeout=0.2)),
    "stream from a position": lambda client, job_id: list(client.stream(job_id, after="1-0", timeout=0.2)),
}


async def _async_stream(client: AsyncClient, job_id: str) -> list[Any]:
    return [event async for event in client.stream(job_id, timeout=0.2)]


ASYNC_ON_A_JOB: dict[str, Callable[[AsyncClient, str], Coroutine[Any, Any, Any]]] = {
    "status": lambda client, job_id: client.status(job_id),
    "result": lambda client, job_id: client.result(job_id, timeout=0.2),
    "request": lambda client, job_id: client.request(job_id),
    "cancel": lambda client, job_id: client.cancel(job_id),
    "stream": _async_stream,
}


def error_of(action: Callable[[str], Any], job_id: str) -> tuple[type[Exception], str]:
    """What an action on a job raises, with the job's id left out of its words."""
    with pytest.raises(HeadraceError) as raised:
        action(job_id)
    return type(raised.value), str(raised.value).replace(job_id, "ID")


def states(client: Client, ledger: Ledger) -> dict[str, str]:
    """A job in each state."""
    ids = {}
    for name in ("ended", "running", "queued"):
        ids[name] = client.submit("a secret", group="g")
        if name != "queued":
            claim = claim_one(ledger)
            append(ledger, claim, 1, "text")
            if name == "ended":
                finish(ledger, claim, text="text")
    return ids


@pytest.mark.parametrize("operation", ON_A_JOB)
def test_anothers_job_is_not_there(
    two: Tenants, ann: Client, bob: Client, ledger: Ledger, redis: Redis, operation: str
) -> None:
    act = partial(ON_A_JOB[operation], bob)
    missing = error_of(act, "nobody")
    for job_id in states(ann, ledger).values():
        before = redis.hgetall(ledger.keys.job(job_id))
        assert error_of(act, job_id) == missing
        assert missing[0] is JobNotFound
        assert redis.hgetall(ledger.keys.job(job_id)) == before


@pytest.mark.parametrize("operation", ASYNC_ON_A_JOB)
def test_nor_for_the_asyncio_client(two: Tenants, ann: Client, ledger: Ledger, redis: Redis, operation: str) -> None:
    async def ask(job_id: str) -> None:
        async with two.async_client("bob") as client:
            await ASYNC_ON_A_JOB[operation](client, job_id)

    def act(job_id: str) -> None:
        asyncio.run(ask(job_id))

    missing = error_of(act, "nobody")
    for job_id in states(ann, ledger).values():
        before = redis.hgetall(ledger.keys.job(job_id))
        assert error_of(act, job_id) == missing
        assert missing[0] is JobNotFound
        assert redis.hgetall(ledger.keys.job(job_id)) == before


def test_its_owner_and_the_operator_have_it(two: Tenants, ann: Client, ledger: Ledger) -> None:
    with two.client(OPERATOR) as operator:
        for client in (ann, operator):
            ids = states(ann, ledger)
            assert client.status(ids["queued"]).state is JobState.QUEUED
            assert client.result(ids["ended"], timeout=5).text == "text"
            assert client.request(ids["queued"])["tenant"] == "ann"
            assert len(list(client.stream(ids["ended"], timeout=5))) == 3
            assert set(client.results(list(ids.values()))) == {ids["ended"]}
            assert client.cancel(ids["running"]) is client.cancel(ids["queued"]) is JobState.CANCELLED

    async def read(name: str, job_id: str) -> None:
        async with two.async_client(name) as client:
            assert (await client.status(job_id)).state is JobState.SUCCEEDED
            assert (await client.result(job_id)).text == "text"

    asyncio.run(read("ann", ids["ended"]))
    asyncio.run(read(OPERATOR, ids["ended"]))


def test_results_and_endings_leave_out_the_jobs_of_others(ann: Client, bob: Client, ledger: Ledger) -> None:
    ids = {}
    for name, client in (("ann", ann), ("bob", bob), ("ann again", ann)):
        ids[name] = client.submit("hi", group="same")
        finish(ledger, claim_one(ledger), text=name)
    everything = list(ids.values())
    assert set(ann.results(everything)) == {ids["ann"], ids["ann again"]}
    assert set(bob.results(everything)) == {ids["bob"]}
    ended = ann.endings("same", block_ms=1)
    assert [job_id for _, job_id in ended] == [ids["ann"], ids["ann again"]]
    assert [job_id for _, job_id in bob.endings("same", block_ms=1)] == [ids["bob"]]
    assert bob.endings("same", after=ended[1][0], block_ms=1) == []


def test_endings_that_are_all_anothers_are_waited_out(ann: Client, bob: Client, ledger: Ledger) -> None:
    for _ in range(3):
        ann.submit("hi", group="same")
        finish(ledger, claim_one(ledger))
    assert bob.endings("same", block_ms=50) == []


def test_jobs_are_on_the_account_of_who_submits_them(ann: Client, two: Tenants, ledger: Ledger, redis: Redis) -> None:
    ann.submit("hi", job_id="a")
    ann.submit("hi", job_id="b", tenant="ann")
    for job_id in ("a", "b"):
        assert redis.hget(ledger.keys.job(job_id), "tenant") == "ann"
        assert json.loads(claim_one(ledger).request)["tenant"] == "ann"
    with pytest.raises(AccessDenied, match="'ann' may not submit jobs of the tenant 'bob'"):
        ann.submit("hi", tenant="bob")
    with pytest.raises(AccessDenied):
        ann.submit_many(["fine", {"prompt": "not fine", "tenant": "bob"}])

    async def submit(**body: Any) -> str:
        async with two.async_client("bob") as client:
            return await client.submit("hi", **body)

    assert redis.hget(ledger.keys.job(asyncio.run(submit())), "tenant") == "bob"
    with pytest.raises(AccessDenied):
        asyncio.run(submit(tenant="ann"))
    with two.client(OPERATOR) as operator:
        assert redis.hget(ledger.keys.job(operator.submit("hi", tenant="ann")), "tenant") == "ann"
        assert redis.hget(ledger.keys.job(operator.submit("hi")), "tenant") == ""
    assert all(token not in str(redis.hgetall(key)) for key in redis.keys("*:job:*") for token in two.tokens.values())


def test_an_id_of_anothers_job_is_taken(ann: Client, bob: Client, two: Tenants, redis: Redis, ledger: Ledger) -> None:
    ann.submit("hers", job_id="j")
    before = redis.hgetall(ledger.keys.job("j"))
    with pytest.raises(InvalidRequest, match="the job id 'j' is taken") as refused:
        bob.submit("his", job_id="j")
    assert (refused.value.code, refused.value.param) == ("job_id_taken", "job_id")

    async def submit() -> None:
        async with two.async_client("bob") as client:
            await client.submit("his", job_id="j")

    with pytest.raises(InvalidRequest, match="is taken"):
        asyncio.run(submit())
    assert redis.hgetall(ledger.keys.job("j")) == before
    assert ann.submit("hers", job_id="j") == "j"


def _on_job_j(act: Callable[[Client, str], Any]) -> Callable[[Client], Any]:
    return lambda client: act(client, "j")


CALLS: dict[str, Callable[[Client], Any]] = {
    **{name: _on_job_j(act) for name, act in ON_A_JOB.items()},
    "submit": lambda client: client.submit("hi"),
    "submit_many": lambda client: client.submit_many(["hi"]),
    "results": lambda client: client.results(["j"]),
    "endings": lambda client: client.endings("g", block_ms=1),
    "workers": lambda client: client.workers(),
    "access": lambda client: client.access(),
}


def test_every_operation_is_in_these_tests() -> None:
    operations = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert operations - {"close"} == set(CALLS) - {"stream from a position"}
    others = {name for name, _ in inspect.getmembers(AsyncClient, inspect.isfunction) if not name.startswith("_")}
    assert others - {"close", "submit", "submit_many", "access"} == set(ASYNC_ON_A_JOB)


@pytest.mark.parametrize(
    ("tenant", "token", "words"),
    [
        (None, None, "this server keeps tenants apart; give tenant and tenant_token, or set HEADRACE_TENANT"),
        ("ann", None, "this server keeps tenants apart"),
        (None, "the token", "this server keeps tenants apart"),
        ("ann", "wrong", "there is no tenant 'ann' with this token"),
        ("nobody", "wrong", "there is no tenant 'nobody' with this token"),
        (OPERATOR, "wrong", "there is no tenant '*' with this token"),
        ("bob", "ann's", "there is no tenant 'bob' with this token"),
        ("ann", "\udcff", "there is no tenant 'ann' with this token"),
    ],
)
def test_without_the_right_token_nothing_goes(
    two: Tenants, redis: Redis, tenant: str | None, token: str | None, words: str
) -> None:
    if token == "ann's":
        token = two.tokens["ann"]
    keys = set(redis.keys("*"))
    with Client(two.url, tenant=tenant, tenant_token=token) as client:
        for act in CALLS.values():
            with pytest.raises(AccessDenied) as denied:
                act(client)
            assert str(denied.value).startswith(words)
            assert token is None or token not in str(denied.value)

    async def act_async(name: str) -> None:
        async with AsyncClient(two.url, tenant=tenant, tenant_token=token) as client:
            await ({"submit": lambda c, _: c.submit("hi"), **ASYNC_ON_A_JOB}[name])(client, "j")

    for name in ("submit", *ASYNC_ON_A_JOB):
        with pytest.raises(AccessDenied):
            asyncio.run(act_async(name))
    assert set(redis.keys("*")) == keys


def test_credentials_come_from_the_environment_and_are_not_shown(two: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in two.variables("ann").items():
        monkeypatch.setenv(name, value)
    with Client(two.url) as client:
        assert client.access().tenant == "ann"
    with Client(two.url, tenant="bob", tenant_token=two.tokens["bob"]) as client:
        assert client.access().tenant == "bob"
    shown = repr(Credentials.chosen())
    assert "ann" in shown and two.tokens["ann"] not in shown


def test_where_there_are_no_tenants_nobody_is_asked(url: str, redis: Redis, ledger: Ledger) -> None:
    with Client(url, tenant="ann", tenant_token="whatever") as ann, Client(url) as other:
        job_id = ann.submit("hi")
        assert redis.hget(ledger.keys.job(job_id), "tenant") == "ann", "whose account it is counts all the same"
        assert other.status(job_id).state is JobState.QUEUED
        assert redis.hget(ledger.keys.job(ann.submit("hi", tenant="x")), "tenant") == "x"


def test_a_token_is_looked_at_again_after_a_while(
    two: Tenants, ledger: Ledger, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two.client("ann") as ann, two.client("bob") as bob:
        assert ann.access() == ann.access()
        bob.access()
        remove_tenant(redis, ledger.keys, "ann")
        assert ann.access().tenant == "ann", "it is remembered"
        monkeypatch.setattr(tenants, "CACHE_SECONDS", 0.0)
        with pytest.raises(AccessDenied):
            ann.access()
        assert bob.access().tenant == "bob"


def test_only_a_digest_is_kept(two: Tenants, redis: Redis, ledger: Ledger) -> None:
    kept = redis.hgetall(ledger.keys.tenants)
    assert kept == {name: digest(token) for name, token in two.tokens.items()}
    assert len(set(two.tokens.values())) == 3
    assert all(len(token) >= 40 for token in two.tokens.values())


def test_the_command_gives_out_tokens_and_takes_them_back(tmp_path: Path, url: str, redis: Redis) -> None:
    token = headrace("tenants", "add", "ann", "--redis", url, cwd=tmp_path, code=0).stdout.strip()
    with Client(url, tenant="ann", tenant_token=token) as client:
        job_id = client.submit("hi")
    done = headrace("tenants", "add", "ann", "--redis", url, cwd=tmp_path, code=2)
    assert done.stderr == "headrace: there is a tenant 'ann' already; remove it to give it a new token\n"
    headrace("tenants", "add", "a b", "--redis", url, cwd=tmp_path, code=2)
    assert headrace("tenants", "list", "--redis", url, cwd=tmp_path, code=0).stdout == "ann\n"
    done = headrace("status", job_id, "--redis", url, cwd=tmp_path, code=9)
    assert done.stderr.count("\n") == 1
    assert "this server keeps tenants apart" in done.stderr
    variables = {"HEADRACE_TENANT": "ann", "HEADRACE_TENANT_TOKEN": token}
    assert headrace("status", job_id, "--redis", url, cwd=tmp_path, variables=variables, code=0).stdout == "queued\n"
    headrace("tenants", "remove", "bob", "--redis", url, cwd=tmp_path, code=2)
    done = headrace("tenants", "remove", "ann", "--redis", url, cwd=tmp_path, code=0)
    assert "nobody is asked for a token any more" in done.stderr
    assert headrace("status", job_id, "--redis", url, cwd=tmp_path, code=0).stdout == "queued\n"


OPERATORS = [
    ("dead", "list"),
    ("dead", "show", "dead"),
    ("dead", "requeue", "dead"),
    ("dead", "requeue", "--all"),
    ("dead", "purge", "dead"),
    ("dead", "purge", "--all"),
    ("limits",),
    ("limits", "set", "--queue", "5"),
    ("limits", "clear"),
    ("tenants", "list"),
    ("tenants", "add", "carl"),
    ("tenants", "remove", "bob"),
]


def test_what_is_for_the_operator_is_for_nobody_else(
    tmp_path: Path, two: Tenants, ann: Client, ledger: Ledger, redis: Redis
) -> None:
    ann.submit("hi", job_id="dead")
    for _ in range(MAX_DELIVERIES):
        claim_one(ledger, lease_ms=0)
        ledger.reap()

    def contents() -> dict[str, Any]:
        hashes = {key: redis.hgetall(key) for key in (ledger.keys.tenants, ledger.keys.limits)}
        return {**hashes, "dead": redis.zrange(ledger.keys.dead, 0, -1), "keys": set(redis.keys("*"))}

    before = contents()
    for command in OPERATORS:
        done = headrace(*command, "--redis", two.url, cwd=tmp_path, variables=two.variables("ann"), code=9)
        assert done.stderr == "headrace: only the tenant '*', the operator, may do this\n"
        assert done.stdout == ""
    headrace("dead", "list", "--redis", two.url, cwd=tmp_path, code=9)
    assert contents() == before
    for command in (("limits", "set", "--queue", "5"), ("dead", "requeue", "dead"), ("tenants", "remove", "bob")):
        headrace(*command, "--redis", two.url, cwd=tmp_path, variables=two.variables(OPERATOR), code=0)
    assert redis.hget(ledger.keys.limits, "queue") == "5"
    assert redis.hkeys(ledger.keys.tenants) == ["ann", OPERATOR]


def test_a_run_is_on_its_tenants_account(
    tmp_path: Path, two: Tenants, bob: Client, redis: Redis, ledger: Ledger, tiny_model: Path
) -> None:
    files = RunFiles(tmp_path, ("--redis", two.url))
    files.write(row("mine"), row("named", tenant="ann"), row("bob's", tenant="bob"))
    assert "this server keeps tenants apart" in files.run(code=9)
    with service(two.url, tiny_model):
        done = headrace(*files.arguments(), cwd=tmp_path, variables={**files.variables, **two.variables("ann")}, code=1)
    assert "3 of 3 rows: 2 ok, 1 failed" in done.stderr
    errors = {line["custom_id"]: line["error"] for line in files.lines()}
    assert errors["mine"] is errors["named"] is None
    assert errors["bob's"]["code"] == "access_denied"
    assert "in.jsonl:3: the tenant 'ann' may not submit jobs of the tenant 'bob'" in errors["bob's"]["message"]
    assert {redis.hget(key, "tenant") for key in redis.keys(ledger.keys.job("*"))} == {"ann"}
    wait_until(lambda: not bob.workers(), "the worker is gone")
