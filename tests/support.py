"""Helpers for tests that run headrace's processes: command lines, waiting, and looking at what is alive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

HEADRACE = [sys.executable, "-c", "from headrace.producers.cli import main; main()"]
"""The command line, also where no ``headrace`` script is on the PATH."""

Found = TypeVar("Found")


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without headrace's own variables, so that a user's settings change no test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return {**kept, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **changes}


def wait_until(check: Callable[[], Found], what: str, seconds: float = 60) -> Found:
    """The first true value of ``check``, asked again and again; fails after a generous time."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f"still not true after {seconds} s: {what}"
        time.sleep(0.02)
    return found


def headrace(
    *arguments: str | Path,
    cwd: Path,
    stdin: str | None = None,
    variables: dict[str, str] | None = None,
    code: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end, with a cache of its own, and check its exit code where one is given."""
    done = subprocess.run(
        [*HEADRACE, *map(str, arguments)],
        cwd=cwd,
        env=environment(**{"XDG_CACHE_HOME": str(cwd / "cache"), **(variables or {})}),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert code is None or done.returncode == code, f"exit code {done.returncode}: {done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done


@contextmanager
def started(
    *command: str | Path, cwd: Path, variables: dict[str, str] | None = None, stdin: int | None = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[str]]:
    """A process for the length of a block; whatever is left of it then is killed."""
    process = subprocess.Popen(
        list(map(str, command)),
        cwd=cwd,
        env=environment(**(variables or {})),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                pipe.close()


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def processes_in(directory: Path) -> dict[int, str]:
    """Command lines, by process id, of the processes that name a directory or work in it; not this one's."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and alive(int(entry.name)):
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                place = f"{(entry / 'cwd').readlink()}/"
            except OSError:
                continue
            if str(directory) in command or place.startswith(f"{directory}/"):
                found[int(entry.name)] = command
    return found
