"""How models write tool calls: from their text to OpenAI's form, and grammars that make them write one.

Each family of models was trained on a form of its own, which is known by what its chat template says.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .errors import RequestError

# The white space of ``json.dumps``, in which templates write examples and earlier calls. With white space left free, a
# small model may go on with it for ever.
_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NO_PARAMETERS: dict[str, Any] = {"properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants called. ``arguments`` is the text of a JSON object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """An answer's text apart from its tool calls, and the calls in the model's order."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()


class ToolFormat(ABC):
    """One family's form of tool calls; :func:`tool_format_of` finds a model's.

    Args:
        token_ids: those of :attr:`MARKERS` that are tokens of their own, and their ids.
        marker_token_ids: those among them that are special tokens.

    Attributes:
        marker_token_ids: special tokens whose text :meth:`parse` must see, though others are left out of the answer.
    """

    MARKERS: ClassVar[tuple[str, ...]]
    """Texts around calls."""

    def __init__(self, token_ids: Mapping[str, int], marker_token_ids: Collection[int] = ()) -> None:
        self._token_ids = dict(token_ids)
        self.marker_token_ids = frozenset(marker_token_ids)

    def parse(self, text: str) -> ParsedAnswer:
        """Tell an answer's calls from its text. Never raises: where a call is malformed, all is text as it stands."""
        try:
            outside, calls = self._split(text)
        except (ValueError, RecursionError):
            return ParsedAnswer(text)
        return ParsedAnswer(outside.strip(), tuple(calls)) if calls else ParsedAnswer(text)

    def grammar(self, tools: Sequence[Mapping[str, Any]], required_name: str | None, parallel: bool) -> str:
        """A grammar of answers that are calls and nothing else, in llguidance's form of Lark.

        Args:
            tools: the functions that may be called, in OpenAI's form. The schemas of their arguments are checked
                only when the grammar is compiled.
            required_name: the one that must be called; None leaves the choice.
            parallel: whether more than one call may be made.

        Raises:
            RequestError: where there is no such tool.
        """
        functions = [tool["function"] for tool in tools]
        chosen = [function for function in functions if required_name in (None, function["name"])]
        if not chosen:
            names = ", ".join(function["name"] for function in functions) or "none"
            raise RequestError(f"tool_choice names {required_name}; the tools are: {names}", param="tool_choice")
        rules = [self._start(parallel), f"call: {' | '.join(f'call_{index}' for index in range(len(chosen)))}"]
        for index, function in enumerate(chosen):
            schema = {"type": "object", **(function.get("parameters") or _NO_PARAMETERS), "x-guidance": _JSON_STYLE}
            rules.append(f"call_{index}: {self._call(function['name'], f'arguments_{index}')}")
            # A rule of its own, since "$ref" in a schema counts from the schema's root.
            rules.append(f"arguments_{index}: %json {json.dumps(schema)}")
        return "\n".join(rules) + "\n"

    @abstractmethod
    def _split(self, text: str) -> tuple[str, list[ToolCall]]:
        """Text outside calls, and the calls. Raises ValueError where a call is malformed."""

    @abstractmethod
    def _start(self, parallel: bool) -> str:
        """The rule ``start``, of one ``call`` or of several."""

    @abstractmethod
    def _call(self, name: str, arguments: str) -> str:
        """What a function's call is, given the rule of its arguments."""

    def _marker(self, marker: str) -> str:
        """A marker in a grammar. A token goes by its id: to llguidance a special token is no text, nor is any <tag>."""
        token_id = self._token_ids.get(marker)
        return json.dumps(marker) if token_id is None else f"<[{token_id}]>"


class HermesFormat(ToolFormat):
    """Nous Hermes, Qwen 2.5 and 3: ``<tool_call>``, an object with name and arguments, ``</tool_call>``."""

    MARKERS = ("<tool_call>", "</tool_call>")

    def _split(self, text: str) -> tuple[str, list[ToolCall]]:
        begin, end = self.MARKERS
        outside, calls, place = "", [], 0
        while (start := text.find(begin, place)) >= 0:
            outside += text[place:start]
            value, place = _json_at(text, start + len(begin))
            calls.append(_tool_call(value, "arguments"))
            if text.startswith(end, place):
                place += len(end)
            elif place < len(text):  # the last call's end may be missing, not another's
                raise ValueError("text after the arguments")
        return outside + text[place:], calls

    def _start(self, parallel: bool) -> str:
        begin, end = map(self._marker, self.MARKERS)
        more = ' ("\\n" wrapped)*' if parallel else ""
        return f'start: wrapped{more}\nwrapped: {begin} "\\n" call "\\n" {end}'

    def _call(self, name: str, arguments: str) -> str:
        return _call_object(name, "arguments", arguments)


class LlamaFormat(ToolFormat):
    """Llama 3.1 to 3.3: an object with name and parameters, bare or after ``<|python_tag|>``; several with semicolons.

    Source: https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/
    """

    MARKERS = ("<|python_tag|>",)

    def _split(self, text: str) -> tuple[str, list[ToolCall]]:
        before, tag, after = text.partition(self.MARKERS[0])
        outside, body = (before, after) if tag else ("", text)
        calls, place = [], 0
        while place < len(body):
            value, place = _json_at(body, place)
            calls.append(_tool_call(value, "parameters"))
            if body.startswith(";", place):
                place += 1
        return outside, calls

    def _start(self, parallel: bool) -> str:
        tag = self._marker(self.MARKERS[0])
        return f"start: {tag}? call" + (' ("; " call)*' if parallel else "")

    def _call(self, name: str, arguments: str) -> str:
        return _call_object(name, "parameters", arguments)


class MistralFormat(ToolFormat):
    """Mistral: ``[TOOL_CALLS]`` and a list of objects, or ``[TOOL_CALLS]name[ARGS]{...}`` for each call.

    Both are read, and the second also without ``[ARGS]``, or with ``[CALL_ID]`` and an id before it.

    Source: the instruct tokenizers of https://github.com/mistralai/mistral-common, versions 3 to 13.
    """

    MARKERS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    _NAME = re.compile(r"([^\s\[{]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?")

    def _split(self, text: str) -> tuple[str, list[ToolCall]]:
        outside, marker, body = text.partition(self.MARKERS[0])
        calls, place = [], _past_space(body, 0)
        while place < len(body):
            if match := self._NAME.match(body, place):
                value, place = _json_at(body, match.end())
                calls.append(_tool_call({"name": match[1], "arguments": value}, "arguments"))
            else:
                values, place = _json_at(body, place)
                calls += [_tool_call(value, "arguments") for value in values]
            if place < len(body):
                if not body.startswith(marker, place):
                    raise ValueError("text after a call")
                place = _past_space(body, place + len(marker))
        return outside, calls

    def _start(self, parallel: bool) -> str:
        more = ' (", " call)*' if parallel else ""
        return f'start: {self._marker("[TOOL_CALLS]")} " "? "[" call{more} "]"'

    def _call(self, name: str, arguments: str) -> str:
        return _call_object(name, "arguments", arguments)


class MistralNameFormat(MistralFormat):
    """Mistral's newer form, which its tokenizers from version 11 on write."""

    def _start(self, parallel: bool) -> str:
        return "start: call" + ("+" if parallel else "")

    def _call(self, name: str, arguments: str) -> str:
        call_id = f"({self._marker('[CALL_ID]')} /[a-zA-Z0-9]{{9}}/)? " if "[CALL_ID]" in self._token_ids else ""
        return f"{self._marker('[TOOL_CALLS]')} {json.dumps(name)} {call_id}{self._marker('[ARGS]')} {arguments}"


def tool_format_of(tokenizer: Any) -> ToolFormat | None:
    """The form in which a model writes tool calls, or None where its chat template tells of none that is known.

    Args:
        tokenizer: a tokenizer of transformers.
    """
    try:
        template: str = tokenizer.get_chat_template(tools=[])  # by its name where there are several
    except ValueError:  # there is none
        return None
    kind = _kind_of(template)
    if kind is None:
        return None
    added = {i: token for i, token in tokenizer.added_tokens_decoder.items() if token.content in kind.MARKERS}
    return kind({token.content: i for i, token in added.items()}, [i for i, token in added.items() if token.special])


def _kind_of(template: str) -> type[ToolFormat] | None:
    # Qwen 3 Coder and GLM put XML between the same tags.
    xml = "<function=" in template or "<arg_key>" in template
    if "<tool_call>" in template and "arguments" in template and not xml:
        return HermesFormat
    if "[TOOL_CALLS]" in template:
        return MistralNameFormat if "[ARGS]" in template else MistralFormat
    if re.search(r'"parameters\\?": ', template) and re.search(r"<\|(python_tag|start_header_id)\|>", template):
        return LlamaFormat
    return None


def _call_object(name: str, key: str, arguments: str) -> str:
    beginning = f'{{"name": {json.dumps(name)}, "{key}": '
    return f'{json.dumps(beginning)} {arguments} "}}"'


def _tool_call(value: Any, key: str) -> ToolCall:
    """A call from its object. Raises ValueError where it is none."""
    if not isinstance(value, dict) or key not in value:
        raise ValueError(f"no object with {key}")
    name, arguments = value.get("name"), {} if value[key] is None else value[key]
    if not (isinstance(name, str) and name and isinstance(arguments, dict)):
        raise ValueError("no name, or arguments that are no object")
    name.encode()  # half of a surrogate pair can be spelled in JSON, and not be sent on
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return ToolCall(name, text if _can_be_sent(text) else json.dumps(arguments))


def _can_be_sent(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _json_at(text: str, place: int) -> tuple[Any, int]:
    """The JSON value that begins at a place, and where what follows it begins, white space aside."""
    value, end = _DECODER.raw_decode(text, _past_space(text, place))
    return value, _past_space(text, end)


def _past_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


_DECODER = json.JSONDecoder()
