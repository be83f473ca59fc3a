"""The ways to ask for an answer of a given form, and the one form behind them."""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

Kind = Literal["json_schema", "regex", "grammar", "choice"]

_GUIDED: dict[str, Kind] = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_grammar": "grammar",
    "guided_choice": "choice",
}
"""vLLM's parameters."""
_STRUCTURED: dict[str, Kind] = {"json": "json_schema", "regex": "regex", "grammar": "grammar", "choice": "choice"}
"""Keys of vLLM's later ``structured_outputs``."""
FIELDS = (*_GUIDED, "structured_outputs", "response_format")
"""The parameters that ask for a form."""
_FORMATS = "text, json_object or json_schema"


class StructuredOutput(NamedTuple):
    """A form that an answer has to have.

    Attributes:
        kind: what ``definition`` is: a JSON schema, a regular expression, a grammar (Lark or GBNF), or a JSON list of
            the texts to choose from.
        param: the parameter that asked for it.
    """

    kind: Kind
    definition: str
    param: str


def structured_output(fields: dict[str, Any]) -> StructuredOutput | None:
    """The form that a request's :data:`FIELDS` ask for, or None for free text.

    Raises:
        ValueError: where a form is malformed, or two are asked for; the message begins with the parameter.
    """
    asked = [_guided(name, kind, fields[name]) for name, kind in _GUIDED.items() if fields.get(name) is not None]
    if fields.get("structured_outputs") is not None:
        asked.append(_structured_outputs(fields["structured_outputs"]))
    if fields.get("response_format") is not None:
        form = _response_format(fields["response_format"])
        asked += [] if form is None else [form]
    if len(asked) > 1:
        raise ValueError(f"{asked[1].param}: {asked[0].param} asks for a form already; give one of them")
    return asked[0] if asked else None


def _guided(param: str, kind: Kind, value: Any) -> StructuredOutput:
    if kind == "json_schema":
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise ValueError(f"{param}: not JSON: {error}") from error
        return _schema(param, value)
    if kind == "choice":
        if not (isinstance(value, list) and value and all(isinstance(text, str) and text for text in value)):
            raise ValueError(f"{param}: it must be a list of texts that are not empty")
        return StructuredOutput(kind, json.dumps(value), param)
    if not (isinstance(value, str) and value):
        raise ValueError(f"{param}: it must be a text that is not empty")
    return StructuredOutput(kind, value, param)


def _schema(param: str, value: Any) -> StructuredOutput:
    if not isinstance(value, dict):
        raise ValueError(f"{param}: a JSON schema must be an object")
    return StructuredOutput("json_schema", json.dumps(value), param)


def _structured_outputs(value: Any) -> StructuredOutput:
    param = "structured_outputs"
    if not (isinstance(value, dict) and len(value) == 1 and (key := next(iter(value))) in _STRUCTURED):
        raise ValueError(f"{param}: it must be an object with one of {', '.join(_STRUCTURED)}")
    return _guided(param, _STRUCTURED[key], value[key])


def _response_format(value: Any) -> StructuredOutput | None:
    param = "response_format"
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return _schema(param, {"type": "object"})
    if kind != "json_schema":
        raise ValueError(f"{param}: it must be an object whose type is {_FORMATS}")
    wrapper = value.get("json_schema")
    if not isinstance(wrapper, dict) or "schema" not in wrapper:
        raise ValueError(f'{param}: json_schema must be an object such as {{"name": "answer", "schema": {{...}}}}')
    return _schema(param, wrapper["schema"])
