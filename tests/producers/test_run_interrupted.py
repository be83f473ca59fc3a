"""``headrace run`` interrupted, stopped and killed; and that the same command goes on from there."""

from __future__ import annotations

import random
import shlex
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..support import HEADRACE, environment, headrace, processes_in, started, wait_until
from .run_files import RunFiles, row

COUNT = 24
ROWS = [row(f"r{number}", f"Prompt {number}", max_tokens=40 + 17 * number % 120) for number in range(COUNT)]
NAMES = {f"r{number}" for number in range(COUNT)}


@dataclass(frozen=True)
class Undisturbed:
    """A run to its end, and what others said that wanted to write the same file meanwhile."""

    answers: dict[str, str]
    others: list[str]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Undisturbed:
    """The answers of a run that nobody interrupted."""
    files = RunFiles(tmp_path_factory.mktemp("undisturbed"), tiny_model)
    files.write(*ROWS)
    with started(*files.command(), cwd=files.directory, variables=files.variables) as process:
        begin(process, files, 1)
        run = {"cwd": files.directory, "variables": files.variables, "code": 2}
        others = [headrace(*files.arguments(*flags), **run).stderr for flags in ((), ("--fresh",))]  # type: ignore[arg-type]
        assert process.poll() is None, "the others came too late"
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    return Undisturbed(files.answers(), others)


@pytest.fixture
def files(tmp_path: Path, tiny_model: Path) -> RunFiles:
    files = RunFiles(tmp_path, tiny_model)
    files.write(*ROWS)
    return files


def begin(process: subprocess.Popen[str], files: RunFiles, rows: int) -> None:
    """Wait until some rows are written, while others are not."""

    def some_written() -> bool:
        assert process.poll() is None, process.stderr and process.stderr.read()
        return len(files.lines()) >= rows

    wait_until(some_written, f"{rows} rows are written")


def nothing_runs(files: RunFiles) -> None:
    wait_until(lambda: not processes_in(files.directory), "server and worker are gone", seconds=30)


def resume(files: RunFiles, undisturbed: Undisturbed) -> None:
    """The same command goes on, and the file is as if nothing had been."""
    before = files.lines()
    done = headrace(*files.arguments(), cwd=files.directory, variables=files.variables, code=0)
    assert f"Resuming out.jsonl: {len(before)} done, 0 failed, {COUNT - len(before)} to go." in done.stderr
    assert files.lines()[: len(before)] == before
    assert files.answers() == undisturbed.answers
    nothing_runs(files)


def test_ctrl_c_drains_and_the_printed_command_goes_on(files: RunFiles, undisturbed: Undisturbed) -> None:
    with started(*files.command(), cwd=files.directory, variables=files.variables) as process:
        begin(process, files, 3)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output == ""
    assert "Traceback" not in errors
    assert "Stopping: waiting for what is running" in errors
    assert files.record()["exit_code"] == 130
    nothing_runs(files)
    written = files.lines()
    assert 3 <= len(written) < COUNT
    last = errors.splitlines()[-1]
    assert last.startswith("Interrupted. Nothing finished is lost; to go on: headrace run ")
    command = [*HEADRACE, *shlex.split(last.partition("to go on: headrace ")[2])]
    again = subprocess.run(
        command, cwd=files.directory, env=environment(**files.variables), capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr
    assert files.lines()[: len(written)] == written
    assert files.answers() == undisturbed.answers


def test_a_second_ctrl_c_stops_now(files: RunFiles, undisturbed: Undisturbed) -> None:
    files.write(*ROWS, row("endless", max_tokens=4000))
    with started(*files.command(), cwd=files.directory, variables=files.variables) as process:
        begin(process, files, 1)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        wait_until(lambda: "Stopping" in process.stderr.readline(), "the first one is heard")  # type: ignore[union-attr]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    nothing_runs(files)
    assert "endless" not in {line["custom_id"] for line in files.lines()}


def test_c13_killed_at_any_moment_and_resumed(files: RunFiles, undisturbed: Undisturbed) -> None:
    chance = random.Random(1)
    for rows in sorted(chance.sample(range(1, COUNT - 6), 2)):
        with started(*files.command(), cwd=files.directory, variables=files.variables) as process:
            begin(process, files, rows)
            others = processes_in(files.directory)
            assert any("valkey" in command for command in others.values())
            assert any("embedded_host" in command for command in others.values())
            process.kill()
            process.wait()
        nothing_runs(files)
        # A machine that loses power loses the end of the file, too.
        files.output.write_bytes(files.output.read_bytes()[: -chance.randint(1, 60)])
    for line in files.lines():
        assert undisturbed.answers[line["custom_id"]] == line["response"]["body"]["choices"][0]["text"]
    resume(files, undisturbed)


def test_interrupted_while_the_model_loads(files: RunFiles) -> None:
    with started(*files.command(), cwd=files.directory, variables=files.variables) as process:
        wait_until(lambda: processes_in(files.directory / "cache"), "server and worker are starting")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    nothing_runs(files)
    assert files.lines() == []


def test_one_run_at_a_time_for_an_output_file(undisturbed: Undisturbed) -> None:
    sentence = "headrace run: another run is using out.jsonl; wait for it, or write to another file\n"
    assert undisturbed.others == [sentence] * 2
    assert set(undisturbed.answers) == NAMES
