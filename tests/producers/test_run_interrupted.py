"""``headrace run`` with its own server and worker: interrupted, stopped, killed; and the same command goes on."""

from __future__ import annotations

import random
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..support import HEADRACE, environment, processes_in, started, wait_until
from .run_files import RunFiles, row

COUNT = 20
ROWS = [row(f"r{number}", f"Prompt {number}", max_tokens=40 + 17 * number % 120) for number in range(COUNT)]


def run_files(directory: Path, model: Path) -> RunFiles:
    """A run of all rows, two at a time."""
    files = RunFiles(directory, ("--model", str(model), "--max-num-seqs", "2"))
    files.write(*ROWS)
    return files


@dataclass(frozen=True)
class Undisturbed:
    """A run to its end, and what others said that wanted to write the same file meanwhile."""

    answers: dict[str, str]
    others: list[str]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Undisturbed:
    """The answers of a run that nobody interrupted."""
    files = run_files(tmp_path_factory.mktemp("undisturbed"), tiny_model)
    with begun(files, 1) as process:
        others = [files.run(*flags, code=2) for flags in ((), ("--fresh",))]
        assert process.poll() is None, "the others came too late"
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert not list((files.directory / "cache").rglob("*.aof*")), "a finished run leaves no data behind"
    assert processes_in(files.directory) == {}
    return Undisturbed(files.answers(), others)


@contextmanager
def begun(files: RunFiles, rows: int) -> Iterator[subprocess.Popen[str]]:
    """A run that has written some more rows, and has others to write."""
    target = len(files.lines()) + rows
    with started(*files.command(), cwd=files.directory, variables=files.variables) as process:

        def some_written() -> bool:
            assert process.poll() is None, process.stderr and process.stderr.read()
            return len(files.lines()) >= target

        wait_until(some_written, f"{target} rows are written")
        yield process


def nothing_runs(files: RunFiles) -> None:
    wait_until(lambda: processes_in(files.directory) == {}, "server and worker are gone", seconds=30)


def kill(files: RunFiles, chance: random.Random) -> None:
    """SIGKILL; and a machine that loses power loses the end of the file, too."""
    with begun(files, chance.randint(1, 4)) as process:
        others = processes_in(files.directory)
        assert any("valkey" in command for command in others.values())
        assert any("embedded_host" in command for command in others.values())
        process.kill()
        process.wait()
    nothing_runs(files)
    files.output.write_bytes(files.output.read_bytes()[: -chance.randint(1, 60)])


def stop_now(files: RunFiles) -> None:
    """Ctrl-C twice."""
    with begun(files, 2) as process:
        process.send_signal(signal.SIGINT)
        stderr = process.stderr
        assert stderr is not None
        wait_until(lambda: "Stopping: waiting for what is running" in stderr.readline(), "the first one is heard")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    nothing_runs(files)


def drain(files: RunFiles) -> str:
    """Ctrl-C once; returns what is said last."""
    with begun(files, 2) as process:
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output == ""
    assert "Traceback" not in errors
    assert "Stopping: waiting for what is running" in errors
    assert files.record()["exit_code"] == 130
    nothing_runs(files)
    return errors.splitlines()[-1]


def test_c13_stopped_in_every_way_and_the_printed_command_goes_on(
    tmp_path: Path, tiny_model: Path, undisturbed: Undisturbed
) -> None:
    files = run_files(tmp_path, tiny_model)
    kill(files, random.Random(1))
    stop_now(files)
    last = drain(files)
    assert last.startswith("Interrupted. Nothing finished is lost; to go on: headrace run ")
    written = files.lines()
    assert 5 <= len(written) < COUNT
    command = [*HEADRACE, *shlex.split(last.partition("to go on: headrace ")[2])]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(**files.variables), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"Resuming out.jsonl: {len(written)} done, 0 failed, {COUNT - len(written)} to go." in done.stderr
    assert files.lines()[: len(written)] == written
    assert files.answers() == undisturbed.answers
    nothing_runs(files)


def test_one_run_at_a_time_for_an_output_file(undisturbed: Undisturbed) -> None:
    sentence = "headrace run: another run is using out.jsonl; wait for it, or write to another file\n"
    assert undisturbed.others == [sentence] * 2
    assert set(undisturbed.answers) == {f"r{number}" for number in range(COUNT)}


def test_interrupted_while_the_model_loads(tmp_path: Path, tiny_model: Path) -> None:
    files = run_files(tmp_path, tiny_model)
    with started(*files.command(), cwd=tmp_path, variables=files.variables) as process:
        wait_until(lambda: processes_in(tmp_path / "cache"), "server and worker are starting")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    nothing_runs(files)
    assert files.lines() == []
