"""Turns of a conversation in OpenAI's form, tools, and variables of the template."""

from __future__ import annotations

import json
from typing import Any

import pytest
from headrace.engine import RequestError
from headrace.engine.prompt_encoder import PromptEncoder, truncate_prompt

from .toy_tokenizers import byte_level

ROLES = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
CALLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ '(' ~ m.content ~ ')' }}"
    "{% for call in m.tool_calls %}{{ call.function.name }}={{ call.function.arguments | tojson }}"
    "{{ call.function.arguments is mapping }}{% endfor %}{% endfor %}"
)
USER: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def read(template: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    """The prompt's text."""
    tokenizer = byte_level(chat_template=template)
    text: str = tokenizer.decode(PromptEncoder(tokenizer, 300).encode_chat(messages, **options))
    return text


def called(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}]


def test_d12_null_content_beside_tool_calls_is_no_text_and_the_calls_stay() -> None:
    messages = [*called('{"at": "é"}'), {"role": "tool", "tool_call_id": "c1", "content": "sunny"}]
    assert read(CALLS, messages) == '[user](hello)[assistant]()look={"at": "é"}True[tool](sunny)'
    del messages[1]["content"]
    assert read(CALLS, messages) == '[user](hello)[assistant]()look={"at": "é"}True[tool](sunny)'
    is_text = "{% for m in messages %}{{ m.content is string }} {% endfor %}"
    assert read(is_text, [{"role": "user", "content": None}, *messages[1:]]) == "True True True "


@pytest.mark.parametrize("arguments", ["", "null", "{}", " {} ", " ", None, {}])
def test_d12_no_arguments_are_an_empty_object(arguments: Any) -> None:
    assert read(CALLS, called(arguments)).endswith("look={}True")


@pytest.mark.parametrize("arguments", ["{", "look", "{'a': 1}", "[" * 100_000, "9" * 5000])
def test_d12_arguments_that_are_not_json_are_refused(arguments: str) -> None:
    with pytest.raises(
        RequestError, match=r"^messages\[1\]\.tool_calls\[0\]\.function\.arguments is not JSON"
    ) as caught:
        read(CALLS, called(arguments))
    assert caught.value.param == "messages"


@pytest.mark.parametrize("arguments", ["[]", "1", '"{}"', "true", 1, [1]])
def test_d12_arguments_that_are_no_object_are_refused(arguments: Any) -> None:
    with pytest.raises(
        RequestError, match=r"^messages\[1\]\.tool_calls\[0\]\.function\.arguments must be the text of a"
    ):
        read(CALLS, called(arguments))


def test_d12_the_callers_messages_are_left_as_they_are() -> None:
    messages = [{"role": "developer", "content": "x"}, *called('{"a": 1}')]
    before = json.dumps(messages)
    read(CALLS, messages, tools=TOOLS)
    assert json.dumps(messages) == before


@pytest.mark.parametrize(("aside", "role"), [("", "system"), ("{# system or developer #}", "developer")])
def test_d12_developer_is_called_system_unless_the_template_knows_it(aside: str, role: str) -> None:
    messages = [{"role": "developer", "content": "Be kind."}, *USER]
    assert read(aside + ROLES, messages) == f"[{role}]Be kind.[user]hello"


@pytest.mark.parametrize("calls", ["text", [None], [{}], [{"function": "look"}], 7])
def test_d12_tool_calls_of_other_forms_are_the_templates_to_judge(calls: Any) -> None:
    messages = [{"role": "assistant", "content": "x", "tool_calls": calls}]
    assert read(ROLES, messages) == "[assistant]x"


def test_tools_reach_the_template() -> None:
    assert read(CALLS, USER, tools=TOOLS) == json.dumps(TOOLS) + "[user](hello)"
    tokenizer = byte_level(chat_template=CALLS)
    expected = tokenizer.apply_chat_template(USER, tools=TOOLS, add_generation_prompt=True, return_dict=False)
    assert PromptEncoder(tokenizer, 300).encode_chat(USER, tools=TOOLS) == expected
    assert read(CALLS, USER, tools=[]) == read(CALLS, USER)


@pytest.mark.parametrize("template", [ROLES, "{{ no_tools_here }}" + ROLES, {"default": ROLES}])
def test_tools_that_the_template_has_no_place_for_are_refused(template: Any) -> None:
    with pytest.raises(RequestError, match="chat template carries no tools") as caught:
        read(template, USER, tools=TOOLS)
    assert caught.value.param == "tools"


def test_a_template_for_tools_is_taken_for_requests_with_tools() -> None:
    templates = {"default": ROLES, "tool_use": "{{ tools[0].function.name }}:" + ROLES}
    assert read(templates, USER) == "[user]hello"
    assert read(templates, USER, tools=TOOLS) == "look:[user]hello"
    assert read({"default": CALLS}, USER, tools=TOOLS) == json.dumps(TOOLS) + "[user](hello)"


def test_d12_templates_of_which_none_is_the_default_are_refused() -> None:
    with pytest.raises(RequestError, match="no default chat template") as caught:
        read({"rag": ROLES}, USER)
    assert (caught.value.code, caught.value.param) == ("no_chat_template", "messages")


def test_variables_reach_the_template() -> None:
    template = "{% if thinking %}think {% endif %}{% if documents %}{{ documents[0].text }}{% endif %}" + ROLES
    variables = {"thinking": True, "documents": [{"text": "doc "}]}
    assert read(template, USER, template_kwargs=variables) == "think doc [user]hello"
    assert read(template, USER, template_kwargs={"unused": 1}) == "[user]hello"


@pytest.mark.parametrize(
    "name",
    [
        *("conversation", "messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message"),
        *("tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"),
        *("return_assistant_tokens_mask", "sanitize_control_tokens", "kwargs", "bos_token", "eos_token"),
    ],
)
@pytest.mark.parametrize("allow", [False, True])
def test_variables_cannot_set_what_headrace_sets(name: str, allow: bool) -> None:
    with pytest.raises(RequestError, match=f"chat_template_kwargs must not set {name}:") as caught:
        read(ROLES, USER, template_kwargs={"fine": 1, name: 1}, allow_control_tokens=allow)
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    "variables", [{"range": 1}, {"raise_exception": "x"}, {"documents": 7}, {"x": {"deep": [[["</s>"]] * 9]}}]
)
def test_variables_that_break_a_template_are_the_requests_fault(variables: dict[str, Any]) -> None:
    template = "{% if x %}{{ x.deep + 1 }}{% endif %}{% for d in documents or [] %}{% endfor %}{{ range(1) }}"
    with pytest.raises(RequestError, match="the chat template refuses these messages"):
        read(
            template + "{% if raise_exception is string %}{{ raise_exception() }}{% endif %}",
            USER,
            template_kwargs=variables,
        )


def test_a4_half_a_surrogate_pair_in_arguments_is_refused() -> None:
    with pytest.raises(RequestError, match="the chat template refuses these messages"):
        read(CALLS, called('{"a": "\\ud83d"}'))


@pytest.mark.parametrize(("keep", "kept"), [(1, [3]), (2, [2, 3]), (3, [1, 2, 3]), (4, [1, 2, 3])])
def test_the_last_tokens_of_a_prompt_are_kept(keep: int, kept: list[int]) -> None:
    assert truncate_prompt([1, 2, 3], keep) == kept


@pytest.mark.parametrize("keep", [0, -1])
def test_a_prompt_is_not_truncated_to_nothing(keep: int) -> None:
    with pytest.raises(RequestError, match=f"truncate_prompt_tokens is {keep}; it must keep at least 1") as caught:
        truncate_prompt([1, 2, 3], keep)
    assert caught.value.param == "truncate_prompt_tokens"
