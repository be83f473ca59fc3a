"""What people ask and what they are answered stands in no log, whatever goes wrong; and only JSON is read."""

from __future__ import annotations

import ast
import logging
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace.engine
import headrace.kernels
import headrace.producers
import headrace.worker
import pytest
import torch
from celery import Celery
from headrace.producers import Client, JobState
from headrace.producers.celery_broker import celery_url
from headrace.producers.hints import UNACKED_INDEX
from headrace.producers.keys import Keys
from headrace.worker.embedded import EmbeddedServer
from headrace.worker.engine_thread import crash_reason
from redis import Redis

from ..support import wait_until
from ..tiny_model import CHAT_TEMPLATE, save_tiny_model
from .services import engine_of, service, worker_process

MARKER = "xylophone"
SHORT: dict[str, Any] = {"max_tokens": 20, "seed": 1}


@pytest.fixture(scope="module")
def raising_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose chat template fails on some messages, and quotes them."""
    directory = save_tiny_model(tmp_path_factory.mktemp("models") / "raising")
    raising = "{% for message in messages %}{% if 'bad' in message.content %}{{ raise_exception(message.content) }}"
    (directory / "chat_template.jinja").write_text(f"{raising}{{% endif %}}{{% endfor %}}{CHAT_TEMPLATE}")
    return directory


@pytest.fixture
def silence(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[pytest.LogCaptureFixture]:
    """The logs of a test, in which, and in what it printed, the marker must not stand."""
    caplog.set_level(logging.INFO)
    yield caplog
    printed = capfd.readouterr()
    formatter = logging.Formatter()  # it adds tracebacks, as handlers do
    logged = "\n".join(formatter.format(record) for record in caplog.get_records("call"))
    for text in (logged, printed.out, printed.err):
        assert MARKER not in text


def test_answers_and_cancelled_jobs(
    silence: pytest.LogCaptureFixture, server: EmbeddedServer, client: Client, tiny_model: Path
) -> None:
    with service(server.url, tiny_model, step_seconds=0.01):
        chosen = client.submit({"prompt": MARKER, "echo": True, "guided_choice": [MARKER]}, **SHORT)
        assert client.result(chosen, timeout=60).text == MARKER * 2
        cancelled = client.submit({"prompt": MARKER, "echo": True, "max_tokens": 3000, "ignore_eos": True})
        wait_until(lambda: client.status(cancelled).completion_tokens, "it runs")
        assert client.cancel(cancelled) is JobState.CANCELLED
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"prompt": MARKER * 1000}, 400),
        ({"prompt": "hi", "guided_regex": f"({MARKER}"}, 400),
        ({"prompt": "hi", "guided_grammar": f"start: {MARKER}"}, 400),
        ({"prompt": "hi", "guided_json": {"type": MARKER}}, 400),
        ({"prompt": "hi", "bad_words": [MARKER], "allowed_token_ids": [99_999]}, 400),
        ({"messages": [{"role": "user", "content": f"bad {MARKER}"}]}, 400),
    ],
)
def test_refusals_and_templates_that_fail(
    silence: pytest.LogCaptureFixture,
    server: EmbeddedServer,
    client: Client,
    raising_model: Path,
    body: dict[str, Any],
    code: int,
) -> None:
    with service(server.url, raising_model):
        error = client.result(client.submit(body, **SHORT), timeout=60).error
        assert error is not None
        assert error.status_code == code, error


def test_what_no_tokenizer_takes(
    silence: pytest.LogCaptureFixture,
    server: EmbeddedServer,
    client: Client,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(text: str, **_: Any) -> list[int]:
        raise ValueError(f"cannot encode {text!r}")

    with service(server.url, tiny_model) as worker:
        monkeypatch.setattr(engine_of(worker).encoder, "encode_text", fail)
        error = client.result(client.submit({"prompt": MARKER}), timeout=60).error
    assert error is not None and error.code == "encoding_failed"
    assert MARKER in error.message, "who asked is told"
    assert "cannot be encoded: ValueError" in silence.text


def test_a_server_that_is_full(
    silence: pytest.LogCaptureFixture, server: EmbeddedServer, client: Client, redis: Redis, tiny_model: Path
) -> None:
    with service(server.url, tiny_model, step_seconds=0.01):
        job_id = client.submit({"prompt": MARKER, "echo": True, "max_tokens": 200, "ignore_eos": True})
        wait_until(lambda: client.status(job_id).completion_tokens, "it runs")
        redis.config_set("maxmemory", 1)
        try:
            wait_until(lambda: "Redis does not take" in silence.text, "writes are refused")
        finally:
            redis.config_set("maxmemory", 0)
        assert client.result(job_id, timeout=60).text.startswith(MARKER)


def test_a_record_that_is_no_request(
    silence: pytest.LogCaptureFixture, server: EmbeddedServer, client: Client, redis: Redis, tiny_model: Path
) -> None:
    ids = [client.submit("hi") for _ in range(3)]
    for job_id, request in zip(ids, [f'{{"{MARKER}', f'{{"{MARKER}": 1}}', f'{{"prompt": ["{MARKER}"]}}'], strict=True):
        redis.hset(Keys().job(job_id), "request", request)
    with service(server.url, tiny_model):
        for job_id in ids:
            assert client.result(job_id, timeout=60).error is not None


def test_a_crash_of_the_engine(
    silence: pytest.LogCaptureFixture,
    server: EmbeddedServer,
    client: Client,
    redis: Redis,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def crash() -> None:
        raise RuntimeError(f"cannot compute {MARKER}")

    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        with service(server.url, tiny_model) as worker:
            monkeypatch.setattr(engine_of(worker), "step", crash)
            job_id = client.submit({"prompt": MARKER})
            wait_until(lambda: worker.crashed and told, "the engine has crashed")
            wait_until(lambda: client.status(job_id).state is JobState.QUEUED, "the job is handed on")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "the engine crashed: RuntimeError" in silence.text
    assert "in crash" in silence.text, "where it happened is said"
    client.cancel(job_id)


def test_what_is_said_of_a_crash() -> None:
    assert crash_reason(RuntimeError(MARKER)) == "RuntimeError"
    assert crash_reason(torch.OutOfMemoryError("tried to get 2 GiB")) == "OutOfMemoryError: tried to get 2 GiB"


def test_celery_logs_none_of_it_either(
    server: EmbeddedServer, client: Client, redis: Redis, raising_model: Path, tmp_path: Path
) -> None:
    url = celery_url(server.url)
    app = Celery("plain", broker=url, backend=url, set_as_current=False)

    def send(*arguments: Any, name: str = "headrace.generate", **parameters: Any) -> Any:
        return app.send_task(name, list(arguments), parameters, queue="headrace", **options)

    options: dict[str, Any] = {}
    unknown: dict[str, Any] = {MARKER: 1}
    with worker_process("w", server.url, redis, raising_model, tmp_path) as worker:
        worker.wait_until_ready()
        good = send({"prompt": MARKER}, echo=True, guided_choice=[MARKER], **SHORT)
        assert good.get(timeout=60)["text"] == MARKER * 2
        for refused in (
            send({"prompt": "hi"}, **unknown),
            send({"prompt": "hi"}, guided_regex=f"({MARKER}"),
            send([{"role": "user", "content": f"bad {MARKER}"}]),
            send(MARKER, MARKER),
        ):
            with pytest.raises(Exception, match=r"."):
                refused.get(timeout=60)
        send(MARKER, name="headrace.unknown")
        options["serializer"] = "pickle"
        send(_Pickled())
        del options["serializer"]
        assert send({"prompt": "after all that"}, **SHORT).get(timeout=60)["state"] == "succeeded"
        wait_until(lambda: redis.zcard(UNACKED_INDEX) == 0, "all messages are acknowledged")
        log = worker.log.read_text()
    assert MARKER not in log
    assert "a Celery message was discarded: headrace has no task of its name" in log
    assert "a Celery message was discarded: ContentDisallowed" in log


class _Pickled:
    """Something that only a pickle carries."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (str, (MARKER,))


def test_no_module_imports_pickle() -> None:
    modules = [
        path
        for package in (headrace.producers, headrace.worker, headrace.engine, headrace.kernels)
        for folder in package.__path__
        for path in Path(folder).glob("**/*.py")
    ]
    assert len(modules) > 60
    forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {name.partition(".")[0] for name in names} & forbidden, path
