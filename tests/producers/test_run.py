"""``headrace run`` from its input to its output, over a given server and worker, and over its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace.producers.connection import connect
from headrace.worker.embedded import EmbeddedServer

from ..support import headrace, processes_in
from ..worker.services import worker_process
from .run_files import RunFiles, row


@pytest.fixture(scope="module")
def worker_url(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server with a worker of the tiny model."""
    directory = tmp_path_factory.mktemp("worker")
    with (
        EmbeddedServer(directory / "data") as server,
        connect(server.url) as redis,
        worker_process("w", server.url, redis, tiny_model, directory) as worker,
    ):
        worker.wait_until_ready()
        yield server.url


@pytest.fixture
def files(tmp_path: Path, worker_url: str) -> RunFiles:
    """A run over that server."""
    return RunFiles(tmp_path, ("--redis", worker_url))


def test_a6_a_whole_file_with_bad_rows_again_afresh_and_with_the_failed(files: RunFiles) -> None:
    files.write(
        row("first", max_tokens=3),
        "not JSON",
        "",
        row("hot", temperature=9),
        row("too long", "x" * 5000),
        row("elsewhere", model="other-model"),
        row("chat", messages=[{"role": "user", "content": "hi"}], prompt=None) | {"url": "/v1/chat/completions"},
        "not JSON",
        row("named", model="tiny"),
        row("last", "", max_tokens=9),
    )
    said = files.run(code=1)
    assert "9 of 9 rows: 3 ok, 6 failed" in said
    assert "--retry-failed" in said.splitlines()[-1]
    lines = files.lines()
    answered = {line["custom_id"]: line["response"]["status_code"] for line in lines if line["custom_id"]}
    assert answered == {
        "first": 200, "hot": 400, "too long": 400, "elsewhere": 404, "chat": 200, "named": 200, "last": 400
    }  # fmt: skip
    assert len(lines) == 9
    assert len({line["id"] for line in lines}) == 9
    assert sum(line["custom_id"] is None for line in lines) == 2
    messages = {line["custom_id"]: line["error"]["message"] for line in lines if line["error"]}
    assert messages["hot"].startswith("in.jsonl:4: temperature")
    assert messages["elsewhere"].startswith("in.jsonl:6: the model 'other-model' is not served; name tiny")
    assert messages["too long"].startswith("in.jsonl:5: the prompt has ")
    assert "5000 tokens" in messages["too long"]
    [chat] = [line for line in lines if line["custom_id"] == "chat"]
    assert chat["response"]["body"]["usage"]["completion_tokens"] == 5
    record = files.record()
    assert (record["exit_code"], record["counts"]["ok"], record["counts"]["failed"]) == (1, 3, 6)

    before = files.output.read_bytes()
    said = files.run(code=1)
    assert "Resuming out.jsonl: 3 done, 6 failed, 0 to go." in said
    assert files.output.read_bytes() == before

    said = files.run("--retry-failed", code=1)
    assert "9 of 9 rows: 0 ok, 6 failed, 3 from an earlier run (0 failed)" in said
    assert len(files.lines()) == 9

    files.write(row("first", max_tokens=3), row("new"))
    said = files.run(code=5)
    assert said.count("\n") == 1
    assert "--fresh starts over" in said
    assert "2 of 2 rows: 2 ok, 0 failed" in files.run("--fresh", code=0)
    assert set(files.answers()) == {"first", "new"}


def test_files_that_cannot_be_run_are_2_and_start_nothing(files: RunFiles) -> None:
    files.write(row("x"), row("y"), row("x"))
    assert files.run(code=2) == "headrace run: in.jsonl:3: custom_id 'x' is not unique; line 1 has it too\n"
    files.write("")
    assert "holds no requests" in files.run(code=2)
    files.write(row("x"))
    for output, words in (("./in.jsonl", "is the input"), ("no/such/out", "does not exist"), (".", "is a directory")):
        arguments = ["run", "in.jsonl", "-o", output]
        done = headrace(*arguments, cwd=files.directory, variables=files.variables, code=2)
        assert done.stderr.count("\n") == 1
        assert words in done.stderr
    assert not (files.directory / "cache" / "headrace" / "runs").exists()


def test_a_foreign_output_file_is_5_and_left_alone(files: RunFiles) -> None:
    files.write(row("x"))
    for foreign in (b"notes of mine", b"notes\nof mine\n"):
        files.output.write_bytes(foreign)
        files.run(code=5)
        assert files.output.read_bytes() == foreign
    files.output.unlink()
    (files.directory / "out.jsonl.run.json").write_text("{}")
    files.run(code=5)


def test_a_model_that_is_not_there_is_2(tmp_path: Path) -> None:
    files = RunFiles(tmp_path, ("--model", "./nowhere"))
    files.write(row("x"))
    assert "no model './nowhere'" in files.run(code=2)
    assert processes_in(tmp_path) == {}
