"""Answers that are known beforehand: tool calls that a model makes by itself, and a tokenizer of words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from headrace.engine.request import Request
from headrace.producers import Client
from headrace.worker.embedded import EmbeddedServer
from headrace.worker.service import WorkerService

from ..engine.scripted import ScriptedModel, scripted_engine
from ..engine.toy_tokenizers import byte_level, byte_tokens, sentencepiece_like
from .asking import EOS, ask, body_of
from .services import serving

TEMPLATE = (
    '{% if tools %}<tool_call>{"name": ..., "arguments": ...}</tool_call>{% endif %}'
    "{% for message in messages %}{{ message.content }}{% endfor %}"
)
LOOK, STOP = ({"type": "function", "function": {"name": name}} for name in ("look", "stop"))
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "tools": [LOOK, STOP], "max_tokens": 300}
CALL = '<tool_call>{"name": "look", "arguments": {"at": "Lima"}}</tool_call>'
SAID = [CALL, f"Two. {CALL}\n{CALL}", "None.", "<tool_call>{", f"{CALL}\n<tool_call>broken", CALL]
"""What the model of bytes says, by the seed."""
MARKED = 5
WORDS = ["\u2581Hello", "\u2581world", ".", "<0xC3>", "<0xA9>", "\u2581a", "a"]
"""What the model of words says."""


@pytest.fixture(scope="module", autouse=True)
def workers(server: EmbeddedServer) -> Iterator[list[WorkerService]]:
    """Two workers: a model of bytes that follows a script, and one of words."""
    tokenizer, words = byte_level(chat_template=TEMPLATE), sentencepiece_like(add_bos=True)
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"], special_tokens=True)
    answers = [[*byte_tokens(tokenizer, text), EOS] for text in SAID]
    # The last one is said with markers that are special tokens, which have no text elsewhere.
    answers[MARKED] = [*tokenizer.encode(SAID[MARKED], add_special_tokens=False), EOS]
    word_ids = words.convert_tokens_to_ids([*WORDS, "</s>"])

    def by_seed(request: Request, index: int) -> int:
        return answers[(request.params.seed + request.sample_index) % len(answers)][index]

    size: dict[str, int] = {"blocks": 1000, "max_num_batched_tokens": 500}
    byte_model = scripted_engine(ScriptedModel(by_seed, max_len=500, eos=EOS), tokenizer=tokenizer, **size)
    word_model = scripted_engine(ScriptedModel(lambda _, index: word_ids[index], eos=EOS), tokenizer=words, **size)
    byte_model.name, word_model.name = "bytes", "words"
    with serving(server.url, byte_model) as first, serving(server.url, word_model) as second:
        yield [first, second]


def said(client: Client, seed: int, **fields: Any) -> dict[str, Any]:
    """The choice that the worker answers with."""
    body = {"model": "bytes", **ASKED, "seed": seed, "temperature": 0, **fields}
    [choice] = body_of(body, ask(client, body))["choices"]
    found: dict[str, Any] = choice
    return found


def test_calls_that_the_model_makes_by_itself(client: Client) -> None:
    one = said(client, 0)
    assert (one["finish_reason"], one["message"]["content"]) == ("tool_calls", None)
    [call] = one["message"]["tool_calls"]
    assert (call["type"], call["function"]) == ("function", {"name": "look", "arguments": '{"at": "Lima"}'})
    two = said(client, 1)
    assert (two["finish_reason"], two["message"]["content"]) == ("tool_calls", "Two.")
    assert len({call["id"] for call in two["message"]["tool_calls"]}) == 2
    assert all(re.fullmatch(r"call_\w+", call["id"]) for call in two["message"]["tool_calls"])


def test_one_call_at_most_where_no_more_may_be_made(client: Client) -> None:
    two = said(client, 1, parallel_tool_calls=False)
    assert [call["function"]["name"] for call in two["message"]["tool_calls"]] == ["look"]
    assert (two["finish_reason"], two["message"]["content"]) == ("tool_calls", "Two.")


@pytest.mark.parametrize(("seed", "text"), list(enumerate(SAID))[2:5])
def test_what_is_no_call_is_the_answers_text(client: Client, seed: int, text: str) -> None:
    answer = said(client, seed)
    assert (answer["finish_reason"], answer["message"]["content"]) == ("stop", text)
    assert "tool_calls" not in answer["message"]


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": None}])
def test_where_no_call_may_be_made_its_text_stays(client: Client, fields: dict[str, Any]) -> None:
    answer = said(client, 0, **fields)
    assert (answer["finish_reason"], answer["message"]["content"]) == ("stop", CALL)


def test_b6_markers_that_are_special_tokens(client: Client) -> None:
    answer = said(client, MARKED)
    assert (answer["finish_reason"], answer["message"]["content"]) == ("tool_calls", None)
    assert len(answer["message"]["tool_calls"]) == 1
    bare = said(client, MARKED, tool_choice="none")["message"]["content"]
    assert bare == CALL.removeprefix("<tool_call>").removesuffix("</tool_call>"), "they have no text elsewhere"


def test_a_call_in_an_answer_that_its_limit_ends(client: Client) -> None:
    whole = len(f"Two. {CALL}")
    answer = said(client, 1, max_tokens=whole)
    assert answer["finish_reason"] == "length"
    assert len(answer["message"]["tool_calls"]) == 1


def test_each_of_several_answers_has_its_own_calls(client: Client) -> None:
    result = ask(client, {"model": "bytes", **ASKED, "seed": 0, "temperature": 0, "n": 3})
    assert [len(choice.tool_calls or ()) for choice in result.choices] == [1, 2, 0]
    assert [choice.finish_reason for choice in result.choices] == ["tool_calls", "tool_calls", "stop"]
    ids = [call.id for choice in result.choices for call in choice.tool_calls or ()]
    assert len(set(ids)) == 3


def test_stop_texts_are_found_inside_words(client: Client) -> None:
    body = {"model": "words", "prompt": "Hello", "max_tokens": 20, "temperature": 0}
    assert ask(client, body).text == " Hello world.\u00e9 aa"
    for stop, text in (("wor", " Hello "), ("\u00e9", " Hello world."), (".\u00e9 a", " Hello world")):
        [choice] = ask(client, {**body, "stop": [stop]}).choices
        assert (choice.text, choice.stop_reason) == (text, stop)


def test_words_stand_where_their_spaces_do(client: Client) -> None:
    prompt = sentencepiece_like().convert_tokens_to_ids(["<s>", "\u2581Hello", "\u2581world"])
    body = {"model": "words", "prompt": prompt, "max_tokens": 20, "temperature": 0, "echo": True, "logprobs": 0}
    [answer] = body_of(body, ask(client, body))["choices"]
    assert answer["text"] == "Hello world Hello world.\u00e9 aa"
    logprobs = answer["logprobs"]
    assert logprobs["tokens"][:5] == ["<s>", "Hello", "world", "Hello", "world"]
    # The end of the text is where the token stands that ended the answer.
    assert logprobs["text_offset"] == [0, 0, 5, 11, 17, 23, 24, 24, 25, 27, 28]
