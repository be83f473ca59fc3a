"""headrace from a plain Celery application that has no torch: delay, chains, chords, revoke, inspect."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from headrace.producers import Client, Finished, JobState, Started
from headrace.producers.celery_broker import celery_url
from headrace.producers.hints import UNACKED_INDEX, HintSender, celery_settings
from headrace.worker.embedded import EmbeddedServer
from redis import Redis

from ..support import environment, started, wait_until
from .services import WorkerProcess, worker_process

VISIBILITY_S = 2
UNACKED = celery_settings("redis://")["broker_transport_options"]["unacked_key"]
SLOW = {"max_tokens": 500, "ignore_eos": True}


@pytest.fixture(scope="module")
def worker(
    server: EmbeddedServer, redis: Redis, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    """One worker, to which Celery messages seem lost very soon."""
    directory = tmp_path_factory.mktemp("workers")
    with worker_process(
        "w", server.url, redis, tiny_model, directory, step_seconds=0.01, visibility_s=VISIBILITY_S
    ) as process:
        process.wait_until_ready()
        yield process


@pytest.fixture(scope="module")
def app(server: EmbeddedServer) -> Celery:
    """An application that knows nothing of headrace but a task's name."""
    url = celery_url(server.url)
    return Celery("plain", broker=url, backend=url, set_as_current=False)


APPLICATION = """
import sys
for name in ("torch", "transformers", "triton", "tokenizers", "numpy"):
    sys.modules[name] = None
from celery import Celery, chain, chord, group
app = Celery("mine", broker=sys.argv[1], backend=sys.argv[1])
from headrace.producers.tasks import generate

short = {"max_tokens": 4, "ignore_eos": True, "seed": 1}
one = generate.delay("Name three rivers.", **short).get(timeout=60)
assert one["state"] == "succeeded" and one["completion_tokens"] == 4, one

sent = app.send_task("headrace.generate", ["Name three rivers."], short, queue="headrace").get(timeout=60)
assert sent["text"] == one["text"], (sent, one)

body = {"messages": [{"role": "user", "content": "Name three rivers."}]}
assert generate.delay(body, **short).get(timeout=60)["text"] == one["text"]
assert generate.delay(request="Name three rivers.", **short).get(timeout=60)["text"] == one["text"]

second = chain(generate.s("Name three rivers.", **short), generate.s(**short))().get(timeout=60)
again = generate.delay(one["text"], **short).get(timeout=60)
assert second["text"] == again["text"], (second, again)

many = group(generate.s(f"Prompt {number}", **short) for number in range(8))().get(timeout=60)
assert [each["completion_tokens"] for each in many] == [4] * 8
assert len({each["job_id"] for each in many}) == 8

for arguments, parameters, words in [
    (["hi"], {"temperature": 3}, "temperature"),
    (["hi"], {"bogus": 1}, "unknown parameter 'bogus'"),
    (["hi", "ho"], {}, "one positional argument"),
    ([], {}, "give either messages or prompt"),
    ([5], {}, "must be a text"),
    ([{"prompt": ""}], {}, "prompt is empty"),
]:
    result = app.send_task("headrace.generate", arguments, parameters, queue="headrace")
    try:
        result.get(timeout=60)
    except Exception as error:
        assert type(error).__name__ == "JobFailed", repr(error)
        assert words in str(error), error
    else:
        raise AssertionError(parameters)
    assert result.state == "FAILURE"

assert generate.delay("after all that", **short).get(timeout=60)["state"] == "succeeded"
print("all went well")
"""


def test_a_plain_application_without_torch(worker: WorkerProcess, server: EmbeddedServer, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", APPLICATION, celery_url(server.url)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == "all went well\n", done.stderr
    assert worker.process.poll() is None


OWN_TASKS = """
import sys
from celery import Celery, chain, chord
app = Celery("mine", broker=sys.argv[1], backend=sys.argv[1])

@app.task(name="mine.count")
def count(results):
    results = results if isinstance(results, list) else [results]
    return sum(result["completion_tokens"] for result in results)

from headrace.producers.tasks import generate
if sys.argv[2] == "worker":
    app.worker_main(["worker", "-P", "solo", "-l", "WARNING"])
else:
    parts = [generate.s(f"Prompt {number}", max_tokens=3, ignore_eos=True) for number in range(5)]
    print(chord(parts)(count.s()).get(timeout=60), chain(parts[0], count.s())().get(timeout=60))
"""


def test_chains_and_chords_go_on_with_the_applications_own_tasks(
    worker: WorkerProcess, server: EmbeddedServer, tmp_path: Path
) -> None:
    program = tmp_path / "mine.py"
    program.write_text(OWN_TASKS)
    command = [sys.executable, str(program), celery_url(server.url)]
    with started(*command, "worker", cwd=tmp_path):
        done = subprocess.run(
            [*command, "producer"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.stdout == "15 3\n", done.stderr


def send(app: Celery, **parameters: Any) -> Any:
    return app.send_task("headrace.generate", ["prompt"], parameters, queue="headrace")


def test_c1_a_held_message_is_not_delivered_twice(
    worker: WorkerProcess, app: Celery, client: Client, redis: Redis
) -> None:
    begun = time.monotonic()
    result = send(app, **SLOW)
    wait_until(lambda: redis.zcard(UNACKED_INDEX) == 1, "the message is held")
    redelivered = 0
    while not result.ready():
        redelivered += sum('"redelivered": true' in message for message in redis.hvals(UNACKED))
        time.sleep(0.05)
    assert time.monotonic() - begun > 2 * VISIBILITY_S, "the job was no longer than the timeout"
    assert result.get(timeout=100)["completion_tokens"] == 500
    assert redelivered == 0
    events = list(client.stream(result.id))
    assert sum(isinstance(event, Started) for event in events) == 1
    assert client.status(result.id).attempt == 1
    wait_until(lambda: redis.zcard(UNACKED_INDEX) == 0, "the message is acknowledged")
    assert redis.llen("headrace") == 0


def test_a_finished_task_is_acknowledged_without_another_event(
    worker: WorkerProcess, app: Celery, redis: Redis
) -> None:
    """Celery's loop, when nothing happens, sleeps up to a second before it looks for acknowledgements."""
    waited = []
    for _ in range(7):
        wait_until(lambda: redis.zcard(UNACKED_INDEX) == 0, "nothing is held")
        send(app, max_tokens=2, ignore_eos=True).get(timeout=60)
        begun = time.monotonic()
        wait_until(lambda: redis.zcard(UNACKED_INDEX) == 0, "the message is acknowledged")
        waited.append(time.monotonic() - begun)
    assert sorted(waited)[3] < 0.1, waited


def message_with(**changed: Any) -> bytes:
    """A message as Celery's producers write it, but for some parts of it."""
    properties = {"delivery_tag": "a", "delivery_info": {"exchange": "", "routing_key": "headrace"}}
    headers = {"task": "headrace.generate", "id": "a", "lang": "py"}
    body = base64.b64encode(b'[["prompt"], {"max_tokens": 2}, {}]').decode()
    message = {"body": body, "properties": properties | {"body_encoding": "base64"}, "headers": headers}
    encoding = {"content-type": "application/json", "content-encoding": "utf-8"}
    return json.dumps(message | encoding | changed).encode()


@pytest.mark.parametrize(
    "entry",
    [
        b'{"x',
        b"\xff\xfe",
        b"[" * 100_000,
        b"5",
        b"[]",
        b"{}",
        message_with(properties=5),
        message_with(properties={"delivery_tag": "a"}),
        message_with(properties={"delivery_tag": "a", "delivery_info": {}}),
        message_with(properties={"delivery_tag": "a", "delivery_info": {"exchange": [], "routing_key": {}}}),
        message_with(properties={"delivery_tag": [], "delivery_info": {"exchange": "", "routing_key": ""}}),
        message_with(headers=5),
        message_with(headers={}),
        message_with(headers={"task": [], "id": "a"}),
        message_with(body=None),
        message_with(**{"content-type": 5}),
        message_with(**{"content-type": "application/x-python-serialize"}),
        message_with(body="%"),
        *[
            message_with(body=base64.b64encode(body).decode())
            for body in (b"{", b"5", b"[5, 5, 5]", b"[[], {}]", b"[" * 100_000)
        ],
        message_with(headers={"task": "nobody.knows", "id": "a"}),
    ],
)
def test_an_entry_that_is_no_task_is_dropped(worker: WorkerProcess, app: Celery, redis: Redis, entry: bytes) -> None:
    redis.lpush("headrace", entry)
    assert send(app, max_tokens=2, ignore_eos=True).get(timeout=60)["state"] == "succeeded"
    assert redis.llen("headrace") == 0
    wait_until(lambda: redis.zcard(UNACKED_INDEX) == 0, "nothing is left of it")
    assert worker.process.poll() is None


def test_c5_revoke_with_terminate_cancels_the_job(worker: WorkerProcess, app: Celery, client: Client) -> None:
    result = send(app, **SLOW)
    _known(client, result.id)
    wait_until(lambda: client.status(result.id).completion_tokens, "it runs")
    app.control.revoke(result.id, terminate=True)
    wait_until(lambda: client.status(result.id).state.ended, "the job has ended")
    *_, last = client.stream(result.id)
    assert isinstance(last, Finished)
    assert last.result.state is JobState.CANCELLED
    wait_until(lambda: worker.count("running") == 0, "the worker has dropped it")
    wait_until(lambda: result.state == "REVOKED", "Celery knows")


def _known(client: Client, job_id: str) -> None:
    """Wait until a task's job is in the ledger."""
    wait_until(lambda: client._redis.exists(client.keys.job(job_id)), "the job is known")


def test_a_job_cancelled_by_the_client_fails_the_task(worker: WorkerProcess, app: Celery, client: Client) -> None:
    result = send(app, **SLOW)
    _known(client, result.id)
    assert client.cancel(result.id) is JobState.CANCELLED
    with pytest.raises(Exception, match="cancelled"):
        result.get(timeout=60)


def test_inspect_shows_the_pool(worker: WorkerProcess, app: Celery) -> None:
    [stats] = wait_until(lambda: app.control.inspect(timeout=2).stats(), "the worker answers").values()
    pool = stats["pool"]
    assert "EnginePool" in pool["implementation"]
    assert pool["model"] == "tiny"
    assert pool["held-messages"] == 0
    assert pool["generation_tokens"] > 0


def test_hints_may_come_twice_or_for_nothing(
    worker: WorkerProcess, server: EmbeddedServer, client: Client, redis: Redis
) -> None:
    hints = HintSender(server.url)
    ids = client.submit_many([{"prompt": f"{number}", "max_tokens": 5, "ignore_eos": True} for number in range(20)])
    for _ in range(30):
        hints.send("default")
    results = [client.result(job_id, timeout=60) for job_id in ids]
    hints.close()
    assert {result.attempt for result in results} == {1}
    for job_id in ids:
        assert sum(isinstance(event, Started) for event in client.stream(job_id)) == 1
    wait_until(lambda: redis.llen("headrace") == 0, "all hints are taken")
    wait_until(lambda: redis.zcard(UNACKED_INDEX) == 0, "all hints are acknowledged")
