"""The command line. Data goes to standard output, everything else to standard error."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .client import URL_VARIABLE, Client
from .connection import DEFAULT_URL
from .dead_command import app as dead_app
from .engine_flags import EngineFlags, with_engine_flags
from .errors import AccessDenied, BrokerUnavailable, HeadraceError, MalformedUrl, QueueFull
from .exit_codes import ACCESS_DENIED, BAD_INPUT, INTERRUPTED, NO_BROKER, NO_WORKER, QUEUE_FULL, TABLE
from .health_command import health
from .limits_command import app as limits_app
from .server_url import without_password
from .stream_command import stream as follow
from .tenants_command import app as tenants_app

app = typer.Typer(
    help=f"""Batch inference for language models over a message queue.

{TABLE}""",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(dead_app, name="dead")
app.add_typer(limits_app, name="limits")
app.add_typer(tenants_app, name="tenants")

Redis = Annotated[
    str, typer.Option(help="URL of the Redis server: redis://, rediss://, unix:// or sentinel://.", envvar=URL_VARIABLE)
]
JobId = Annotated[str, typer.Argument(help="The id that `headrace submit` printed.", show_default=False)]


@app.command()
@with_engine_flags
def run(
    *,
    source: Annotated[
        Path, typer.Argument(metavar="IN.jsonl", help="Requests in OpenAI batch form.", exists=True, dir_okay=False)
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.jsonl", help="Where answers go.")],
    redis: Annotated[
        str | None,
        typer.Option(help="Use this server and its workers; without it the run starts its own.", envvar=URL_VARIABLE),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over: replace the output file.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="When resuming, do failed rows again.")] = False,
    engine: EngineFlags,
) -> None:
    """Answer a file of prompts and write a file of answers.

    Started again after an interruption, the same command goes on where it stopped. The engine's settings count
    only where the run starts its own worker.

    \b
    Examples:
      headrace run examples/prompts.jsonl -o out.jsonl
      headrace run prompts.jsonl -o out.jsonl --redis redis://queue:6379/0
    """
    from .run_command import RunOptions  # noqa: PLC0415  # rich is not needed by the other commands
    from .run_command import run as run_file  # noqa: PLC0415

    raise typer.Exit(run_file(RunOptions(source, output, redis, fresh, retry_failed, engine)))


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def worker(context: typer.Context) -> None:
    """Serve a model from a Redis queue; see `headrace worker --help`."""
    if importlib.util.find_spec("torch") is None:
        print("headrace worker: this machine has no torch; install headrace[worker]", file=sys.stderr)
        raise typer.Exit(BAD_INPUT)
    # Not imported: the producer side does not depend on the worker. The process becomes the worker.
    os.execv(sys.executable, [sys.executable, "-m", "headrace.worker", *context.args])


@app.command()
def submit(
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads standard input.", show_default=False)],
    redis: Redis = DEFAULT_URL,
    system: Annotated[str | None, typer.Option(help="A system message before the prompt.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text itself, without a chat template.")] = False,
    model: Annotated[str | None, typer.Option(help="Which model answers; any by default.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the likeliest token. 0 to 2.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens up to this mass.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep this many of the likeliest tokens.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Keep tokens this likely, relative to the best.")] = None,
    seed: Annotated[int | None, typer.Option(help="Equal seeds give equal tokens.")] = None,
    priority: Annotated[int | None, typer.Option(help="0, the soonest and the default, to 9.")] = None,
    tenant: Annotated[str | None, typer.Option(help="On whose account.")] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Any field of the request's body; may be repeated. VALUE is JSON, or else a text.",
        ),
    ] = None,
) -> None:
    """Queue one job and print its id.

    \b
    Examples:
      headrace submit "Name three rivers." --max-tokens 50
      headrace submit "Name a river." --param n=3 --param 'stop=["."]' --param guided_regex='[A-Z][a-z]+'
      headrace stream $(headrace submit "Tell me a story.")
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    messages = [{"role": "system", "content": system}] if system else []
    prompt_field = {"prompt": text} if raw else {"messages": [*messages, {"role": "user", "content": text}]}
    body: dict[str, Any] = {
        **prompt_field,
        "model": model,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "seed": seed,
        "priority": priority,
        "tenant": tenant,
    }
    for name, value in _parameters(param or []).items():
        if body.get(name) is not None:
            raise typer.BadParameter(f"--param {name} is given already, by the prompt or an option of its own")
        body[name] = value
    with Client(redis) as client:
        print(client.submit(body))


def _parameters(pairs: list[str]) -> dict[str, Any]:
    """Fields of a body from texts of the form NAME=VALUE."""
    fields: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not (name and separator):
            raise typer.BadParameter(f"{pair!r} is no parameter; write NAME=VALUE, such as n=3")
        if name in fields:
            raise typer.BadParameter(f"{name} is given twice")
        fields[name] = _json_or_text(text)
    return fields


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


@app.command()
def stream(
    job_id: JobId,
    redis: Redis = DEFAULT_URL,
    index: Annotated[
        int | None, typer.Option(min=0, help="Which of several answers; 0, the first, by default.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Each event as a line of JSON, of all answers.")] = False,
) -> None:
    """Print a job's text as it comes, from its beginning."""
    with Client(redis) as client:
        raise typer.Exit(follow(client, job_id, index=index, as_json=as_json))


@app.command()
def status(
    job_id: JobId,
    redis: Redis = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Everything known, as JSON.")] = False,
) -> None:
    """Print where a job is: queued, running, succeeded, failed, cancelled or expired."""
    with Client(redis) as client:
        found = client.status(job_id)
    if as_json:
        print(found.model_dump_json(indent=2))
        return
    print(found.state.value)
    if found.result and found.result.error:
        print(found.result.error.message, file=sys.stderr)


@app.command()
def cancel(job_id: JobId, redis: Redis = DEFAULT_URL) -> None:
    """Cancel a job, queued or running, and print its state; one that has ended keeps its result."""
    with Client(redis) as client:
        print(client.cancel(job_id).value)


@app.command()
def models(redis: Redis = DEFAULT_URL) -> None:
    """List the models that workers serve now: name, state, jobs in the worker, worker."""
    with Client(redis) as client:
        workers = client.workers()
    if not workers:
        print(f"no worker listens at {without_password(client.url)}; start one with `headrace worker`", file=sys.stderr)
        raise typer.Exit(NO_WORKER)
    for info in sorted(workers, key=lambda info: (info.model, info.worker_id)):
        print(f"{info.model}\t{info.state}\t{info.running}\t{info.worker_id}")


app.command()(health)


def main() -> None:
    """Entry point: run a command; an expected error is one sentence and an exit code."""
    try:
        app(prog_name="headrace")
    except BrokerUnavailable as error:
        _exit(error, BAD_INPUT if isinstance(error, MalformedUrl) else NO_BROKER)
    except QueueFull as error:
        _exit(error, QUEUE_FULL)
    except AccessDenied as error:
        _exit(error, ACCESS_DENIED)
    except HeadraceError as error:
        _exit(error, BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _exit(error: HeadraceError, code: int) -> None:
    print(f"headrace: {error}", file=sys.stderr)
    sys.exit(code)
