"""When an answer ends, and what it says about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from headrace.engine import FinishReason

from .runs import Answer, assert_idle, greedy, run
from .scripted import ScriptedModel, by_request, scripted_engine
from .toy_tokenizers import byte_level, byte_tokens

TOKENIZER = byte_level()
A, B, C, D, E = byte_tokens(TOKENIZER, "abcde")
FIRST, SECOND, THIRD = byte_tokens(TOKENIZER, "xyz")
TOKENIZER_EOS = TOKENIZER.eos_token_id


def answer(script: Sequence[int], *, eos: int | list[int] | None, max_tokens: int = 4, **options: Any) -> Answer:
    engine = scripted_engine(ScriptedModel(by_request({"r": script}), eos=eos), tokenizer=TOKENIZER)
    result = run(engine, {"r": [A, A]}, greedy(max_tokens, **({"ignore_eos": False} | options)))["r"]
    assert_idle(engine)
    assert engine.stats.finished == {reason.value: int(reason is result.finish_reason) for reason in FinishReason}
    return result


@pytest.mark.parametrize("end", [FIRST, SECOND, THIRD, TOKENIZER_EOS])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_d10_any_listed_id_stops_in_any_place(end: int, place: int) -> None:
    script = [B, C, D, E]
    script[place] = end
    result = answer(script, eos=[FIRST, SECOND, THIRD])
    assert result.token_ids == script[: place + 1]
    assert result.text == "bcd"[:place]
    assert result.finish_reason is FinishReason.STOP
    assert result.last is not None
    assert result.last.completion_tokens == place + 1


def test_d10_one_id_may_stand_alone() -> None:
    assert answer([B, FIRST, C, D], eos=FIRST).finish_reason is FinishReason.STOP


def test_d10_without_a_generation_config_the_tokenizer_says() -> None:
    assert answer([B, TOKENIZER_EOS, C, D], eos=None).token_ids == [B, TOKENIZER_EOS]


def test_d10_the_model_config_counts_too() -> None:
    model = ScriptedModel(by_request({"r": [B, SECOND, C, D]}))
    model.config.eos_token_id = [FIRST, SECOND]
    engine = scripted_engine(model, tokenizer=TOKENIZER)
    assert run(engine, {"r": [A]}, greedy(4, ignore_eos=False))["r"].token_ids == [B, SECOND]


def test_d10_the_cap_without_a_stop_is_length() -> None:
    result = answer([B, C, D, E], eos=[FIRST])
    assert (result.text, result.finish_reason) == ("bcde", FinishReason.LENGTH)


def test_d10_ignored_ends_go_on_and_have_their_text_unless_special() -> None:
    result = answer([FIRST, TOKENIZER_EOS, B, SECOND], eos=[FIRST, SECOND], ignore_eos=True)
    assert result.token_ids == [FIRST, TOKENIZER_EOS, B, SECOND]
    assert (result.text, result.finish_reason) == ("xby", FinishReason.LENGTH)


def test_b1_a_character_that_the_cap_tore_is_dropped_and_its_tokens_count() -> None:
    torn = byte_tokens(TOKENIZER, "b\U0001f525")[:4]
    result = answer(torn, eos=None)
    assert result.token_ids == torn
    assert (result.text, result.finish_reason) == ("b", FinishReason.LENGTH)
    assert result.last is not None
    assert result.last.completion_tokens == 4


def test_b1_a_character_that_an_end_tore_is_dropped() -> None:
    result = answer([*byte_tokens(TOKENIZER, "b中")[:3], TOKENIZER_EOS], eos=None)
    assert (result.text, result.finish_reason) == ("b", FinishReason.STOP)


def test_b1_interleaved_requests_stream_their_own_text() -> None:
    texts = {"a": "中文!", "b": "\U0001f525é!", "c": "ďďďa"}
    scripts = {name: byte_tokens(TOKENIZER, text) for name, text in texts.items()}
    engine = scripted_engine(ScriptedModel(by_request(scripts)), tokenizer=TOKENIZER)
    answers = run(engine, {name: [A] for name in texts}, greedy(7))
    assert {name: each.text for name, each in answers.items()} == texts
    assert engine.stats.peak_running == 3
    assert "�" not in "".join("".join(each.pieces) for each in answers.values())
