"""Bodies with all that an answer can carry, as output lines hold them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from headrace.producers import GenerationRequest
from headrace.producers.batch_input import Row
from headrace.producers.messages import FunctionCall, ToolCall
from headrace.producers.results import Choice, Token, TokenLogprob
from headrace.producers.text_offsets import text_offsets
from hypothesis import given
from hypothesis import strategies as st

from .test_batch_output import result, written
from .test_schema_extras import TOOL

BOS = b"<s>"


def body_of(body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The body of the output line of a request's result."""
    prompt = {} if "prompt" in body else {"messages": [{"role": "user", "content": "hi"}]}
    row = Row(1, "r", "batch_req_1", GenerationRequest.parse({**prompt, **body}))
    found: dict[str, Any] = written(row, result(**fields))["response"]["body"]
    return found


def scored(text: str | bytes, logprob: float = -0.5, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    """A token that the model found so likely."""
    encoded = text.encode() if isinstance(text, str) else text
    shown = encoded.decode(errors="replace")
    number = int.from_bytes(encoded[:3])
    return TokenLogprob(token_id=number, token=shown, bytes=list(encoded), logprob=logprob, top_logprobs=list(top))


def unscored(text: str) -> Token:
    """A prompt's first token."""
    return Token(token_id=1, token=text, bytes=list(text.encode()))


def test_several_answers_to_a_chat() -> None:
    choices = [
        Choice(index=0, text="one", finish_reason="stop"),
        Choice(index=1, text="two", finish_reason="length"),
        Choice(index=2, text="", finish_reason="stop", stop_reason="."),
    ]
    body = body_of({"n": 3}, choices=choices, completion_tokens=9)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in body["choices"]] == ["one", "two", ""]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length", "stop"]
    assert [choice.get("stop_reason", "absent") for choice in body["choices"]] == ["absent", "absent", "."]
    assert all(choice["message"]["role"] == "assistant" for choice in body["choices"])
    assert body["usage"]["total_tokens"] == 12, "of all answers"


def test_several_answers_to_a_prompt() -> None:
    choices = [
        Choice(index=0, text="one", finish_reason="stop", stop_reason=7),
        Choice(index=1, text="two", finish_reason="length"),
    ]
    body = body_of({"prompt": "hi", "n": 2}, choices=choices)
    assert body["choices"] == [
        {"index": 0, "finish_reason": "stop", "stop_reason": 7, "text": "one", "logprobs": None},
        {"index": 1, "finish_reason": "length", "text": "two", "logprobs": None},
    ]


def test_usage_with_cached_tokens() -> None:
    body = body_of({}, prompt_tokens=40, completion_tokens=5, cached_tokens=32)
    assert body["usage"] == {
        "prompt_tokens": 40,
        "completion_tokens": 5,
        "total_tokens": 45,
        "prompt_tokens_details": {"cached_tokens": 32},
    }


@pytest.mark.parametrize(("text", "content"), [("", None), ("Let me look.", "Let me look.")])
def test_tool_calls_and_the_text_beside_them(text: str, content: str | None) -> None:
    call = ToolCall(id="call_1", function=FunctionCall(name="weather", arguments='{"city": "Lima"}'))
    choice = Choice(text=text, finish_reason="tool_calls", tool_calls=[call])
    [answer] = body_of({"tools": [TOOL]}, choices=[choice])["choices"]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"] == {
        "role": "assistant",
        "content": content,
        "refusal": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Lima"}'}}
        ],
    }


def test_a_call_can_be_sent_back_as_the_turn_that_it_was() -> None:
    call = ToolCall(id="call_1", function=FunctionCall(name="weather", arguments="{}"))
    choice = Choice(finish_reason="tool_calls", tool_calls=[call])
    [answer] = body_of({"tools": [TOOL]}, choices=[choice])["choices"]
    turn = {name: value for name, value in answer["message"].items() if name != "refusal"}
    sunny = {"role": "tool", "content": "sunny", "tool_call_id": "call_1"}
    request = GenerationRequest.parse({"messages": [{"role": "user", "content": "weather?"}, turn, sunny]})
    assert request.messages is not None
    assert request.messages[1].tool_calls == [call]


def test_log_probabilities_of_a_chat() -> None:
    logprobs = [scored("a", -0.25, (scored("a", -0.25), scored("b", -2.0))), scored(b"\xf0", -9999.0)]
    choice = Choice(text="a", finish_reason="length", logprobs=logprobs)
    [answer] = body_of({"logprobs": True, "top_logprobs": 2}, choices=[choice])["choices"]
    assert answer["logprobs"] == {
        "content": [
            {
                "token": "a",
                "logprob": -0.25,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "a", "logprob": -0.25, "bytes": [97]},
                    {"token": "b", "logprob": -2.0, "bytes": [98]},
                ],
            },
            {"token": "\ufffd", "logprob": -9999.0, "bytes": [0xF0], "top_logprobs": []},
        ],
        "refusal": None,
    }


def test_log_probabilities_of_a_completion() -> None:
    likely = (scored("the", -0.1), scored(" a", -2.0))
    logprobs = [scored("the", -0.1, likely), scored("\u00e9t\u00e9", -7.0, likely), scored("!", -0.5)]
    choice = Choice(text="the\u00e9t\u00e9!", finish_reason="length", logprobs=logprobs)
    [answer] = body_of({"prompt": "hi", "logprobs": 2}, choices=[choice])["choices"]
    assert answer["logprobs"] == {
        "tokens": ["the", "\u00e9t\u00e9", "!"],
        "token_logprobs": [-0.1, -7.0, -0.5],
        # The token itself is there too, so that there may be one more than was asked for.
        "top_logprobs": [{"the": -0.1, " a": -2.0}, {"the": -0.1, " a": -2.0, "\u00e9t\u00e9": -7.0}, {"!": -0.5}],
        "text_offset": [0, 3, 6],
    }


def test_no_likeliest_tokens_where_none_are_asked_for() -> None:
    choice = Choice(text="ab", finish_reason="length", logprobs=[scored("a"), scored("b")])
    [answer] = body_of({"prompt": "hi", "logprobs": 0}, choices=[choice])["choices"]
    assert answer["logprobs"]["top_logprobs"] is None
    assert answer["logprobs"]["token_logprobs"] == [-0.5, -0.5]


def test_of_tokens_that_look_alike_the_likeliest_stands() -> None:
    top = (scored(b"\x80", -0.1), scored(b"\x81", -3.0))
    choice = Choice(text="\ufffd", finish_reason="length", logprobs=[scored(b"\x82", -5.0, top)])
    [answer] = body_of({"prompt": "hi", "logprobs": 2}, choices=[choice])["choices"]
    assert answer["logprobs"]["top_logprobs"] == [{"\ufffd": -0.1}]


@pytest.mark.parametrize(("first", "offsets"), [("Once", [0, 4, 7, 9]), ("<s>", [0, 0, 3, 5])])
def test_an_echoed_prompt_and_where_its_tokens_stand(first: str, offsets: list[int]) -> None:
    said = "Once" if first == "Once" else ""
    logprobs = [scored(" a", -1.0), scored(" time", -2.0)]
    [answer] = body_of(
        {"prompt": f"{said} up", "echo": True, "logprobs": 1},
        choices=[Choice(text=f"{said} up a time", finish_reason="length", logprobs=logprobs)],
        prompt_logprobs=[None, scored(" up", -4.0)],
        first_prompt_token=unscored(first),
    )["choices"]
    assert answer["text"] == f"{said} up a time"
    assert answer["logprobs"]["tokens"] == [first, " up", " a", " time"]
    assert answer["logprobs"]["token_logprobs"] == [None, -4.0, -1.0, -2.0]
    assert answer["logprobs"]["top_logprobs"] == [None, {" up": -4.0}, {" a": -1.0}, {" time": -2.0}]
    assert answer["logprobs"]["text_offset"] == offsets
    assert "prompt_logprobs" not in answer, "nobody asked for them"


def test_scored_prompts_stand_where_vllm_has_them() -> None:
    token = scored("b", -3.0, (scored("a", -0.1),))
    expected = [
        None,
        {
            str(ord("a")): {"logprob": -0.1, "decoded_token": "a"},
            str(ord("b")): {"logprob": -3.0, "decoded_token": "b"},
        },
    ]
    answers = [Choice(index=index, text="x", finish_reason="stop") for index in range(2)]
    chat = body_of({"prompt_logprobs": 1, "n": 2}, choices=answers, prompt_logprobs=[None, token])
    assert chat["prompt_logprobs"] == expected
    assert all("prompt_logprobs" not in choice for choice in chat["choices"])
    body = body_of({"prompt": "ab", "prompt_logprobs": 1, "n": 2}, choices=answers, prompt_logprobs=[None, token])
    assert [choice["prompt_logprobs"] for choice in body["choices"]] == [expected, expected]
    assert "prompt_logprobs" not in body
    assert all(choice["logprobs"] is None for choice in body["choices"])


@pytest.mark.parametrize(
    ("text", "tokens", "offsets"),
    [
        ("", [], []),
        ("\U0001f525b", [b"\xf0", b"\x9f", b"\x94\xa5", b"b"], [0, 0, 0, 1]),
        ("a\ufffdb", [b"a", b"\xff", b"b"], [0, 1, 2]),
        ("hi", [BOS, b"h", b"i", b"</s>"], [0, 0, 1, 2]),
        ("h\u00e9", [b"h\xc3", BOS, b"\xa9"], [0, 1, 1]),
        ("abc", [b"a", b"bcE", b"ND"], [0, 1, 3]),
        ("Hello new world", [b"Hello", b"new", b"world"], [0, 5, 9]),
        ("ab", [b"a", b"b", b"\xf0"], [0, 1, 2]),
    ],
    ids=["none", "bytes", "no character", "special", "special inside", "cut", "lost spaces", "incomplete"],
)
def test_where_tokens_stand(text: str, tokens: list[bytes], offsets: list[int]) -> None:
    assert text_offsets(text, tokens) == offsets


@given(st.text(max_size=12), st.lists(st.integers(0, 40)), st.lists(st.integers(0, 12)))
def test_tokens_cut_at_any_byte_stand_where_their_first_character_does(
    text: str, cuts: list[int], specials: list[int]
) -> None:
    encoded = text.encode()
    edges = sorted({0, len(encoded), *(cut for cut in cuts if cut < len(encoded))})
    spans = [encoded[start:end] for start, end in itertools.pairwise(edges)]
    expected, place = [], 0
    for span in spans:
        expected.append(len(encoded[:place].decode(errors="ignore")))
        place += len(span)
    assert text_offsets(text, spans) == expected
    # Special tokens between them move nothing.
    if "<" not in text:
        for index in sorted({index for index in specials if index < len(spans)}, reverse=True):
            spans.insert(index, b"<|x|>")
            expected.insert(index, expected[index])
        assert text_offsets(text, spans) == expected


def test_a_scored_prompt_that_is_not_echoed_is_no_part_of_the_answer() -> None:
    [answer] = body_of(
        {"prompt": "ab", "logprobs": 0, "prompt_logprobs": 0},
        choices=[Choice(text="c", finish_reason="length", logprobs=[scored("c")])],
        prompt_logprobs=[None, scored("b")],
    )["choices"]
    assert answer["logprobs"]["tokens"] == ["c"]
    assert answer["logprobs"]["text_offset"] == [0]
