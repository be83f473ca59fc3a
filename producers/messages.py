"""Conversations in OpenAI's form: turns, content parts, tools and calls of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _well_formed(text: Any) -> Any:
    """Replace lone surrogates by U+FFFD: JSON can spell them, but no encoding can carry them."""
    if not isinstance(text, str) or text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _well_formed_inside(value: Any) -> Any:
    """The same for every text inside a JSON value."""
    if isinstance(value, list):
        return [_well_formed_inside(item) for item in value]
    if isinstance(value, dict):
        return {_well_formed(key): _well_formed_inside(item) for key, item in value.items()}
    return _well_formed(value)


def _joined_parts(content: Any) -> Any:
    """OpenAI's list of text parts as one text; null, as beside tool calls, is no text."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError('content parts must be {"type": "text", "text": ...}; this model reads text only')
        texts.append(part["text"])
    return "".join(texts)


Text = Annotated[str, BeforeValidator(_well_formed)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(_well_formed_inside)]
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class FunctionCall(_Strict):
    """Which function an assistant called, and with what."""

    name: FunctionName
    arguments: Text
    """A JSON object as text, as OpenAI writes it."""


class ToolCall(_Strict):
    """An assistant's call of a tool."""

    id: Text
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(_Strict):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Text, BeforeValidator(_joined_parts)] = ""
    name: Text | None = None
    tool_calls: Annotated[list[ToolCall], Field(min_length=1)] | None = None
    tool_call_id: Text | None = None

    @model_validator(mode="after")
    def _parts_belong_to_the_role(self) -> Message:
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError(f"tool_calls stand beside the role assistant, not {self.role}")
        if (self.tool_call_id is None) == (self.role == "tool"):
            raise ValueError("the role tool, and no other, has a tool_call_id")
        if "content" not in self.model_fields_set and self.tool_calls is None:
            raise ValueError("content is missing")
        return self


class FunctionDefinition(_Strict):
    """A function that the model may call."""

    name: FunctionName
    description: Text | None = None
    parameters: JsonObject | None = None
    """A JSON schema of the arguments; None is a function without any."""
    strict: bool | None = None


class Tool(_Strict):
    """A tool that the model may call."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(_Strict):
    """A function by its name."""

    name: FunctionName


class NamedTool(_Strict):
    """The one tool that the model has to call."""

    type: Literal["function"]
    function: NamedFunction
