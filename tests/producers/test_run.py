"""``headrace run`` with its own server and worker, over a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support import headrace, processes_in
from .run_files import RunFiles, row


@pytest.fixture
def files(tmp_path: Path, tiny_model: Path) -> RunFiles:
    return RunFiles(tmp_path, tiny_model)


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
    run = dict(cwd=files.directory, variables=files.variables)
    done = headrace(*files.arguments(), **run, code=1)  # type: ignore[arg-type]
    assert done.stdout == ""
    assert "9 of 9 rows: 3 ok, 6 failed" in done.stderr
    assert "--retry-failed" in done.stderr.splitlines()[-1]
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
    assert "5000 tokens" in messages["too long"]
    [chat] = [line for line in lines if line["custom_id"] == "chat"]
    assert chat["response"]["body"]["usage"]["completion_tokens"] == 5
    record = files.record()
    assert (record["exit_code"], record["counts"]["ok"], record["counts"]["failed"]) == (1, 3, 6)
    assert not list((files.directory / "cache").rglob("*.aof*")), "a finished run leaves no data behind"

    before = files.output.read_bytes()
    again = headrace(*files.arguments(), **run, code=1)  # type: ignore[arg-type]
    assert "Resuming out.jsonl: 3 done, 6 failed, 0 to go." in again.stderr
    assert "Starting a server" not in again.stderr, "there is nothing to start one for"
    assert files.output.read_bytes() == before

    retried = headrace(*files.arguments("--retry-failed"), **run, code=1)  # type: ignore[arg-type]
    assert "9 of 9 rows: 0 ok, 6 failed, 3 from an earlier run (0 failed)" in retried.stderr
    assert len(files.lines()) == 9

    files.write(row("first", max_tokens=3), row("new"))
    mismatch = headrace(*files.arguments(), **run, code=5)  # type: ignore[arg-type]
    assert mismatch.stderr.count("\n") == 1
    assert "--fresh starts over" in mismatch.stderr
    fresh = headrace(*files.arguments("--fresh"), **run, code=0)  # type: ignore[arg-type]
    assert "2 of 2 rows: 2 ok, 0 failed" in fresh.stderr
    assert set(files.answers()) == {"first", "new"}
    assert processes_in(files.directory) == {}


def test_files_that_cannot_be_run_are_2_and_start_nothing(files: RunFiles) -> None:
    run = dict(cwd=files.directory, variables=files.variables, code=2)
    files.write(row("x"), row("y"), row("x"))
    done = headrace(*files.arguments(), **run)  # type: ignore[arg-type]
    assert done.stderr == "headrace run: in.jsonl:3: custom_id 'x' is not unique; line 1 has it too\n"
    files.write("")
    assert "holds no requests" in headrace(*files.arguments(), **run).stderr  # type: ignore[arg-type]
    files.write(row("x"))
    own = headrace("run", "in.jsonl", "-o", "./in.jsonl", **run)  # type: ignore[arg-type]
    assert "is the input" in own.stderr
    missing = headrace("run", "in.jsonl", "-o", "no/such/out.jsonl", **run)  # type: ignore[arg-type]
    assert "does not exist" in missing.stderr
    folder = headrace("run", "in.jsonl", "-o", ".", **run)  # type: ignore[arg-type]
    assert folder.stderr.count("\n") == 1
    assert "is a directory" in folder.stderr
    assert not (files.directory / "cache" / "headrace" / "runs").exists()


def test_a_foreign_output_file_is_5_and_left_alone(files: RunFiles) -> None:
    files.write(row("x"))
    for foreign in (b"notes of mine", b"notes\nof mine\n"):
        files.output.write_bytes(foreign)
        headrace(*files.arguments(), cwd=files.directory, variables=files.variables, code=5)
        assert files.output.read_bytes() == foreign
    files.output.unlink()
    (files.directory / "out.jsonl.run.json").write_text("{}")
    headrace(*files.arguments(), cwd=files.directory, variables=files.variables, code=5)


def test_a_model_that_is_not_there_is_2(files: RunFiles) -> None:
    files.write(row("x"))
    flags = ["run", "in.jsonl", "-o", "out.jsonl", "--model", "./nowhere"]
    done = headrace(*flags, cwd=files.directory, variables=files.variables, code=2)
    assert "no model './nowhere'" in done.stderr
    assert processes_in(files.directory) == {}
