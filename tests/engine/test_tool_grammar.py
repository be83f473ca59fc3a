"""Grammars that make a model write tool calls, with llguidance itself."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headrace.engine import RequestError
from headrace.engine.tool_calls import (
    HermesFormat,
    LlamaFormat,
    MistralFormat,
    MistralNameFormat,
    ToolCall,
    ToolFormat,
)
from transformers import AutoTokenizer

llguidance = pytest.importorskip("llguidance")
llguidance_hf = pytest.importorskip("llguidance.hf")

SPECIAL = ["<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"]
TAGS = ["<tool_call>", "</tool_call>"]
PLACE = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"at": {"$ref": "#/$defs/Place"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["at"],
    "additionalProperties": False,
    "$defs": {"Place": {"enum": ["Lima", "Zürich", 'a "b" \\c']}},
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "look", "parameters": PLACE}},
    {"type": "function", "function": {"name": "look_up", "description": "no parameters"}},
    {"type": "function", "function": {"name": "tell", "parameters": {"type": "object", "required": ["text"],
     "properties": {"text": {"type": "string"}, "loud": {"type": "boolean"}}}}},
]  # fmt: skip
Accepts = Callable[[str, str], bool]


@pytest.fixture(scope="module")
def tokenizer(demo_directory: Path) -> Any:
    """The demo model's tokenizer with the markers of other models: Qwen's are tokens, and not special."""
    tokenizer = AutoTokenizer.from_pretrained(demo_directory)
    tokenizer.add_special_tokens({"extra_special_tokens": SPECIAL})
    tokenizer.add_tokens(TAGS)
    return tokenizer


@pytest.fixture(scope="module")
def guide(tokenizer: Any) -> Any:
    return llguidance_hf.from_tokenizer(tokenizer)


@pytest.fixture(scope="module")
def forms(tokenizer: Any) -> dict[str, ToolFormat]:
    special = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    return {
        "hermes": HermesFormat({tag: tokenizer.convert_tokens_to_ids(tag) for tag in TAGS}),
        "llama": LlamaFormat(special),
        "mistral": MistralFormat(special),
        "mistral name": MistralNameFormat(special),
    }


def matcher(guide: Any, grammar: str) -> Any:
    made = llguidance.LLMatcher(guide, llguidance.grammar_from("lark", grammar), log_level=0)
    assert not made.is_error(), made.get_error()
    return made


@pytest.fixture(scope="module")
def accepts(tokenizer: Any, guide: Any) -> Accepts:
    def whole(grammar: str, text: str) -> bool:
        made = matcher(guide, grammar)
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        return bool(made.try_consume_tokens(token_ids) == len(token_ids) and made.is_accepting())

    return whole


# How each form writes calls of some names and arguments.
WRITERS: dict[str, Callable[[list[tuple[str, str]]], str]] = {
    "hermes": lambda calls: "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>' for name, arguments in calls
    ),
    "llama": lambda calls: "; ".join(f'{{"name": "{name}", "parameters": {arguments}}}' for name, arguments in calls),
    "mistral": lambda calls: (
        "[TOOL_CALLS] ["
        + ", ".join(f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in calls)
        + "]"
    ),
    "mistral name": lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in calls),
}
GOOD = [
    ("look", '{"at": "Lima"}'),
    ("look", '{"at": "Zürich", "days": 3}'),
    ("look", '{"at": "a \\"b\\" \\\\c"}'),
    ("look_up", "{}"),
    ("tell", '{"text": "<b> \\n {}", "loud": true}'),
    ("tell", '{"text": "", "more": [1, {"a": null}]}'),
]
BAD = [
    ("look", "{}"),
    ("look", '{"at": "Paris"}'),
    ("look", '{"at": "Lima", "days": 0}'),
    ("look", '{"at": "Lima", "more": 1}'),
    ("look", '{"at":  "Lima"}'),
    ("look_up", '{"a": 1}'),
    ("look_u", "{}"),
    ("tell", '{"text": 1}'),
    ("tell", "null"),
]


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("call", GOOD)
def test_a_valid_call_is_accepted_and_read_back(
    form: str, call: tuple[str, str], forms: dict[str, ToolFormat], accepts: Accepts
) -> None:
    text = WRITERS[form]([call])
    for name in (None, call[0]):
        for parallel in (False, True):
            assert accepts(forms[form].grammar(TOOLS, name, parallel), text)
    assert forms[form].parse(text).tool_calls == (ToolCall(*call),)


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("call", BAD)
def test_an_invalid_call_is_rejected(
    form: str, call: tuple[str, str], forms: dict[str, ToolFormat], accepts: Accepts
) -> None:
    assert not accepts(forms[form].grammar(TOOLS, None, True), WRITERS[form]([call]))


@pytest.mark.parametrize("form", WRITERS)
def test_only_the_named_function_can_be_called(form: str, forms: dict[str, ToolFormat], accepts: Accepts) -> None:
    grammar = forms[form].grammar(TOOLS, "look", True)
    assert accepts(grammar, WRITERS[form]([GOOD[0]]))
    assert not accepts(grammar, WRITERS[form]([("look_up", "{}")]))
    assert not accepts(grammar, WRITERS[form]([GOOD[0], ("look_up", "{}")]))


@pytest.mark.parametrize("form", WRITERS)
def test_several_calls_only_where_they_may_be_parallel(
    form: str, forms: dict[str, ToolFormat], accepts: Accepts
) -> None:
    text = WRITERS[form](GOOD)
    assert accepts(forms[form].grammar(TOOLS, None, True), text)
    assert forms[form].parse(text).tool_calls == tuple(ToolCall(*call) for call in GOOD)
    assert not accepts(forms[form].grammar(TOOLS, None, False), WRITERS[form](GOOD[:2]))


@pytest.mark.parametrize("form", WRITERS)
def test_an_answer_must_be_a_whole_call(form: str, forms: dict[str, ToolFormat], accepts: Accepts) -> None:
    grammar, text = forms[form].grammar(TOOLS, None, True), WRITERS[form]([GOOD[0]])
    for wrong in ("", "Hello.", text[:-1], f"Sure. {text}", f"{text} Done."):
        assert not accepts(grammar, wrong)


@pytest.mark.parametrize("form", WRITERS)
def test_one_call_ends_the_answer(form: str, forms: dict[str, ToolFormat], tokenizer: Any, guide: Any) -> None:
    made = matcher(guide, forms[form].grammar(TOOLS, None, False))
    assert made.consume_tokens(tokenizer.encode(WRITERS[form]([GOOD[1]]), add_special_tokens=False))
    assert made.is_accepting()
    assert allowed(made) == [tokenizer.eos_token_id]


def test_markers_may_be_plain_text(demo_tokenizer: Any) -> None:
    plain = llguidance_hf.from_tokenizer(demo_tokenizer)
    for form, kind in (("hermes", HermesFormat), ("mistral", MistralFormat), ("mistral name", MistralNameFormat)):
        made = matcher(plain, kind({}).grammar(TOOLS, None, True))
        assert made.consume_tokens(demo_tokenizer.encode(WRITERS[form](GOOD), add_special_tokens=False))
        assert made.is_accepting()


def test_markers_may_be_tokens_that_are_not_special(demo_directory: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_directory)
    tokenizer.add_tokens(SPECIAL)
    form = MistralNameFormat({token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL})
    made = matcher(llguidance_hf.from_tokenizer(tokenizer), form.grammar(TOOLS, None, True))
    assert made.consume_tokens(tokenizer.encode(WRITERS["mistral name"](GOOD), add_special_tokens=False))
    assert made.is_accepting()


def test_llamas_tag_may_come_first(forms: dict[str, ToolFormat], accepts: Accepts) -> None:
    text = "<|python_tag|>" + WRITERS["llama"]([GOOD[0]])
    assert accepts(forms["llama"].grammar(TOOLS, None, True), text)
    assert forms["llama"].parse(text).tool_calls == (ToolCall(*GOOD[0]),)


def test_mistrals_call_id_may_stand_before_the_arguments(forms: dict[str, ToolFormat], accepts: Accepts) -> None:
    text = '[TOOL_CALLS]look[CALL_ID]a1B2c3D4e[ARGS]{"at": "Lima"}'
    assert accepts(forms["mistral name"].grammar(TOOLS, None, True), text)
    assert forms["mistral name"].parse(text).tool_calls == (ToolCall(*GOOD[0]),)


def allowed(made: Any) -> list[int]:
    mask = int.from_bytes(made.compute_bitmask(), "little")
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


CLOSED: list[dict[str, Any]] = [TOOLS[0], TOOLS[1]]


@pytest.mark.parametrize("form", ["hermes", "llama", "mistral", "mistral name"])
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_drawn_is_calls(
    form: str, parallel: bool, seed: int, forms: dict[str, ToolFormat], tokenizer: Any, guide: Any
) -> None:
    draw, made = random.Random(seed), matcher(guide, forms[form].grammar(CLOSED, None, parallel))
    token_ids: list[int] = []
    while not made.is_stopped():
        assert len(token_ids) < 3000
        choices = allowed(made)
        done = tokenizer.eos_token_id in choices and draw.random() < 0.5
        token_ids.append(tokenizer.eos_token_id if done else draw.choice(choices))
        assert made.consume_token(token_ids[-1])
    answer = forms[form].parse(tokenizer.decode(token_ids).removesuffix(tokenizer.eos_token))
    assert answer.content == ""
    assert len(answer.tool_calls) == 1 or (parallel and answer.tool_calls)
    for call in answer.tool_calls:
        arguments = json.loads(call.arguments)
        assert (call.name, arguments) == ("look_up", {}) or (
            call.name == "look" and arguments.pop("at") in PLACE["$defs"]["Place"]["enum"]  # type: ignore[index]
            and arguments.pop("days", 1) in range(1, 10) and not arguments
        )  # fmt: skip


@pytest.mark.parametrize(("tools", "names"), [(TOOLS, "look, look_up, tell"), ([], "none")])
def test_a_function_that_is_no_tool_is_named(tools: list[dict[str, Any]], names: str) -> None:
    with pytest.raises(RequestError, match=f"^tool_choice names other; the tools are: {names}$") as caught:
        HermesFormat({}).grammar(tools, "other", True)
    assert caught.value.param == "tool_choice"
