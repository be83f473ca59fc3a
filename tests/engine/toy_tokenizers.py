"""Small tokenizers built here, of the two kinds that language models use."""

from __future__ import annotations

import functools
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIALS = ["<unk>", "<s>", "</s>", "<|im_end|>"]


def byte_level(*, add_bos: bool = False, chat_template: str | None = None) -> Any:
    """One token a byte, and a few merges, among them a space with the first half of an emoji.

    Ids: the special tokens come first, then the 256 bytes in the order of their printable characters.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "ð"), ("Ġð", "Ł"), ("h", "e"), ("l", "l"), ("ï", "¿"), ("ï¿", "½")]
    tokens = [*SPECIALS, *alphabet, *(left + right for left, right in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _finish(tokenizer, add_bos, chat_template)


def sentencepiece_like(*, add_bos: bool = False, chat_template: str | None = None) -> Any:
    """Words that carry their space in front, single characters, and bytes for all else, as Llama 2 has them."""
    words = ["▁Hello", "▁world", "▁the", ".", "▁{", "{", "}", "▁", "▁▁", "\n", "▁\n", "a", "b", "ä", "▁a", "�"]
    tokens = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _finish(tokenizer, add_bos, chat_template)


def _finish(tokenizer: Tokenizer, add_bos: bool, chat_template: str | None) -> Any:
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    if add_bos:
        bos = tokenizer.token_to_id("<s>")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", bos)]
        )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    wrapped.chat_template = chat_template
    return wrapped


def byte_tokens(tokenizer: Any, text: str | bytes) -> list[int]:
    """Each byte of a text as a token of its own."""
    data = text.encode() if isinstance(text, str) else text
    fallback = tokenizer.convert_tokens_to_ids("<0x00>")
    if fallback is not None and fallback != tokenizer.unk_token_id:
        return [fallback + byte for byte in data]
    singles = {bytes([byte]): tokenizer.convert_tokens_to_ids(character) for byte, character in _printable().items()}
    return [singles[bytes([byte])] for byte in data]


@functools.cache
def _printable() -> dict[int, str]:
    """Byte to character of the byte-level alphabet, read off the tokenizers library itself."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    table: dict[int, str] = {}
    for code in [*range(0x80), *range(0x80, 0x110000, 0x40)]:
        if 0xD800 <= code < 0xE000:
            continue
        text = chr(code)
        table.update(zip(text.encode(), splitter.pre_tokenize_str(text)[0][0], strict=True))
    for code in range(0x80, 0xC0):
        table.update(zip(chr(code).encode(), splitter.pre_tokenize_str(chr(code))[0][0], strict=True))
    # Bytes that no UTF-8 text has are numbered after the others.
    unused = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(table.values()))
    missing = [byte for byte in range(256) if byte not in table]
    return table | dict(zip(missing, unused, strict=True))
