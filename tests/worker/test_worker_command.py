"""``headrace worker`` with the demo model, used from the command line as a user does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace.producers import Client, Delta, Finished, JobState
from headrace.worker.embedded import EmbeddedServer
from redis import Redis

from ..support import headrace, started, wait_until

MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def worker(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """The worker, in float32."""
    command = [sys.executable, "-m", "headrace.worker", "--redis", server.url, "--dtype", "float32"]
    with started(*command, cwd=tmp_path_factory.mktemp("worker")) as process, Client(server.url) as client:

        def listed() -> bool:
            assert process.poll() is None, process.stderr and process.stderr.read()
            return bool(client.workers())

        wait_until(listed, "the worker is ready")
        yield process


@pytest.fixture
def sample() -> list[dict[str, Any]]:
    """Prompts, and the model's greedy answers as transformers gives them."""
    path = Path(__file__).parent.parent / "data" / "greedy_fp32_sample.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def test_a_file_over_a_given_server_has_transformers_own_answers(
    worker: subprocess.Popen[str], server: EmbeddedServer, sample: list[dict[str, Any]], tmp_path: Path
) -> None:
    rows = [
        {
            "custom_id": f"r{number}",
            "url": "/v1/chat/completions",
            "body": {
                "messages": [{"role": "user", "content": one["prompt"]}],
                "temperature": 0,
                "max_tokens": len(one["ids"]),
            },
        }
        for number, one in enumerate(sample)
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = headrace("run", "in.jsonl", "-o", "out.jsonl", "--redis", server.url, cwd=tmp_path, code=0)
    assert f"{len(rows)} of {len(rows)} rows: {len(rows)} ok, 0 failed" in done.stderr
    assert "Starting a server" not in done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    bodies = {line["custom_id"]: line["response"]["body"] for line in lines}
    for number, one in enumerate(sample):
        assert bodies[f"r{number}"]["choices"][0]["message"]["content"] == one["text"]
        assert bodies[f"r{number}"]["usage"]["prompt_tokens"] == len(one["prompt_ids"])
        assert bodies[f"r{number}"]["model"] == MODEL


def test_models_submit_stream_status_cancel(
    worker: subprocess.Popen[str], server: EmbeddedServer, tmp_path: Path
) -> None:
    at = ("--redis", server.url)

    def listed() -> list[list[str]]:
        return [line.split("\t")[:3] for line in headrace("models", *at, cwd=tmp_path, code=0).stdout.splitlines()]

    wait_until(lambda: listed() == [[MODEL, "ready", "0"]], "the worker is idle")
    asked = ("submit", "Name three rivers.", "--max-tokens", "8", "--temperature", "0", *at)
    job_id, again = (headrace(*asked, cwd=tmp_path, code=0).stdout.strip() for _ in range(2))
    shown = headrace("stream", job_id, *at, cwd=tmp_path, code=0)
    assert len(shown.stdout) > 8
    assert headrace("stream", again, *at, cwd=tmp_path, code=0).stdout == shown.stdout
    assert headrace("status", job_id, *at, cwd=tmp_path, code=0).stdout == "succeeded\n"
    long = headrace("submit", "Tell a story.", "--max-tokens", "1500", *at, cwd=tmp_path, code=0).stdout.strip()
    assert headrace("cancel", long, *at, cwd=tmp_path, code=0).stdout == "cancelled\n"
    wait_until(lambda: listed() == [[MODEL, "ready", "0"]], "the job is dropped")


def test_c4_sigterm_lets_running_jobs_finish_and_hands_back_the_others(
    worker: subprocess.Popen[str], redis: Redis, client: Client
) -> None:
    running = client.submit("Tell a story.", max_tokens=60, seed=1)
    next(event for event in client.stream(running, timeout=60) if isinstance(event, Delta))
    worker.send_signal(signal.SIGTERM)
    late = client.submit("Too late.", max_tokens=5)
    assert worker.stderr is not None and worker.stdout is not None
    worker.communicate(timeout=60)
    assert worker.returncode == 0
    *_, last = client.stream(running)
    assert isinstance(last, Finished)
    assert (last.result.state, last.result.attempt) == (JobState.SUCCEEDED, 1)
    assert client.status(late).state is JobState.QUEUED
    assert redis.hget(client.keys.job(late), "deliveries") == "0", "what it could not begin does not count"
    assert client.workers() == [], "it has signed off"


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--redis", "redis://:SECRET@127.0.0.1:1/0"), 3, "no Redis answers at redis://:***@127.0.0.1:1/0"),
        (("--model", "./nowhere"), 2, "no model './nowhere'"),
    ],
)
def test_what_cannot_start_says_why_in_one_sentence(
    server: EmbeddedServer, tmp_path: Path, flags: tuple[str, ...], code: int, words: str
) -> None:
    done = headrace("worker", *flags, cwd=tmp_path, variables={"HEADRACE_REDIS_URL": server.url}, code=code)
    assert words in done.stderr.splitlines()[-1]
    assert "SECRET" not in done.stderr
    assert done.stdout == ""


def test_a_worker_that_loads_its_model_is_starting(
    worker: subprocess.Popen[str], server: EmbeddedServer, redis: Redis, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "headrace.worker", "--redis", server.url, "--model", "./none", "--prefix", "p"]
    with started(*command, cwd=tmp_path) as loading:
        wait_until(lambda: redis.zrange("p:workers", 0, -1), "it has reported")
        asked = headrace("health", "--redis", server.url, "--prefix", "p", cwd=tmp_path, code=6)
        assert "is starting; wait" in asked.stderr
        assert loading.wait(60) == 2
        assert loading.stderr is not None
        assert "headrace worker: " in loading.stderr.read()
    assert headrace("models", "--redis", server.url, "--prefix", "p", cwd=tmp_path).stdout == ""
