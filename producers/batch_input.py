"""Input files in OpenAI's batch form: one request a line.

    {"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}

A line that is no request becomes a bad row, with ``file:line`` and the reason, and the others run. Only ids that
would make answers ambiguous (missing, or twice in the file) refuse the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InvalidRequest
from .results import ErrorInfo
from .schema import CHAT_ENDPOINT, COMPLETIONS_ENDPOINT, GenerationRequest, json_kind

MAX_DEPTH = 100
"""Deepest nesting of a line; where Python itself gives up moves from version to version."""
_FIELDS = ("custom_id", "method", "url", "body")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Row:
    """One line of the input.

    Attributes:
        line: its number in the file, from 1, blank lines counted.
        custom_id: the user's name for it; None only where the line is no JSON object.
        row_id: names this row with this content, so that a changed row is a different one; a line that is no JSON
            object is named by its place too, since it has no id to tell it from its like.
        request: what to generate; None for a bad row.
        error: why it is a bad row, beginning with ``file:line``.
    """

    line: int
    custom_id: str | None
    row_id: str
    request: GenerationRequest | None = None
    error: ErrorInfo | None = None


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of a file, one at a time; blank lines are passed over.

    Only LF ends a line, one CR before it is dropped, and a byte-order mark is dropped at the very start: read as
    text, Python would also split at a lone CR, which JSON allows as white space.

    Raises:
        OSError: where the file cannot be read.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            line = raw.removesuffix(b"\n").removesuffix(b"\r")
            if number == 1:
                line = line.removeprefix(_BOM)
            if line.strip():
                yield parse_row(line, path.name, number)


def parse_row(line: bytes, name: str, number: int) -> Row:
    """One row from its bytes; never raises for what the bytes hold."""
    custom_id: str | None = None
    digest = hashlib.sha256(b"%d:%b" % (number, line))
    try:
        fields = _parse_object(line)
        # An id that cannot be used is left to `check_ids`, which refuses the file.
        custom_id = fields["custom_id"] if isinstance(fields.get("custom_id"), str) else ""
        digest = hashlib.sha256(json.dumps([custom_id, fields.get("url"), fields.get("body")]).encode())
        request = _parse_request(fields)
    except InvalidRequest as error:
        reason = f"{name}:{number}: {error.message}"
        info = ErrorInfo(code=error.code, message=reason, param=error.param, status_code=400)
        return Row(number, custom_id, _row_id(digest.hexdigest()), error=info)
    return Row(number, custom_id, _row_id(digest.hexdigest()), request=request)


def _row_id(digest: str) -> str:
    return f"batch_req_{digest[:32]}"


def _parse_object(line: bytes) -> dict[str, Any]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"not UTF-8: byte {error.start + 1} is {line[error.start]:#04x}"
        raise InvalidRequest(message, code="invalid_json_line") from error
    if _depth(text) > MAX_DEPTH:
        raise InvalidRequest(f"nested more than {MAX_DEPTH} deep", code="invalid_json_line")
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except ValueError as error:  # bad JSON, a duplicate key, NaN, or a number of thousands of digits
        raise InvalidRequest(f"not JSON: {error}", code="invalid_json_line") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"the line is {json_kind(value)}; it must be a JSON object", code="invalid_json_line")
    return value


def _depth(text: str) -> int:
    """Deepest bracket nesting, strings aside; an upper bound is enough, and cheap lines stop here."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    depth = deepest = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are unique: with a duplicate, which value counts would be chance."""
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice in one object")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _parse_request(fields: dict[str, Any]) -> GenerationRequest:
    for name in fields:
        if name not in _FIELDS:
            raise InvalidRequest(f"unknown field {name!r}; a line has {', '.join(_FIELDS)}", param=name)
    method, url = fields.get("method", "POST"), fields.get("url")
    if method != "POST":
        raise InvalidRequest(f"method is {method!r}; it must be POST", param="method")
    if url not in (CHAT_ENDPOINT, COMPLETIONS_ENDPOINT):
        allowed = f"{CHAT_ENDPOINT} or {COMPLETIONS_ENDPOINT}"
        raise InvalidRequest(f"url is {url!r}; it must be {allowed}", code="url_mismatch", param="url")
    if "body" not in fields:
        raise InvalidRequest("body is missing", param="body")
    request = GenerationRequest.parse(fields["body"])
    if request.endpoint != url:
        wanted = "messages" if url == CHAT_ENDPOINT else "prompt"
        raise InvalidRequest(f"{url} takes {wanted}", code="url_mismatch", param=wanted)
    return request


class BadIds(InvalidRequest):
    """The file's custom_ids do not name its rows."""


def check_ids(name: str, rows: Iterator[Row]) -> Iterator[Row]:
    """Pass rows on, checking that each has an id of its own; only digests of the ids are remembered.

    Raises:
        BadIds: naming the line and the id.
    """
    seen: dict[bytes, int] = {}
    for row in rows:
        if row.custom_id == "":
            raise BadIds(f"{name}:{row.line}: custom_id must be a text that is not empty", code="invalid_custom_id")
        if row.custom_id is not None:
            digest = hashlib.blake2b(row.custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if digest in seen:
                first = f"line {seen[digest]} has it too"
                raise BadIds(
                    f"{name}:{row.line}: custom_id {row.custom_id!r} is not unique; {first}", code="duplicate_custom_id"
                )
            seen[digest] = row.line
        yield row
