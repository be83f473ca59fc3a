"""From what users write to prompt tokens."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from headrace.engine import RequestError
from headrace.engine.hf_model import TransformersModel
from headrace.engine.prompt_encoder import PromptEncoder

from .runs import drain, greedy
from .scripted import ScriptedModel, constant, scripted_engine
from .tiny_models import tiny_engine
from .toy_tokenizers import byte_level, sentencepiece_like

WITH_BOS = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
WITHOUT_BOS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
STRICT = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)
USER: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


def encoder(tokenizer: Any, vocab_size: int = 300) -> PromptEncoder:
    return PromptEncoder(tokenizer, vocab_size)


@pytest.mark.parametrize(("template", "count"), [(WITH_BOS, 1), (WITHOUT_BOS, 0)], ids=["bos", "no bos"])
@pytest.mark.parametrize("add_bos", [False, True])
def test_d11_a_chat_has_the_bos_of_its_template_alone(template: str, count: int, add_bos: bool) -> None:
    tokenizer = byte_level(add_bos=add_bos, chat_template=template)
    token_ids = encoder(tokenizer).encode_chat(USER)
    assert token_ids.count(tokenizer.bos_token_id) == count
    assert token_ids == tokenizer.apply_chat_template(USER, add_generation_prompt=True, return_dict=False)


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("text", ["hello", "<s>hello"])
def test_d11_a_raw_prompt_has_one_bos_if_the_tokenizer_adds_it(add_bos: bool, text: str) -> None:
    tokenizer = byte_level(add_bos=add_bos)
    token_ids = encoder(tokenizer).encode_text(text)
    expected = 1 if add_bos or text.startswith("<s>") else 0
    assert token_ids.count(tokenizer.bos_token_id) == expected
    assert tokenizer.decode(token_ids, skip_special_tokens=True) == "hello"


def test_d12_without_a_template_messages_are_refused() -> None:
    with pytest.raises(RequestError, match="no chat template") as caught:
        encoder(byte_level()).encode_chat(USER)
    assert (caught.value.code, caught.value.param) == ("no_chat_template", "messages")


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([{"role": "system", "content": "x"}], "System role not supported"),
        ([{"role": "user"}, {"role": "user", "content": {}}, "text"], "text"),
        (["text"], "text"),
        ([None], "None"),
        ([{"role": "user", "content": "\ud83d"}], ""),
    ],
)
def test_d12_what_a_template_raises_is_the_requests_fault(messages: Any, says: str) -> None:
    with pytest.raises(RequestError, match=f"the chat template refuses these messages: .*{says}") as caught:
        encoder(byte_level(chat_template=STRICT)).encode_chat(messages)
    assert caught.value.param == "messages"
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ messages[5].role }}", "{% if %}", "{{ none() }}"])
def test_d12_a_broken_template_does_not_end_the_worker(template: str) -> None:
    with pytest.raises(RequestError, match=r"the chat template refuses these messages: ."):
        encoder(byte_level(chat_template=template)).encode_chat(USER)


@pytest.mark.parametrize("template", [WITHOUT_BOS, STRICT, None])
def test_a11_no_messages_are_refused(template: str | None) -> None:
    with pytest.raises(RequestError, match="messages is empty"):
        encoder(byte_level(chat_template=template)).encode_chat([])


def test_a11_a_template_that_renders_nothing_is_refused() -> None:
    with pytest.raises(RequestError, match="messages is empty"):
        encoder(byte_level(chat_template="{# nothing #}")).encode_chat(USER)


def test_a11_empty_text_depends_on_the_bos() -> None:
    with pytest.raises(RequestError, match="prompt is empty: it gives no token"):
        encoder(byte_level()).encode_text("")
    tokenizer = byte_level(add_bos=True)
    assert encoder(tokenizer).encode_text("") == [tokenizer.bos_token_id]
    engine = scripted_engine(ScriptedModel(constant(7)), tokenizer=tokenizer)
    engine.add("r", engine.encoder.encode_text(""), greedy(2))
    assert drain(engine)["r"].token_ids == [7, 7]


@pytest.mark.parametrize("text", [" ", "\n\t "])
def test_a11_blank_text_is_text(text: str) -> None:
    assert encoder(byte_level()).encode_text(text)


@pytest.mark.parametrize("text", ["\ud83d", "a\udf78b", "\udf78\ud83c"])
def test_a4_half_a_surrogate_pair_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"prompt holds \\ud[0-9a-f]{3}, half of a surrogate pair"):
        encoder(byte_level()).encode_text(text)


def test_a4_a_whole_pair_is_one_character() -> None:
    tokenizer = byte_level()
    assert tokenizer.decode(encoder(tokenizer).encode_text("\U0001f378")) == "\U0001f378"


@pytest.mark.parametrize("bad", [-1, 300, 10**9, True, 1.0, "7", None])
def test_d7_ids_outside_the_model_are_named(bad: Any) -> None:
    with pytest.raises(RequestError, match=rf"token id {bad!r}; this model's ids are 0 to 299"):
        encoder(byte_level()).encode_ids([5, bad])


def test_d7_ids_between_tokenizer_and_model_and_special_ids_are_allowed() -> None:
    tokenizer = sentencepiece_like()
    assert len(tokenizer) < 299
    assert encoder(tokenizer).encode_ids([299, 0, 2]) == [299, 0, 2]


def test_encoding_in_other_threads_while_the_engine_steps(tiny_llama: TransformersModel) -> None:
    engine = tiny_engine(tiny_llama)
    for index in range(8):
        engine.add(str(index), [5, 6, index + 7], greedy(60))
    encoding = threading.Event()
    expected = engine.encoder.encode_text("hello 中文 \U0001f525")

    def encode() -> int:
        count = 0
        while not encoding.is_set():
            assert engine.encoder.encode_text("hello 中文 \U0001f525") == expected
            count += 1
        return count

    with ThreadPoolExecutor(2) as threads:
        counts = [threads.submit(encode) for _ in range(2)]
        try:
            answers = drain(engine)
        finally:
            encoding.set()
        assert all(count.result() > 10 for count in counts)
    assert all(len(answer.token_ids) == 60 for answer in answers.values())
