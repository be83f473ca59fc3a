"""Tool calls in the text of answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from headrace.engine.tool_calls import (
    HermesFormat,
    LlamaFormat,
    MistralFormat,
    MistralNameFormat,
    ParsedAnswer,
    ToolCall,
    ToolFormat,
    tool_format_of,
)
from hypothesis import given
from hypothesis import strategies as st

from .toy_tokenizers import byte_level

# The lines of real templates that tell how calls are written.
QWEN = (
    "{%- if tools %}"
    r'{{- "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>" }}'
    "{% endif %}"
)
QWEN_CODER = "{% if tools %}<tool_call>\n<function=example>\n<parameter=a>\narguments{% endif %}"
LLAMA = (
    "<|start_header_id|>{% if tools %}"
    """{{ 'Respond in the format {"name": function name, "parameters": dictionary}.' }}"""
    "{% endif %}"
)
MISTRAL = """{% if tools %}{% endif %}{{ "[TOOL_CALLS] [" }}{{ '{"name": ' }}{{ ', "arguments": ' }}"""
MISTRAL_NAME = """{% if tools %}{% endif %}{{ "[TOOL_CALLS]" + name + "[ARGS]" + arguments }}"""
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"

HERMES, LIST, NAME, BARE = HermesFormat({}), MistralFormat({}), MistralNameFormat({}), LlamaFormat({})
FORMATS: list[ToolFormat] = [HERMES, LIST, NAME, BARE]
LOOK = ToolCall("look", '{"at": "Lima", "n": 2}')


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (QWEN, HermesFormat),
        (LLAMA, LlamaFormat),
        (MISTRAL, MistralFormat),
        (MISTRAL_NAME, MistralNameFormat),
        (QWEN_CODER, None),
        (PLAIN, None),
        (None, None),
        ({"default": PLAIN, "tool_use": QWEN}, HermesFormat),
        ({"default": MISTRAL}, MistralFormat),
        ({"rag": QWEN}, None),
    ],
)
def test_the_form_is_known_by_the_template(template: Any, expected: type[ToolFormat] | None) -> None:
    found = tool_format_of(byte_level(chat_template=template))
    assert (None if found is None else type(found)) == expected


def test_the_demo_model_has_none(demo_tokenizer: Any) -> None:
    assert tool_format_of(demo_tokenizer) is None


@pytest.mark.parametrize(
    ("template", "added", "special"),
    [
        (QWEN, ["<tool_call>", "</tool_call>"], True),
        (QWEN, ["<tool_call>", "</tool_call>"], False),
        (LLAMA, ["<|python_tag|>"], True),
        (MISTRAL_NAME, ["[TOOL_CALLS]", "[ARGS]"], True),
    ],
)
def test_b6_special_tokens_around_calls_are_named(template: str, added: list[str], special: bool) -> None:
    tokenizer = byte_level(chat_template=template)
    tokenizer.add_tokens([*added, "[/INST]"], special_tokens=special)
    found = tool_format_of(tokenizer)
    assert found is not None
    assert found.marker_token_ids == (set(tokenizer.convert_tokens_to_ids(added)) if special else set())


@pytest.mark.parametrize(
    ("form", "text", "content"),
    [
        (HERMES, '<tool_call>\n{"name": "look", "arguments": {"at": "Lima", "n": 2}}\n</tool_call>', ""),
        (HERMES, '\n\n<tool_call>{"arguments":{"at":"Lima","n":2},"name":"look"}</tool_call>\n', ""),
        (HERMES, 'Let me.\n<tool_call>\n{"name": "look", "arguments": {"at": "Lima", "n": 2}}', "Let me."),
        (BARE, '{"name": "look", "parameters": {"at": "Lima", "n": 2}}', ""),
        (BARE, 'Let me.<|python_tag|>{"name": "look", "parameters": {"at": "Lima", "n": 2}}', "Let me."),
        (BARE, ' {"type": "function", "name": "look", "parameters": {"at": "Lima", "n": 2}} ;', ""),
        (LIST, '[TOOL_CALLS] [{"name": "look", "arguments": {"at": "Lima", "n": 2}}]', ""),
        (LIST, 'Let me. [TOOL_CALLS][{"name": "look", "arguments": {"at": "Lima", "n": 2}, "id": "x"}]', "Let me."),
        (NAME, '[TOOL_CALLS]look[ARGS]{"at": "Lima", "n": 2}', ""),
        (NAME, 'Let me.[TOOL_CALLS]look{"at": "Lima", "n": 2}', "Let me."),
        (NAME, '[TOOL_CALLS]look[CALL_ID]a1B2c3D4e[ARGS] {"at": "Lima", "n": 2}\n', ""),
    ],
)
def test_a_call_is_read(form: ToolFormat, text: str, content: str) -> None:
    assert form.parse(text) == ParsedAnswer(content, (LOOK,))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (HERMES, '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n<tool_call>{"name": "g", "arguments": null}'),
        (BARE, '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}'),
        (BARE, '<|python_tag|>{"name": "f", "parameters": {}}\n{"name": "g", "parameters": {}}'),
        (LIST, '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]'),
        (NAME, "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}"),
        (NAME, "[TOOL_CALLS]f{}\n[TOOL_CALLS] g {}"),
    ],
)
def test_several_calls_are_read_in_order(form: ToolFormat, text: str) -> None:
    assert form.parse(text) == ParsedAnswer("", (ToolCall("f", "{}"), ToolCall("g", "{}")))


def test_text_between_calls_is_content() -> None:
    text = 'One. <tool_call>{"name": "f", "arguments": {}}</tool_call> Two.'
    assert HERMES.parse(text) == ParsedAnswer("One.  Two.", (ToolCall("f", "{}"),))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        *(
            (form, text)
            for form in FORMATS
            for text in ("", " \n", "Hello.", "[", "{", "[]", "{}", '{"a": 1}', "7", "null")
        ),
        (HERMES, "<tool_call>"),
        (HERMES, '<tool_call>\n{"name": "f", "arg'),
        (HERMES, '<tool_call>{"name": "f", "arguments": {}}x</tool_call>'),
        (HERMES, '<tool_call>{"name": "f", "arguments": {}} <tool_call>{"name": "f", "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{</tool_call>'),
        *(
            (HERMES, f'<tool_call>{{"name": {name}, "arguments": {{}}}}</tool_call>')
            for name in ("1", "null", '""', '"\\ud83d"')
        ),
        *(
            (HERMES, f'<tool_call>{{"name": "f", "arguments": {bad}}}</tool_call>')
            for bad in ("[]", "1", '"{}"', "NaN")
        ),
        *((HERMES, f'<tool_call>{{"name": "f", "arguments": {{"a": {bad}}}}}</tool_call>') for bad in ("NaN", "1e999")),
        (HERMES, "<tool_call>[]</tool_call>"),
        (HERMES, '<tool_call>{"name": "f"}</tool_call>'),
        (HERMES, "<tool_call>" + "[" * 100_000),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>"),
        (BARE, '{"name": "Bob", "age": 3}'),
        (BARE, 'I call {"name": "f", "parameters": {}}'),
        (BARE, '{"name": "f", "parameters": {}} I called.'),
        (BARE, "<|python_tag|>"),
        (BARE, "<|python_tag|>print(1)"),
        (LIST, "[TOOL_CALLS]"),
        (LIST, "[TOOL_CALLS] []"),
        (LIST, "[TOOL_CALLS] {}"),
        (LIST, '[TOOL_CALLS] [{"name": "f", "arguments": {}}, 1]'),
        (LIST, '[TOOL_CALLS] [{"name": "f", "arguments": {}}] done'),
        (NAME, "[TOOL_CALLS]f[ARGS][]"),
        (NAME, "[TOOL_CALLS]f[ARGS]{"),
        (NAME, "[TOOL_CALLS]f[ARGS]{} done"),
        (NAME, "[TOOL_CALLS][ARGS]{}"),
    ],
)
def test_what_is_no_call_is_text_as_it_stands(form: ToolFormat, text: str) -> None:
    assert form.parse(text) == ParsedAnswer(text)


def test_markers_within_arguments_are_text() -> None:
    arguments = {"a": "</tool_call> <tool_call>", "b": "[TOOL_CALLS]x[ARGS]{}", "c": '}"; {'}
    text = json.dumps(arguments)
    expected = ParsedAnswer("", (ToolCall("f", text),))
    assert HERMES.parse(f'<tool_call>{{"name": "f", "arguments": {text}}}</tool_call>') == expected
    assert NAME.parse(f"[TOOL_CALLS]f[ARGS]{text}") == expected
    assert LIST.parse(f'[TOOL_CALLS][{{"name": "f", "arguments": {text}}}]') == expected
    assert BARE.parse(f'{{"name": "f", "parameters": {text}}}') == expected


def test_a4_half_a_surrogate_pair_in_arguments_stays_escaped() -> None:
    (call,) = NAME.parse('[TOOL_CALLS]f[ARGS]{"a": "\\ud83d", "b": "é"}').tool_calls
    assert call.arguments.encode().isascii()
    assert json.loads(call.arguments) == {"a": "\ud83d", "b": "é"}
    (call,) = NAME.parse('[TOOL_CALLS]f[ARGS]{"b": "\\u00e9"}').tool_calls
    assert call.arguments == '{"b": "é"}'


CHUNKS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        *('{"name": "f", "arguments": {}}', '{"name": "f", "parameters": {}}', '"name"'),
        *("[", "]", "{", "}", ";", ",", ":", "1", " ", "f", "\\ud83d", '"'),
    ]
)


@given(st.lists(CHUNKS | st.text(max_size=3), max_size=12).map("".join), st.sampled_from(FORMATS))
def test_no_text_makes_it_raise(text: str, form: ToolFormat) -> None:
    answer = form.parse(text)
    assert answer.tool_calls or answer.content == text
    assert all(isinstance(json.loads(call.arguments), dict) and call.name for call in answer.tool_calls)
