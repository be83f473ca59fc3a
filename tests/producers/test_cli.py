"""The command line as a user meets it: exit codes, one sentence on standard error, data on standard output."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from headrace.producers import Client, JobState
from headrace.producers.ledger import Ledger
from redis import Redis

from ..support import HEADRACE, headrace, started, wait_until
from .attempts import append, claim_one, finish

NOWHERE = "redis://:SECRET@127.0.0.1:1/0"


def one_sentence(text: str, *words: str) -> None:
    """Standard error is one line and says what it must."""
    assert text.count("\n") == 1, text
    for word in words:
        assert word in text


def test_help_states_the_exit_codes(tmp_path: Path) -> None:
    shown = headrace("--help", cwd=tmp_path, code=0)
    codes = {
        "0": "all rows answered",
        "1": "finished, and some rows failed",
        "2": "bad usage or bad input",
        "3": "no Redis answers",
        "4": "no worker serves the model",
        "5": "the output file belongs to other input",
        "6": "health: a worker is starting",
        "7": "health: a worker is draining, and no other is ready",
        "8": "too many jobs wait, or Redis is nearly full; try again later",
        "9": "the tenant or its token is refused",
        "130": "interrupted; the same command goes on",
    }
    for code, meaning in codes.items():
        assert f"  {code:<3} {meaning}\n" in shown.stdout
    assert shown.stderr == ""


@pytest.mark.parametrize(
    "command",
    [
        *("run", "submit", "stream", "status", "cancel", "models", "health", "limits", "limits set", "limits clear"),
        *("dead list", "dead show", "dead requeue", "dead purge", "tenants add", "tenants list", "tenants remove"),
    ],
)
def test_every_command_has_help(tmp_path: Path, command: str) -> None:
    shown = headrace(*command.split(), "--help", cwd=tmp_path, code=0)
    assert "--redis" in shown.stdout
    assert "HEADRACE_REDIS_URL" in shown.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("--bogus",),
        ("bogus",),
        ("submit", "hi", "--bogus"),
        ("submit",),
        ("submit", "hi", "--max-tokens", "many"),
        ("submit", "hi", "--param", "n"),
        ("submit", "hi", "--param", "=3"),
        ("submit", "hi", "--param", "n=3", "--param", "n=3"),
        ("submit", "hi", "--seed", "0", "--param", "seed=1"),
        ("submit", "hi", "--param", "messages=[]"),
        ("stream", "j", "--index", "-1"),
        ("stream", "j", "--index", "all"),
        ("run", "missing.jsonl", "-o", "out.jsonl"),
        ("run", ".", "-o", "out.jsonl"),
        ("run", "--kv-cache-memory", "0", "in.jsonl", "-o", "out.jsonl"),
        ("run", "in.jsonl"),
    ],
)
def test_wrong_usage_is_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "in.jsonl").touch()
    done = headrace(*arguments, cwd=tmp_path, code=2)
    assert done.stdout == ""
    assert "Error" in done.stderr


def test_a_refused_request_is_2(tmp_path: Path, url: str) -> None:
    done = headrace("submit", "hi", "--temperature", "3", "--redis", url, cwd=tmp_path, code=2)
    one_sentence(done.stderr, "headrace: temperature: ", "less than or equal to 2")
    assert done.stdout == ""


def test_any_field_of_a_body_can_be_given(tmp_path: Path, url: str, ledger: Ledger) -> None:
    fields: dict[str, Any] = {
        "n": 3,
        "presence_penalty": -0.5,
        "ignore_eos": True,
        "stop": ["a=b", "."],
        "logit_bias": {"5": 2.0},
        "guided_regex": "[0-9]+ =",
        "cache_salt": "NaN",
        "max_tokens": 7,
    }
    given = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in fields.items()]
    arguments = [part for pair in given for part in ("--param", pair)]
    headrace(
        "submit", "hi", "--tenant", "a", "--priority", "9", *arguments, "--redis", url, cwd=tmp_path, code=0
    )  # fmt: skip
    body = json.loads(claim_one(ledger).request)
    assert body.items() >= {**fields, "tenant": "a", "priority": 9}.items()


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        ("bogus=1", ["unknown parameter 'bogus'"]),
        ("n=many", ["n: ", "valid integer"]),
        ("suffix=x", ["suffix is not supported"]),
        ("prompt=x", ["either messages or prompt"]),
        ("priority=10", ["priority: ", "less than 10"]),
    ],
)
def test_a_field_that_cannot_be_is_2(tmp_path: Path, url: str, parameter: str, words: list[str]) -> None:
    done = headrace("submit", "hi", "--param", parameter, "--redis", url, cwd=tmp_path, code=2)
    one_sentence(done.stderr, "headrace: ", *words)
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["status", "stream", "cancel"])
def test_an_unknown_job_is_2(tmp_path: Path, url: str, command: str) -> None:
    done = headrace(command, "nobody", "--redis", url, cwd=tmp_path, code=2)
    one_sentence(done.stderr, "headrace: there is no job nobody")
    assert done.stdout == ""


@pytest.mark.parametrize("arguments", [("submit", "hi"), ("status", "j"), ("stream", "j"), ("models",), ("run",)])
def test_no_redis_is_3_and_no_password_is_shown(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    if arguments == ("run",):
        row = {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x"}}
        (tmp_path / "in.jsonl").write_text(json.dumps(row))
        arguments = ("run", "in.jsonl", "-o", "out.jsonl")
    done = headrace(*arguments, "--redis", NOWHERE, cwd=tmp_path, code=3)
    one_sentence(done.stderr, "no Redis answers at redis://:***@127.0.0.1:1/0")
    assert "SECRET" not in done.stderr
    assert done.stdout == ""


def test_the_address_may_come_from_the_environment(tmp_path: Path) -> None:
    done = headrace("status", "j", cwd=tmp_path, variables={"HEADRACE_REDIS_URL": NOWHERE}, code=3)
    one_sentence(done.stderr, "127.0.0.1:1/0")


@pytest.mark.parametrize("url", ["http://:SECRET@h", "sentinel://:SECRET@h:26379"])
def test_what_is_no_url_is_2(tmp_path: Path, url: str) -> None:
    shown = f"'{url.replace('SECRET', '***')}' is no Redis URL"
    done = headrace("status", "j", "--redis", url, cwd=tmp_path, code=2)
    one_sentence(done.stderr, shown)
    (tmp_path / "in.jsonl").write_text('{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x"}}')
    done = headrace("run", "in.jsonl", "-o", "out.jsonl", "--redis", url, cwd=tmp_path, code=2)
    one_sentence(done.stderr, shown)


def test_no_worker_is_4(tmp_path: Path, url: str) -> None:
    done = headrace("models", "--redis", url, cwd=tmp_path, code=4)
    one_sentence(done.stderr, "no worker listens", "headrace worker")
    assert done.stdout == ""
    (tmp_path / "in.jsonl").write_text('{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x"}}')
    done = headrace("run", "in.jsonl", "-o", "out.jsonl", "--redis", url, cwd=tmp_path, code=4)
    assert done.stderr.splitlines()[-1].startswith("headrace run: no worker listens")


def test_no_worker_is_said_without_the_password(tmp_path: Path, url: str) -> None:
    login = f"{url}&username=default&password=SECRET"
    done = headrace("models", "--redis", login, cwd=tmp_path, code=4)
    one_sentence(done.stderr, "password=***")
    (tmp_path / "in.jsonl").write_text('{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x"}}')
    done = headrace("run", "in.jsonl", "-o", "out.jsonl", "--redis", login, cwd=tmp_path, code=4)
    assert "SECRET" not in done.stderr


def test_the_command_that_goes_on_is_printed_without_the_password(
    tmp_path: Path, url: str, redis: Redis, client: Client
) -> None:
    said: dict[Any, Any] = {"model": "m", "state": "ready", "running": 0, "generation_tokens": 0, "peak_running": 0}
    redis.hset(client.keys.worker("w"), mapping=said)
    redis.zadd(client.keys.workers, {"w": 1})
    (tmp_path / "in.jsonl").write_text('{"custom_id": "a", "url": "/v1/bogus", "body": {}}')
    login = f"{url}&username=default&password=SECRET"
    done = headrace("run", "in.jsonl", "-o", "out.jsonl", "--redis", login, cwd=tmp_path, code=1)
    assert "--retry-failed" in done.stderr and "password=***" in done.stderr
    assert "SECRET" not in done.stderr


def test_a_job_from_submit_to_its_text(tmp_path: Path, url: str, ledger: Ledger) -> None:
    done = headrace(
        "submit", "-", "--system", "Be brief.", "--max-tokens", "9", "--seed", "3", "--redis", url,
        cwd=tmp_path, stdin="Name a river.", code=0,
    )  # fmt: skip
    job_id = done.stdout.strip()
    assert done.stderr == ""
    assert headrace("status", job_id, "--redis", url, cwd=tmp_path, code=0).stdout == "queued\n"
    claim = claim_one(ledger)
    body = json.loads(claim.request)
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Name a river."},
    ]
    assert (body["max_tokens"], body["seed"]) == (9, 3)
    append(ledger, claim, 1, "The Rhine ")
    append(ledger, claim, 2, "\U0001f525")
    finish(ledger, claim, text="The Rhine \U0001f525")
    shown = headrace("stream", job_id, "--redis", url, cwd=tmp_path, code=0)
    assert (shown.stdout, shown.stderr) == ("The Rhine \U0001f525\n", "")
    known = json.loads(headrace("status", job_id, "--json", "--redis", url, cwd=tmp_path, code=0).stdout)
    assert known["result"]["choices"][0]["text"] == "The Rhine \U0001f525"
    assert headrace("cancel", job_id, "--redis", url, cwd=tmp_path, code=0).stdout == "succeeded\n"


def test_a_raw_prompt(tmp_path: Path, url: str, ledger: Ledger) -> None:
    headrace("submit", "Once", "--raw", "--redis", url, cwd=tmp_path, code=0)
    assert json.loads(claim_one(ledger).request)["prompt"] == "Once"


def test_a_job_without_an_answer_is_1(tmp_path: Path, url: str, client: Client, ledger: Ledger) -> None:
    job_id = client.submit("hi")
    assert headrace("cancel", job_id, "--redis", url, cwd=tmp_path, code=0).stdout == "cancelled\n"
    done = headrace("stream", job_id, "--redis", url, cwd=tmp_path, code=1)
    one_sentence(done.stderr, f"job {job_id} cancelled")
    failed = client.submit("hi")
    finish(ledger, claim_one(ledger), JobState.FAILED)
    assert headrace("status", failed, "--redis", url, cwd=tmp_path, code=0).stdout == "failed\n"


def test_ctrl_c_is_130(tmp_path: Path, url: str, client: Client, ledger: Ledger) -> None:
    job_id = client.submit("hi")
    append(ledger, claim_one(ledger), 1, "begun")
    with started(*HEADRACE, "stream", job_id, "--redis", url, cwd=tmp_path) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(5) == "begun"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert "Traceback" not in process.stderr.read()
    assert client.status(job_id).state is JobState.RUNNING


def test_a_reader_that_went_away_is_no_traceback(tmp_path: Path, url: str, client: Client, ledger: Ledger) -> None:
    job_id = client.submit("hi")
    claim = claim_one(ledger)
    append(ledger, claim, 1, "begun")
    with started(*HEADRACE, "stream", job_id, "--redis", url, cwd=tmp_path) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(5) == "begun"
        process.stdout.close()
        for seq in range(2, 9):
            append(ledger, claim, seq, "more")
        finish(ledger, claim)
        wait_until(lambda: process.poll() is not None, "the command has ended")
        assert "Traceback" not in process.stderr.read()
        process.stdout = None
