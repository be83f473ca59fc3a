"""Requests beyond a prompt and a temperature: tokens, forms, tools, log-probabilities."""

from __future__ import annotations

import json
from typing import Any

import pytest
from headrace.producers import GenerationRequest
from headrace.producers.records import submission

from .test_schema import CHAT, NAN, parse, refusal

RAW: dict[str, Any] = {"prompt": "hi"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}


def function(name: str) -> dict[str, Any]:
    """A tool without parameters."""
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize("key", ["-1", "abc", "1.5", "", "1" * 11])
def test_d7_keys_of_logit_bias_that_are_no_token_ids_are_named(key: str) -> None:
    error = refusal({**CHAT, "logit_bias": {key: 1.0}})
    assert error.param == "logit_bias"
    assert error.message.startswith(f"logit_bias.{key}" if key else "logit_bias")


@pytest.mark.parametrize("bias", [NAN, 1e30, 100.5, -101, "1", True, None])
def test_d7_a_bias_out_of_range_is_refused(bias: Any) -> None:
    assert refusal({**CHAT, "logit_bias": {"5": bias}}).param == "logit_bias"


def test_biases_may_have_numbers_for_keys_in_python() -> None:
    assert parse(logit_bias={5: 1.0, "6": -100}).logit_bias == {"5": 1.0, "6": -100}


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids"])
def test_d7_token_ids_that_are_none_are_refused(name: str) -> None:
    for value in ([-1], ["5"], [1.5], 5, [True], [1 << 31]):
        assert refusal({**CHAT, name: value}).param == name
    assert getattr(parse(**{name: [0, 7]}), name) == [0, 7]


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("n", [1, 128], [0, 129, 1.0]),
        ("min_tokens", [0, 1], [-1]),
        ("presence_penalty", [-2, 2.0], [-2.1, 2.1, NAN]),
        ("frequency_penalty", [-2, 2.0], [-2.1, 2.1, NAN]),
        ("repetition_penalty", [0.01, 100], [0, 0.001, 101, -1]),
        ("prompt_logprobs", [0, 20], [-1, 21, True]),
        ("stop", ["a", ["a"] * 16, []], ["", ["a"] * 17, ["a", ""], [1]]),
        ("bad_words", [["a"] * 1024, []], [["a"] * 1025, [""], "a"]),
        ("allowed_token_ids", [[0]], [[]]),
        ("truncate_prompt_tokens", [-1, 1], [1 << 31, "5"]),
        ("cache_salt", ["s" * 128], ["s" * 129, 5]),
        ("tenant", ["t" * 128], ["t" * 129, 5]),
        ("parallel_tool_calls", [True, False], [1, "no"]),
        ("include_stop_str_in_output", [True, False], [1]),
        ("ignore_eos", [True, False], [0]),
        ("skip_special_tokens", [True, False], [0]),
        ("prefix_cache", [True, False], [0]),
    ],
)
def test_limits(name: str, allowed: list[Any], refused: list[Any]) -> None:
    for value in allowed:
        kept = getattr(parse(**{name: value}), name)
        assert kept == ([value] if name == "stop" and isinstance(value, str) else value)
    for value in refused:
        assert refusal({**CHAT, name: value}).param == name, value


def test_log_probabilities_in_the_form_of_each_endpoint() -> None:
    assert parse(logprobs=True).reported_logprobs == 0
    assert parse(logprobs=True, top_logprobs=5).reported_logprobs == 5
    assert parse(logprobs=False).reported_logprobs is parse().reported_logprobs is None
    assert parse(prompt_logprobs=2, logprobs=True, top_logprobs=5).reported_prompt_logprobs == 2
    raw = GenerationRequest.parse({**RAW, "logprobs": 3})
    assert (raw.reported_logprobs, raw.reported_prompt_logprobs) == (3, None)
    echo = GenerationRequest.parse({**RAW, "logprobs": 3, "echo": True})
    assert (echo.reported_logprobs, echo.reported_prompt_logprobs) == (3, 3)
    both = GenerationRequest.parse({**RAW, "logprobs": 3, "echo": True, "prompt_logprobs": 0})
    assert (both.reported_logprobs, both.reported_prompt_logprobs) == (3, 0)
    assert GenerationRequest.parse({**RAW, "logprobs": False}).reported_logprobs is None
    wrong = [{**CHAT, "logprobs": 3}, {**CHAT, "logprobs": 0}]
    wrong += [{**RAW, "logprobs": value} for value in (-1, 21, True)]
    for body in wrong:
        error = refusal(body)
        assert error.param == "logprobs"
        assert "true or false beside messages, and an integer from 0 to 20 beside prompt" in error.message
    for logprobs in (None, False):
        assert refusal({**CHAT, "logprobs": logprobs, "top_logprobs": 5}).param == "top_logprobs"
    assert refusal({**RAW, "logprobs": 3, "top_logprobs": 5}).param == "top_logprobs"
    assert refusal({**CHAT, "logprobs": True, "top_logprobs": 21}).param == "top_logprobs"
    assert refusal({**CHAT, "echo": True}).param == "echo"


def test_min_tokens_above_max_tokens() -> None:
    for limit in ("max_tokens", "max_completion_tokens"):
        assert refusal({**CHAT, "min_tokens": 6, limit: 5}).param == "min_tokens"
        assert parse(**{"min_tokens": 5, limit: 5}).min_tokens == 5


@pytest.mark.parametrize(
    ("fields", "kind", "definition"),
    [
        ({"response_format": {"type": "text"}}, None, None),
        ({"response_format": {"type": "json_object"}}, "json_schema", {"type": "object"}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            "json_schema",
            SCHEMA,
        ),
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA),
        ({"guided_json": json.dumps(SCHEMA)}, "json_schema", SCHEMA),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA),
        ({"guided_choice": ["a", "b"]}, "choice", ["a", "b"]),
        ({"guided_regex": "[0-9]+"}, "regex", "[0-9]+"),
        ({"structured_outputs": {"regex": "[0-9]+"}}, "regex", "[0-9]+"),
        ({"guided_grammar": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
    ],
)
def test_ways_to_ask_for_a_form(fields: dict[str, Any], kind: str | None, definition: Any) -> None:
    form = parse(**fields).structured_output
    assert (form and form.kind) == kind
    if form is not None:
        text = form.definition
        assert (json.loads(text) if kind in ("json_schema", "choice") else text) == definition
        assert form.param == next(iter(fields))


@pytest.mark.parametrize(
    ("param", "value"),
    [
        *(("response_format", value) for value in ({}, {"type": "xml"}, {"type": "json_schema"}, "json_object", 5)),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": 5}}),
        *(("guided_json", value) for value in ("{", "5", 5, [1])),
        *(("guided_choice", value) for value in ([], ["a", ""], [1], "a")),
        *(("guided_regex", value) for value in ("", 5)),
        *(("structured_outputs", value) for value in ({}, {"xml": "a"}, {"json": {}, "regex": "a"})),
    ],
)
def test_forms_that_are_none_are_refused_by_name(param: str, value: Any) -> None:
    error = refusal({**CHAT, param: value})
    assert error.param == param
    assert error.message.startswith(param)


def test_two_forms_are_one_too_many() -> None:
    error = refusal({**CHAT, "guided_regex": "a", "response_format": {"type": "json_object"}})
    assert error.message == "response_format: guided_regex asks for a form already; give one of them"


def test_tools_and_how_to_choose() -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in (None, "none", "auto", "required", named):
        request = parse(tools=[TOOL], tool_choice=choice)
        assert request.may_call_tools is (choice != "none")
        assert GenerationRequest.model_validate_json(submission(request).request).tools == request.tools
    for choice in (None, "none", "auto"):
        request = parse(tools=[], tool_choice=choice)
        assert request.tools is None
        assert not request.may_call_tools
    form = {"type": "json_object"}
    assert parse(tools=[TOOL], tool_choice="none", response_format=form).structured_output is not None
    assert len(parse(tools=[function(f"f{index}") for index in range(128)]).tools or []) == 128


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{}]}, "tools"),
        ({"tools": [{**TOOL, "type": "browser"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [function("f" * 65)]}, "tools"),
        ({"tools": [function("")]}, "tools"),
        ({"tools": [function(f"f{index}") for index in range(129)]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ],
)
def test_tools_and_prompt_settings_that_cannot_be(fields: dict[str, Any], param: str) -> None:
    assert refusal({**CHAT, **fields}).param == param


@pytest.mark.parametrize("name", ["tools", "tool_choice", "chat_template_kwargs"])
def test_what_goes_with_messages_only(name: str) -> None:
    values: dict[str, Any] = {"tools": [TOOL], "tool_choice": "auto", "chat_template_kwargs": {"a": 1}}
    error = refusal({**RAW, name: values[name]})
    assert error.message == f"{name}: it goes with messages, not with a prompt"
    assert error.param == name


def test_d12_a_call_without_content_and_the_tool_turn_after_it() -> None:
    turns = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
    ]
    request = GenerationRequest.parse({"messages": turns})
    assert request.messages is not None
    assert [message.content for message in request.messages] == ["weather?", "", "sunny"]
    assert request.messages[1].tool_calls is not None
    kept = GenerationRequest.model_validate_json(submission(request).request).messages
    assert kept == request.messages


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "user", "content": "x", "tool_calls": [CALL]},
        {"role": "tool", "content": "x"},
        {"role": "user", "content": "x", "tool_call_id": "c1"},
        {"role": "assistant"},
        {"role": "user"},
        {"role": "assistant", "content": "x", "tool_calls": []},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "function": {"name": "f"}}]},
        {"role": "boss", "content": "x"},
    ],
)
def test_d12_turns_that_cannot_be(turn: dict[str, Any]) -> None:
    error = refusal({"messages": [turn]})
    assert error.param == "messages"
    assert error.message.startswith("messages.0")


def test_a4_surrogates_inside_schemas_and_tools() -> None:
    request = parse(guided_json={"enum": ["a\ud83d"], "\ud83d": {"const": ["\ud83d"]}})
    assert request.guided_json == {"enum": ["a\ufffd"], "\ufffd": {"const": ["\ufffd"]}}
    assert "\ufffd" in submission(request).request
