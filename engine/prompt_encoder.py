"""From messages or text to prompt tokens, and the checks that need the tokenizer."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .chat_messages import for_template
from .control_text import ControlText, unused_mark
from .detokenizer import TokenDecoder
from .errors import RequestError, first_line
from .token_ids import check_token_ids


class _Inputs(NamedTuple):
    """What users give a chat template."""

    conversation: list[Any]
    tools: list[Any] | None
    variables: dict[str, Any]


class PromptEncoder:
    """Tokenises what users write. The model's own chat template decides how messages become text.

    Args:
        tokenizer: a tokenizer of transformers.
        vocab_size: rows of the model's embedding; ids from here on are refused.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._control_text = ControlText(tokenizer)
        self._decoder = TokenDecoder(tokenizer)

    def encode_chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        allow_control_tokens: bool = False,
    ) -> list[int]:
        """Tokens of a conversation and the start of the answer, exactly as ``apply_chat_template`` gives them.

        Args:
            messages: the turns, in OpenAI's form.
            tools: the functions that the model may call, in OpenAI's form.
            template_kwargs: further variables of the template, such as ``enable_thinking``.
            allow_control_tokens: whether a control token's text in all this becomes the token; else it stays text.

        Raises:
            RequestError: where the model has no chat template, its template has no place for tools or refuses the
                messages, a variable is not free to be set, or a tool call's arguments are not a JSON object.
        """
        if not messages:
            raise RequestError("messages is empty: it gives no token to start from", param="messages")
        template = self._template(tools)
        if tools and not re.search(r"\btools\b", template):
            raise RequestError("this model's chat template carries no tools; send no tools", param="tools")
        variables = dict(template_kwargs or {})
        self._check_variables(variables)
        inputs = _Inputs(for_template(messages, template), list(tools) if tools else None, variables)
        try:
            token_ids = self._plain(inputs) if allow_control_tokens else self._guarded(inputs, template)
        except RequestError:
            raise
        except Exception as error:  # a template is code that came with the model: it may raise anything
            raise RequestError(
                f"the chat template refuses these messages: {first_line(error)}", param="messages"
            ) from error
        return self._checked(token_ids, "messages")

    def encode_text(self, text: str, *, allow_control_tokens: bool = True) -> list[int]:
        """Tokens of a raw prompt, with the special tokens that the tokenizer adds, and never two BOS tokens.

        Args:
            text: the prompt.
            allow_control_tokens: whether a control token's text becomes the token, since a raw prompt is the user's
                own template; else it stays text.

        Raises:
            RequestError: where no token comes out, or the text holds half of a surrogate pair.
        """
        _check_text(text, "prompt")
        if not allow_control_tokens:
            return self._checked(self._control_text.encode_as_text(text, param="prompt"), "prompt")
        bos = self._tokenizer.bos_token
        has_bos = bool(bos) and text.startswith(bos)
        return self._checked(self._tokenizer.encode(text, add_special_tokens=not has_bos), "prompt")

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of a prompt that came as tokens, special ones left out."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def token(self, token_id: int) -> tuple[str, bytes]:
        """The text of one token by itself, and the bytes that it stands for."""
        return self._decoder.token_text(token_id), self._decoder.token_bytes(token_id)

    def encode_ids(self, token_ids: Sequence[int]) -> list[int]:
        """A prompt that is tokens already.

        Raises:
            RequestError: where it is empty, or an id is not the model's.
        """
        check_token_ids("prompt", token_ids, self._vocab_size)
        return self._checked(token_ids, "prompt")

    def _template(self, tools: Sequence[dict[str, Any]] | None) -> str:
        """The text of the chat template; a model may have one of its own for tools."""
        if not self._tokenizer.chat_template:
            raise RequestError(
                "this model has no chat template; send a prompt to /v1/completions instead of messages",
                code="no_chat_template",
                param="messages",
            )
        try:
            return str(self._tokenizer.get_chat_template(tools=list(tools) if tools else None))
        except ValueError as error:
            raise RequestError(
                f"this model has no default chat template: {first_line(error)}",
                code="no_chat_template",
                param="messages",
            ) from error

    def _check_variables(self, variables: Mapping[str, Any]) -> None:
        """Refuse variables that are not the template's, but how it is called."""
        taken = {*inspect.signature(self._tokenizer.apply_chat_template).parameters, "messages"}
        taken |= set(self._tokenizer.special_tokens_map)
        taken.discard("documents")  # a template's variable in all but form
        for name in variables:
            if name in taken:
                raise RequestError(
                    f"chat_template_kwargs must not set {name}: it is set by headrace; "
                    "only variables of the model's chat template can be set",
                    param="chat_template_kwargs",
                )

    def _plain(self, inputs: _Inputs) -> Any:
        return self._apply(inputs, tokenize=True)

    def _guarded(self, inputs: _Inputs, template: str) -> Any:
        """Tokens in which the control tokens are all the template's own."""
        control_text = self._control_text
        mark = unused_mark(inputs, template)
        marked = _Inputs(
            control_text.marked(inputs.conversation, mark),
            control_text.marked(inputs.tools, mark),
            {name: control_text.marked(value, mark) for name, value in inputs.variables.items()},
        )
        if marked == inputs:
            return self._plain(inputs)
        text, cuts = control_text.restored(self._apply(marked, tokenize=False), mark)
        if not cuts and not control_text.found_in(inputs):
            return self._plain(inputs)  # strings that might have joined to a control token's text did not
        return control_text.encode(text, cuts, mark=mark, add_special_tokens=False, param="messages")

    def _apply(self, inputs: _Inputs, *, tokenize: bool) -> Any:
        return self._tokenizer.apply_chat_template(
            inputs.conversation,
            tools=inputs.tools,
            add_generation_prompt=True,
            tokenize=tokenize,
            return_dict=False,
            **inputs.variables,
        )

    def _checked(self, token_ids: Sequence[int], param: str) -> list[int]:
        if not token_ids:
            raise RequestError(f"{param} is empty: it gives no token to start from", param=param)
        return list(token_ids)


def truncate_prompt(token_ids: Sequence[int], keep: int) -> list[int]:
    """The last tokens of a prompt, vLLM's ``truncate_prompt_tokens``.

    Raises:
        RequestError: where none would be kept.
    """
    if keep < 1:
        raise RequestError(
            f"truncate_prompt_tokens is {keep}; it must keep at least 1 token", param="truncate_prompt_tokens"
        )
    return list(token_ids[-keep:])


def _check_text(text: str, param: str) -> None:
    """Refuse what JSON can escape and UTF-8 cannot encode: half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise RequestError(f"{param} holds {half}, half of a surrogate pair", param=param) from error
