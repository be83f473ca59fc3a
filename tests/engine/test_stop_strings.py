"""Stops: the same text whatever the pieces, and as little held back as can be."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from headrace.engine import FinishReason, SamplingParams
from headrace.engine.stop_strings import StopStrings
from hypothesis import given
from hypothesis import strategies as st

from .runs import Answer, assert_idle, drain
from .scripted import ScriptedModel, by_request, scripted_engine
from .toy_tokenizers import byte_level, byte_tokens

TOKENIZER = byte_level()
IM_END = TOKENIZER.convert_tokens_to_ids("<|im_end|>")


def fed(
    pieces: Sequence[str], stops: Sequence[str], *, include: bool = False, unseen: int = 0
) -> tuple[list[str], str | None]:
    """What comes out for each piece, with the rest at the end, and the stop that was found.

    Stops that are complete within the first ``unseen`` pieces do not count.
    """
    subject = StopStrings(stops, include=include)
    out = []
    for index, piece in enumerate(pieces):
        out.append(subject.add(piece, look=index >= unseen))
        if subject.found is not None:
            return out, subject.found
    return [*out, subject.finish()], None


def answer(tokens: Sequence[int], **settings: Any) -> Answer:
    """What an engine makes of scripted tokens."""
    engine = scripted_engine(ScriptedModel(by_request({"r": tokens})), tokenizer=TOKENIZER)
    engine.add("r", [5, 6], SamplingParams(max_tokens=len(tokens), temperature=0, **settings))
    result = drain(engine)["r"]
    assert_idle(engine)
    return result


@pytest.mark.parametrize(
    ("pieces", "stops", "expected", "found"),
    [
        (["ABC", "DEF", "G", "HI", "JKL"], ["DEFGHIJ"], ["ABC", "", "", "", ""], "DEFGHIJ"),
        (["one", "..."], [".."], ["one", ""], ".."),
        (["one, two, ", "six"], ["five"], ["one, two, ", "six", ""], None),
        (["xab"], ["abc"], ["x", "ab"], None),
        (["a", "\U0001f525", "b"], ["\U0001f525"], ["a", ""], "\U0001f525"),
        (["not", " any", " more"], [" any"], ["not", ""], " any"),
        (["abc"], ["abc", "b"], ["a"], "b"),
        (["abc"], ["bc", "abc"], [""], "abc"),
        (["aab", "aac"], ["aabaac"], ["", ""], "aabaac"),
        (["aabaab", "aac"], ["aabaac"], ["aab", ""], "aabaac"),
        (["xa", "b"], ["ab", "ccc"], ["x", ""], "ab"),
        (["xab", "c", "d"], ["abcd", "bx"], ["x", "", ""], "abcd"),
    ],
)
def test_b3_text_before_the_first_match(
    pieces: list[str], stops: list[str], expected: list[str], found: str | None
) -> None:
    assert fed(pieces, stops) == (expected, found)


@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 30)),
    include=st.booleans(),
    unseen=st.integers(0, 3),
)
def test_b3_pieces_do_not_change_what_is_found(
    text: str, stops: list[str], cuts: list[int], include: bool, unseen: int
) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    out, found = fed(pieces, stops, include=include, unseen=unseen)
    # By definition: character by character, the first stop that the text so far ends with.
    expected = text
    for end in range(edges[min(unseen, len(edges) - 1)] + 1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            longest = max(ended, key=len)
            expected = text[:end] if include else text[: end - len(longest)]
            assert found == longest
            break
    else:
        assert found is None
    assert "".join(out) == expected
    given_out = ""
    for piece_end, piece in zip(edges[1:], out, strict=False):
        given_out += piece
        held = text[len(given_out) : piece_end]
        if found is None and held:
            assert any(stop.startswith(held) and stop != held for stop in stops), "held back without need"


@pytest.mark.parametrize("include", [False, True])
def test_b3_a_stop_over_several_tokens_ends_the_answer(include: bool) -> None:
    tokens = byte_tokens(TOKENIZER, "abcENDdef")
    result = answer(tokens, stop=("END",), include_stop_str_in_output=include)
    assert result.text == ("abcEND" if include else "abc")
    assert result.finish_reason is FinishReason.STOP
    assert result.last is not None
    assert (result.last.stop_reason, result.last.completion_tokens) == ("END", 6)


def test_b3_a_held_tail_is_delivered_at_the_cap() -> None:
    result = answer(byte_tokens(TOKENIZER, "xab"), stop=("abc",))
    assert (result.text, result.finish_reason) == ("xab", FinishReason.LENGTH)
    assert result.pieces == ["x", "", "ab"]


def test_b3_a_stop_that_is_an_emoji() -> None:
    result = answer(byte_tokens(TOKENIZER, "a\U0001f525b"), stop=("\U0001f525",))
    assert (result.text, result.finish_reason) == ("a", FinishReason.STOP)


@pytest.mark.parametrize(("min_tokens", "text"), [(2, ""), (3, "xxa"), (5, "xxa"), (6, "xxaxxb")])
def test_a_stop_before_min_tokens_does_not_count(min_tokens: int, text: str) -> None:
    result = answer(byte_tokens(TOKENIZER, "xxaxxb"), stop=("xx",), min_tokens=min_tokens)
    assert result.text == text
    assert result.finish_reason is (FinishReason.LENGTH if min_tokens == 6 else FinishReason.STOP)


def test_a_stop_that_is_complete_at_the_cap_is_a_stop() -> None:
    result = answer(byte_tokens(TOKENIZER, "abEND"), stop=("END",))
    assert (result.text, result.finish_reason) == ("ab", FinishReason.STOP)
    assert result.last is not None
    assert result.last.stop_reason == "END"


@pytest.mark.parametrize(("stop", "text"), [((), "ab "), ((" ",), "ab"), ((" c",), "ab ")])
def test_a_character_before_half_of_another_at_the_cap(stop: tuple[str, ...], text: str) -> None:
    # One token is a space and the first byte of an emoji, whose text is held back until the others come.
    half = TOKENIZER.convert_tokens_to_ids("\u0120\u00f0")
    result = answer([*byte_tokens(TOKENIZER, "ab"), half], stop=stop)
    assert result.text == text
    assert result.finish_reason is (FinishReason.STOP if text == "ab" else FinishReason.LENGTH)


@pytest.mark.parametrize("include", [False, True])
def test_b6_a_stop_that_is_a_special_token_stops_on_its_id(include: bool) -> None:
    tokens = [*byte_tokens(TOKENIZER, "ab"), IM_END, *byte_tokens(TOKENIZER, "cd")]
    result = answer(tokens, stop=("<|im_end|>",), include_stop_str_in_output=include, ignore_eos=True)
    assert (result.text, result.finish_reason) == ("ab", FinishReason.STOP)
    assert result.last is not None
    assert (result.last.stop_reason, result.last.completion_tokens) == ("<|im_end|>", 3)


def test_b6_a_stop_spelled_in_plain_characters_still_matches() -> None:
    result = answer(byte_tokens(TOKENIZER, "ab<|im_end|>cd"), stop=("<|im_end|>",))
    assert (result.text, result.finish_reason) == ("ab", FinishReason.STOP)


@pytest.mark.parametrize("skip", [True, False])
def test_b6_special_tokens_in_the_middle(skip: bool) -> None:
    tokens = [*byte_tokens(TOKENIZER, "ab"), IM_END, *byte_tokens(TOKENIZER, "cd")]
    result = answer(tokens, skip_special_tokens=skip, ignore_eos=True)
    assert result.text == ("abcd" if skip else "ab<|im_end|>cd")
    assert "".join(result.pieces) == result.text


def test_d10_stop_tokens_of_the_request_count_beside_the_models() -> None:
    first, second, third = byte_tokens(TOKENIZER, "xyz")
    result = answer([first, second, third], stop_token_ids=(second,), ignore_eos=True)
    assert (result.text, result.finish_reason) == ("x", FinishReason.STOP)
    assert result.last is not None
    assert result.last.stop_reason == second
