"""The toy tokenizers are what the tests take them for."""

from __future__ import annotations

from .toy_tokenizers import byte_level, byte_tokens, sentencepiece_like


def test_byte_tokens_are_the_bytes() -> None:
    text = "a ä 中 🔥 \x00\x7f"
    for tokenizer in (byte_level(), sentencepiece_like()):
        token_ids = byte_tokens(tokenizer, text)
        assert len(token_ids) == len(text.encode())
        assert tokenizer.decode(token_ids) == text
        every_byte = byte_tokens(tokenizer, bytes(range(256)))
        assert len(set(every_byte)) == 256
        assert all(tokenizer.decode([token]) == "�" for token in every_byte[128:])


def test_text_makes_a_round_trip() -> None:
    for tokenizer in (byte_level(), sentencepiece_like()):
        for text in ("hello 🔥 world", "中文"):
            assert tokenizer.decode(tokenizer.encode(text)) == text
