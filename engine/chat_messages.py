"""From messages in OpenAI's form to what chat templates of transformers expect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .errors import RequestError

_NO_ARGUMENTS = ("", "null")


def for_template(messages: Sequence[Any], template: str) -> list[Any]:
    """Messages as a template reads them; what is no message is left to the template to refuse.

    Null content is an empty text, arguments of tool calls are objects, and ``developer``, OpenAI's newer name for
    ``system``, is so called only where the template knows it.

    Raises:
        RequestError: where arguments of a tool call are not a JSON object.
    """
    return [_turn(message, f"messages[{index}]", template) for index, message in enumerate(messages)]


def _turn(message: Any, where: str, template: str) -> Any:
    if not isinstance(message, dict):
        return message
    turn = dict(message)
    calls = turn.get("tool_calls")
    if turn.get("content") is None and ("content" in turn or calls):
        turn["content"] = ""
    if turn.get("role") == "developer" and "developer" not in template:
        turn["role"] = "system"
    if isinstance(calls, list):
        turn["tool_calls"] = [_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]
    return turn


def _call(call: Any, where: str) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _arguments(arguments: Any, where: str) -> dict[str, Any]:
    if arguments is None or (isinstance(arguments, str) and arguments.strip() in _NO_ARGUMENTS):
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            message = f"{where} is not JSON; it must be the text of a JSON object"
            raise RequestError(message, param="messages") from error
    if not isinstance(arguments, dict):
        raise RequestError(f"{where} must be the text of a JSON object, such as '{{}}'", param="messages")
    return arguments
