"""Text that is streamed token by token equals text that is decoded at once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from headrace.engine.detokenizer import REPLACEMENT, Detokenizer, TokenDecoder
from hypothesis import given
from hypothesis import strategies as st

from .toy_tokenizers import byte_level, byte_tokens, sentencepiece_like

BYTE_LEVEL = byte_level()
SENTENCEPIECE = sentencepiece_like()
TOKENIZERS = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["bytes", "sentencepiece"])
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


def stream(tokenizer: Any, prompt: Sequence[int], output: Sequence[int]) -> list[str]:
    """The pieces for output tokens that come one at a time, the held-back rest last."""
    detokenizer = Detokenizer(TokenDecoder(tokenizer), prompt)
    return [*(detokenizer.add([token]) for token in output), detokenizer.finish()]


def decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def at_once(tokenizer: Any, prompt: Sequence[int], output: Sequence[int]) -> str:
    """``decode(prompt + output)`` less ``decode(prompt)``."""
    before = decode(tokenizer, prompt)
    both = decode(tokenizer, [*prompt, *output])
    assert both.startswith(before)
    return both[len(before) :]


def named(tokenizer: Any, *tokens: str) -> list[int]:
    token_ids: list[int] = tokenizer.convert_tokens_to_ids(list(tokens))
    assert tokenizer.unk_token_id not in token_ids
    return token_ids


@TOKENIZERS
@pytest.mark.parametrize("text", ["ď", "\U0001f525", FAMILY, "中文", "aďb 中\U0001f525 文b", "�", "a�中"])
def test_b1_a_character_split_over_tokens_comes_whole(tokenizer: Any, text: str) -> None:
    prompt = byte_tokens(tokenizer, "a: ")
    pieces = stream(tokenizer, prompt, byte_tokens(tokenizer, text))
    assert "".join(pieces) == text
    if REPLACEMENT not in text:
        assert not any(REPLACEMENT in piece for piece in pieces)
    assert pieces[-1] == "", "text was held back although its last character was whole"
    assert len([piece for piece in pieces if piece]) == len(text), "a character came late"


@TOKENIZERS
def test_b1_interleaved_requests_keep_their_own_state(tokenizer: Any) -> None:
    decoder = TokenDecoder(tokenizer)
    texts = ["中文字", FAMILY, "ďďď"]
    outputs = [byte_tokens(tokenizer, text) for text in texts]
    detokenizers = [Detokenizer(decoder, byte_tokens(tokenizer, "b")) for _ in texts]
    joined = [""] * len(texts)
    for step in range(max(map(len, outputs))):
        for row, output in enumerate(outputs):
            joined[row] += detokenizers[row].add(output[step : step + 1])
    assert joined == texts


@TOKENIZERS
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_b1_a_torn_last_character_is_dropped(tokenizer: Any, cut: int) -> None:
    output = byte_tokens(tokenizer, "中\U0001f525")[:-cut]
    pieces = stream(tokenizer, byte_tokens(tokenizer, "a"), output)
    assert "".join(pieces) == "中"


def test_b1_a_token_with_half_a_character_keeps_its_whole_one() -> None:
    [half] = named(BYTE_LEVEL, "ĠðŁ")
    prompt = byte_tokens(BYTE_LEVEL, "a")
    assert "".join(stream(BYTE_LEVEL, prompt, [half])) == " "
    assert stream(BYTE_LEVEL, prompt, [half, *byte_tokens(BYTE_LEVEL, b"\x94\xa5")]) == ["", "", " \U0001f525", ""]


@TOKENIZERS
def test_b1_a_replacement_character_of_the_model_is_delivered_at_once(tokenizer: Any) -> None:
    whole = named(tokenizer, "ï¿½" if tokenizer is BYTE_LEVEL else "�")
    prompt = byte_tokens(tokenizer, "a")
    assert stream(tokenizer, prompt, whole) == [REPLACEMENT, ""]
    assert stream(tokenizer, prompt, whole * 3) == [REPLACEMENT] * 3 + [""]
    assert "".join(stream(tokenizer, prompt, [*whole, *byte_tokens(tokenizer, b"\xe4\xb8")])) == REPLACEMENT


def test_bytes_that_no_character_has_are_not_held_back() -> None:
    output = byte_tokens(BYTE_LEVEL, b"\xff\xff\x80a\xffb")
    pieces = stream(BYTE_LEVEL, [], output)
    assert pieces == ["�", "�", "�", "a", "�", "b", ""]
    assert "".join(pieces) == at_once(BYTE_LEVEL, [], output)


@TOKENIZERS
def test_a_prompt_that_ends_inside_a_character_does_not_leak(tokenizer: Any) -> None:
    first, second, third = byte_tokens(tokenizer, "中")
    text = byte_tokens(tokenizer, "ab")
    assert "".join(stream(tokenizer, [*text, first], [second, third, *text])) == "中ab"
    assert "".join(stream(tokenizer, [*text, first, second], [third, *text])) == "中ab"
    assert stream(tokenizer, [*text, first], []) == [""]


def test_a_prompt_that_ends_inside_a_character_that_never_comes() -> None:
    prompt = byte_tokens(BYTE_LEVEL, b"ab\xe4\xb8")
    assert "".join(stream(BYTE_LEVEL, prompt, byte_tokens(BYTE_LEVEL, "xy"))) == "xy"


@TOKENIZERS
@pytest.mark.parametrize("length", range(1, 14))
def test_a_prompt_of_split_characters_is_cut_between_them(tokenizer: Any, length: int) -> None:
    prompt = byte_tokens(tokenizer, "中文中文\U0001f525中")[-length:]
    if decode(tokenizer, prompt).startswith(REPLACEMENT):
        prompt = byte_tokens(tokenizer, "b中文中文\U0001f525中")
    assert "".join(stream(tokenizer, prompt, byte_tokens(tokenizer, "文a"))) == "文a"


@pytest.mark.parametrize("prompt", [[], ["▁Hello"], ["▁Hello", "."], ["▁Hello", "▁"], ["<s>"], ["▁Hello", "</s>"]])
@pytest.mark.parametrize(
    "output",
    [
        ["▁Hello", "▁world"],
        ["▁Hello", ".", "▁the", "▁▁", "▁world"],
        ["▁", "▁", "▁Hello"],
        ["{", "}", "▁{", "}"],
        ["a", "\n", "▁▁", "▁a", "▁\n", "b"],
        ["▁Hello", "<|im_end|>", "▁world", "<|im_end|>", "<s>", "▁the", "a"],
        ["ä", "a", "ä"],
    ],
)
def test_b4_spaces_are_neither_lost_nor_added(prompt: list[str], output: list[str]) -> None:
    prompt_ids, output_ids = named(SENTENCEPIECE, *prompt), named(SENTENCEPIECE, *output)
    pieces = stream(SENTENCEPIECE, prompt_ids, output_ids)
    assert "".join(pieces) == at_once(SENTENCEPIECE, prompt_ids, output_ids)
    assert "<" not in "".join(pieces)


@TOKENIZERS
def test_b6_special_tokens_have_no_text(tokenizer: Any) -> None:
    im_end, eos, *letters = named(tokenizer, "<|im_end|>", "</s>", "a", "b")
    prompt = byte_tokens(tokenizer, "a")
    assert stream(tokenizer, prompt, [im_end, letters[0], eos, im_end, letters[1], eos]) == [
        "", "a", "", "", "b", "", "",
    ]  # fmt: skip
    first, *rest = byte_tokens(tokenizer, "中")
    assert "".join(stream(tokenizer, prompt, [first, im_end, *rest])) == "中"


@TOKENIZERS
def test_rows_of_the_model_past_the_tokenizer_have_no_text(tokenizer: Any) -> None:
    [letter] = named(tokenizer, "a")
    beyond = len(tokenizer) + 5
    assert stream(tokenizer, [letter], [beyond, letter, beyond]) == ["", "a", "", ""]


def test_the_window_stays_short() -> None:
    lengths = []

    class Watched(TokenDecoder):
        def text(self, token_ids: Sequence[int]) -> str:
            lengths.append(len(token_ids))
            return super().text(token_ids)

    [eos] = named(BYTE_LEVEL, "</s>")
    detokenizer = Detokenizer(Watched(BYTE_LEVEL), byte_tokens(BYTE_LEVEL, "a" * 500))
    for token in [
        *byte_tokens(BYTE_LEVEL, "中文a" * 50 + "é" * 20),
        *[eos, len(BYTE_LEVEL) + 7] * 200,
        *byte_tokens(BYTE_LEVEL, b"\xff" * 300),
    ]:
        detokenizer.add([token])
    assert len(lengths) > 1000
    assert max(lengths) <= 16


@given(data=st.data(), seed=st.integers(0, 1 << 16))
def test_random_tokens_stream_as_they_decode(data: st.DataObject, seed: int) -> None:
    characters = st.sampled_from([byte_tokens(BYTE_LEVEL, character) for character in "é中\U0001f525"])
    tokens = st.lists(st.integers(0, len(BYTE_LEVEL) - 1).map(lambda token: [token]) | characters, max_size=20)
    prompt, output = (list(itertools.chain(*data.draw(tokens))) for _ in range(2))
    decoder = TokenDecoder(BYTE_LEVEL)
    if decoder.unfinished_bytes(prompt):
        prompt = [*prompt, *byte_tokens(BYTE_LEVEL, ".")]
    detokenizer = Detokenizer(decoder, prompt)
    pieces = []
    chunks = random.Random(seed)
    rest = list(output)
    while rest:
        size = chunks.randint(1, 3)
        pieces.append(detokenizer.add(rest[:size]))
        rest = rest[size:]
    pieces.append(detokenizer.finish())
    expected = at_once(BYTE_LEVEL, prompt, output)
    if decoder.unfinished_bytes(decoder.visible([*prompt, *output], decoder.special_ids)):
        expected = expected.removesuffix(REPLACEMENT)
    assert "".join(pieces) == expected


@given(st.text(alphabet="ab .{}\näď中文\U0001f525\u200d�", max_size=30), st.integers(0, 30))
def test_text_makes_a_round_trip_through_both_tokenizers(text: str, cut: int) -> None:
    for tokenizer in (BYTE_LEVEL, SENTENCEPIECE):
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        prompt, output = token_ids[:cut], token_ids[cut:]
        decoder = TokenDecoder(tokenizer)
        if not decoder.unfinished_bytes(prompt):
            assert "".join(stream(tokenizer, prompt, output)) == at_once(tokenizer, prompt, output)


def test_real_vocabulary_streams_as_it_decodes(demo_tokenizer: Any) -> None:
    generator = random.Random(1)
    texts = [
        "Grüße, 中文! \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f525 naïve — “quotes”\n\tdef f(x):\n",
        "héllo wörld",
    ]
    split = 0
    for text in texts * 4:
        output = demo_tokenizer.encode(text, add_special_tokens=False)
        output.insert(generator.randrange(len(output)), 2)
        prompt = demo_tokenizer.encode("Say it: ")
        pieces = stream(demo_tokenizer, prompt, output)
        assert "".join(pieces) == text
        assert not any(REPLACEMENT in piece for piece in pieces)
        split += sum(REPLACEMENT in demo_tokenizer.decode([token]) for token in output)
    assert split > 20, "no character was split over tokens"
