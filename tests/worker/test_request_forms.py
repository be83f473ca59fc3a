"""Conversations, tools and answers of a given form, from the client through a worker and back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace.producers import Client, JobState
from headrace.worker.embedded import EmbeddedServer
from headrace.worker.service import WorkerService

from .asking import EOS, ask, body_of, deltas_of, refused, token_of
from .services import service

TEMPLATE = (
    '{% if tools %}Write <tool_call>{"name": ..., "arguments": ...}</tool_call> to call '
    "{{ tools | map(attribute='function.name') | join(', ') }}.\n{% endif %}"
    "{% if mood is defined %}Be {{ mood }}.\n{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "{{ '\\n' }}{% endfor %}assistant: "
)
"""Teaches calls in the form of Hermes, and has a variable."""
RIVER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Rhine", "Z\u00fcrichsee"]},
        "length": {"type": "integer", "minimum": 1, "maximum": 9},
        "dry": {"type": "boolean"},
    },
    "required": ["name", "length", "dry"],
    "additionalProperties": False,
}
LOOK: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": RIVER}}
STOP: dict[str, Any] = {"type": "function", "function": {"name": "stop"}}
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 300, "seed": 1}
BAD_SCHEMA = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}


@pytest.fixture(scope="module", autouse=True)
def worker(
    server: EmbeddedServer, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerService]:
    """A worker for all tests here, whose model knows tools."""
    model = shutil.copytree(tiny_model, tmp_path_factory.mktemp("models") / "tools")
    (model / "chat_template.jinja").write_text(TEMPLATE)
    with service(server.url, model) as running:
        yield running


def check_river(text: str) -> None:
    """The text follows :data:`RIVER`."""
    river = json.loads(text)
    assert list(river) == ["name", "length", "dry"]
    assert river["name"] in ("Rhine", "Z\u00fcrichsee")
    assert type(river["length"]) is int and 1 <= river["length"] <= 9
    assert type(river["dry"]) is bool


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "river", "schema": RIVER}}},
        {"guided_json": RIVER},
        {"guided_json": json.dumps(RIVER)},
        {"structured_outputs": {"json": RIVER}},
    ],
    ids=["response_format", "guided_json", "guided_json text", "structured_outputs"],
)
def test_an_answer_follows_its_schema(client: Client, form: dict[str, Any]) -> None:
    job_id = client.submit({**ASKED, **form, "n": 3, "temperature": 2})
    result = client.result(job_id, timeout=60)
    assert result.state is JobState.SUCCEEDED
    for choice in result.choices:
        assert choice.finish_reason == "stop"
        check_river(choice.text)
        assert "".join(delta.text for delta in deltas_of(client, job_id, choice.index)) == choice.text


@pytest.mark.parametrize(
    ("form", "answers"),
    [
        ({"guided_choice": ["yes", "no"]}, ["yes", "no"]),
        ({"guided_regex": "(yes|no)!"}, ["yes!", "no!"]),
        ({"guided_grammar": 'root ::= "yes" | "no"'}, ["yes", "no"]),
        ({"structured_outputs": {"choice": ["yes"]}}, ["yes"]),
    ],
)
def test_other_forms(client: Client, form: dict[str, Any], answers: list[str]) -> None:
    result = ask(client, {**ASKED, **form})
    assert result.text in answers
    assert result.finish_reason == "stop"


def test_any_object(client: Client) -> None:
    # Brackets are favoured, so that the object ends.
    body = {**ASKED, "response_format": {"type": "json_object"}, "logit_bias": {str(token_of("}")): 100}}
    result = ask(client, body)
    assert isinstance(json.loads(result.text), dict)


def test_an_object_that_its_limit_cuts_short(client: Client) -> None:
    result = ask(client, {**ASKED, "guided_json": RIVER, "max_tokens": 5})
    assert (result.finish_reason, result.completion_tokens) == ("length", 5)
    assert result.text.startswith("{")
    with pytest.raises(ValueError, match="line"):
        json.loads(result.text)


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": BAD_SCHEMA}}}, "response_format"),
        ({"guided_json": {"type": "river"}}, "guided_json"),
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_grammar": "start: nowhere"}, "guided_grammar"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": BAD_SCHEMA}}],
          "tool_choice": "required"}, "tools"),
    ],
)  # fmt: skip
def test_a_form_that_cannot_be_compiled_fails_its_own_job_only(
    client: Client, form: dict[str, Any], param: str
) -> None:
    good = {**ASKED, "guided_json": RIVER}
    before, bad, after = client.submit_many([good, {**ASKED, **form}, good])
    result = client.result(bad, timeout=60)
    assert result.state is JobState.FAILED
    assert result.error is not None
    assert (result.error.status_code, result.error.code) == (400, "invalid_schema")
    assert result.error.param == param
    assert result.error.message.startswith(f"{param} cannot be compiled: ")
    assert "\n" not in result.error.message
    for job_id in (before, after):
        check_river(client.result(job_id, timeout=60).text)


@pytest.mark.parametrize("parallel", [False, True])
def test_calls_that_are_demanded(client: Client, parallel: bool) -> None:
    # A line may follow a call with another; the penalty makes it the less likely the more there were.
    bias = {str(token_of("\n")): 20, str(EOS): 0}
    body = {
        **ASKED,
        "tools": [LOOK, STOP],
        "tool_choice": "required",
        "parallel_tool_calls": parallel,
        "logit_bias": bias,
        "frequency_penalty": 2,
        "max_tokens": 3000,
        "n": 2,
    }
    result = ask(client, body)
    for choice in result.choices:
        assert (choice.text, choice.finish_reason) == ("", "tool_calls")
        assert choice.tool_calls is not None
        assert len(choice.tool_calls) > 1 if parallel else len(choice.tool_calls) == 1
        for call in choice.tool_calls:
            if call.function.name == "look":
                check_river(call.function.arguments)
            else:
                assert (call.function.name, call.function.arguments) == ("stop", "{}")
    ids = [call.id for choice in result.choices for call in choice.tool_calls or ()]
    assert len(set(ids)) == len(ids)
    for answer in body_of(body, result)["choices"]:
        assert answer["message"]["content"] is None
        assert answer["message"]["tool_calls"]


@pytest.mark.parametrize("name", ["look", "stop"])
def test_a_call_of_one_function(client: Client, name: str) -> None:
    choice = {"type": "function", "function": {"name": name}}
    result = ask(client, {**ASKED, "tools": [LOOK, STOP], "tool_choice": choice, "parallel_tool_calls": False})
    assert [call.function.name for call in result.choices[0].tool_calls or ()] == [name]
    assert result.finish_reason == "tool_calls"


def test_a_call_that_its_limit_cuts_short_is_text(client: Client) -> None:
    result = ask(client, {**ASKED, "tools": [LOOK], "tool_choice": "required", "max_tokens": 20})
    assert (result.text, result.finish_reason) == ('<tool_call>\n{"name": "l'[:20], "length")
    assert result.choices[0].tool_calls is None


@pytest.mark.parametrize("choice", ["auto", "none", None])
def test_tools_that_need_not_be_called(client: Client, choice: str | None) -> None:
    result = ask(client, {**ASKED, "tools": [LOOK], "tool_choice": choice, "max_tokens": 5, "ignore_eos": True})
    assert result.choices[0].tool_calls is None
    assert result.finish_reason == "length"
    assert result.prompt_tokens > ask(client, {**ASKED, "max_tokens": 5}).prompt_tokens, "the template carries them"


def check_prompt(client: Client, body: dict[str, Any], prompt: str) -> None:
    """A conversation asks the same as a prompt does; the tiny model has one token a byte."""
    settings = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    found, expected = ask(client, {**body, **settings}), ask(client, {"prompt": prompt, **settings})
    assert found.prompt_tokens == expected.prompt_tokens == len(prompt.encode())
    assert found.text == expected.text


def test_a_call_and_what_came_of_it_reach_the_template(client: Client) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"dry": true}'}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Look"}, {"type": "text", "text": " first."}]},
        {"role": "user", "content": "How long?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1 km", "tool_call_id": "c1"},
    ]
    check_prompt(
        client,
        {"messages": messages, "tools": [LOOK, STOP], "tool_choice": "none"},
        'Write <tool_call>{"name": ..., "arguments": ...}</tool_call> to call look, stop.\n'
        "system: Look first.\nuser: How long?\n"
        'assistant: <tool_call>{"name": "look", "arguments": {"dry": true}}</tool_call>\n'
        "tool: 1 km\nassistant: ",
    )


def test_variables_of_the_template(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    check_prompt(client, body, "user: hi\nassistant: ")
    kwargs = {"chat_template_kwargs": {"mood": "brief", "unknown": 1}}
    check_prompt(client, {**body, **kwargs}, "Be brief.\nuser: hi\nassistant: ")
    check_prompt(client, {**body, **kwargs, "truncate_prompt_tokens": 14}, ": hi\nassistant: "[-14:])
    for taken in ("messages", "tokenize", "tools"):
        param, message = refused(client, {**body, "chat_template_kwargs": {taken: 1}})
        assert param == "chat_template_kwargs"
        assert taken in message


def test_control_text_in_a_message_stays_text(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": "a</s>b"}]}
    found = ask(client, {**body, "max_tokens": 1})
    assert found.prompt_tokens == len("user: a</s>b\nassistant: ")
    assert ask(client, {**body, "max_tokens": 1, "allow_control_tokens": True}).prompt_tokens == found.prompt_tokens - 3
