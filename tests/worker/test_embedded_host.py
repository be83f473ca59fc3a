"""The process beside a run: its lines, draining at any moment, and its end with its parent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from headrace.producers import Client, JobState

from ..support import processes_in, started, wait_until

BODY: dict[str, Any] = {"prompt": "long", "max_tokens": 100, "ignore_eos": True}


@contextmanager
def host(directory: Path, model: Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "headrace.worker.embedded_host",
        "--directory",
        directory / "data",
    ]
    flags: list[str | Path] = ["--model", model, "--kv-cache-memory", "32MiB"]
    with started(*command, *flags, cwd=directory, variables=variables, stdin=subprocess.PIPE) as process:
        yield process


def heard(process: subprocess.Popen[str], state: str) -> dict[str, Any]:
    """The next line, which must be of this state."""
    assert process.stdout is not None
    line: dict[str, Any] = json.loads(process.stdout.readline() or '"nothing"')
    assert line["state"] == state, process.stderr and process.stderr.read()
    return line


def say(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()


def hang_up(process: subprocess.Popen[str]) -> None:
    """What the parent's death looks like."""
    assert process.stdin is not None
    process.stdin.close()


def test_draining_the_moment_it_is_ready(tmp_path: Path, tiny_model: Path) -> None:
    with host(tmp_path, tiny_model) as process:
        url = heard(process, "server")["url"]
        with Client(url) as client:
            job_id = client.submit(BODY)
            assert heard(process, "ready")["model"] == "tiny"
            say(process, "drain")
            heard(process, "drained")
            state = client.status(job_id).state
        hang_up(process)
        process.wait(30)
    assert state is not JobState.RUNNING
    wait_until(lambda: processes_in(tmp_path) == {}, "the server is gone")


def test_alone_in_its_directory_and_draining_before_the_model_is_loaded(tmp_path: Path, tiny_model: Path) -> None:
    with host(tmp_path, tiny_model) as process:
        heard(process, "server")
        with host(tmp_path, tiny_model) as second:
            refused = heard(second, "failed")
            assert refused["exit_code"] == 3
            assert "another run is using" in refused["message"]
            assert second.wait(30) == 3
        say(process, "drain")
        while (state := json.loads(process.stdout.readline())["state"]) != "drained":  # type: ignore[union-attr]
            assert state == "ready", "the model may have been quicker"
        hang_up(process)
        process.wait(30)
    wait_until(lambda: processes_in(tmp_path) == {}, "the server is gone")


def test_both_halves_of_a_run_take_the_prefix_of_the_environment(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_PREFIX", "elsewhere")
    with host(tmp_path, tiny_model, HEADRACE_PREFIX="elsewhere") as process:
        url = heard(process, "server")["url"]
        heard(process, "ready")
        with Client(url) as client:
            assert client.keys.prefix == "elsewhere"
            result = client.result(client.submit(BODY), timeout=30)
        hang_up(process)
        process.wait(30)
    assert result.state is JobState.SUCCEEDED
