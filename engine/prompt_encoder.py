"""From messages or text to prompt tokens, and the checks that need the tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .errors import RequestError, first_line


class PromptEncoder:
    """Tokenises what users write. The model's own chat template decides how messages become text.

    Args:
        tokenizer: a tokenizer of transformers.
        vocab_size: rows of the model's embedding; ids from here on are refused.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Tokens of a conversation and the start of the answer, exactly as ``apply_chat_template`` gives them.

        Raises:
            RequestError: where the model has no chat template, or its template refuses the messages.
        """
        if not messages:
            raise RequestError("messages is empty: it gives no token to start from", param="messages")
        if not self._tokenizer.chat_template:
            raise RequestError(
                "this model has no chat template; send a prompt to /v1/completions instead of messages",
                code="no_chat_template",
                param="messages",
            )
        try:
            token_ids = self._tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except Exception as error:  # a template is code that came with the model: it may raise anything
            raise RequestError(
                f"the chat template refuses these messages: {first_line(error)}", param="messages"
            ) from error
        return self._checked(token_ids, "messages")

    def encode_text(self, text: str) -> list[int]:
        """Tokens of a raw prompt, with the special tokens that the tokenizer adds, and never two BOS tokens.

        Raises:
            RequestError: where no token comes out, or the text holds half of a surrogate pair.
        """
        _check_text(text, "prompt")
        bos = self._tokenizer.bos_token
        has_bos = bool(bos) and text.startswith(bos)
        return self._checked(self._tokenizer.encode(text, add_special_tokens=not has_bos), "prompt")

    def encode_ids(self, token_ids: Sequence[int]) -> list[int]:
        """A prompt that is tokens already.

        Raises:
            RequestError: where it is empty, or an id is not the model's.
        """
        for token_id in token_ids:
            if not (type(token_id) is int and 0 <= token_id < self._vocab_size):
                raise RequestError(
                    f"prompt holds the token id {token_id!r}; this model's ids are 0 to {self._vocab_size - 1}",
                    param="prompt",
                )
        return self._checked(token_ids, "prompt")

    def _checked(self, token_ids: Sequence[int], param: str) -> list[int]:
        if not token_ids:
            raise RequestError(f"{param} is empty: it gives no token to start from", param=param)
        return list(token_ids)


def _check_text(text: str, param: str) -> None:
    """Refuse what JSON can escape and UTF-8 cannot encode: half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise RequestError(f"{param} holds {half}, half of a surrogate pair", param=param) from error
