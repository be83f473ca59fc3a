"""Batch files as people have them: broken encodings, hostile JSON, ids that name nothing."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

import pytest
from headrace.producers.batch_input import MAX_DEPTH, BadIds, Row, check_ids, read_rows
from headrace.producers.batch_output import output_line
from headrace.producers.dataset import scan
from headrace.producers.errors import InvalidRequest
from headrace.producers.output_file import Written

CHAT_URL = "/v1/chat/completions"


def line(custom_id: Any, content: str = "hi", **body: Any) -> bytes:
    """A row as bytes."""
    fields = {"custom_id": custom_id, "method": "POST", "url": CHAT_URL}
    return json.dumps({**fields, "body": {"messages": [{"role": "user", "content": content}], **body}}).encode()


def rows_of(directory: Path, data: bytes) -> list[Row]:
    """The rows of a file with these bytes."""
    path = directory / "in.jsonl"
    path.write_bytes(data)
    return list(read_rows(path))


def content(row: Row) -> str:
    assert row.request and row.request.messages, row.error
    return row.request.messages[0].content


def bad(row: Row, *words: str) -> None:
    """A row is refused, with ``file:line`` and these words, and its output line can be written."""
    assert row.error is not None and row.request is None
    assert row.error.message.startswith(f"in.jsonl:{row.line}: ")
    assert row.error.status_code == 400
    for word in words:
        assert word in row.error.message
    output_line(row, None).encode()


def test_a1_a_byte_order_mark_is_dropped_at_the_very_start_only(tmp_path: Path) -> None:
    data = codecs.BOM_UTF8 + line("r1", "\ufeffhi") + b"\n" + codecs.BOM_UTF8 + line("r2") + b"\n"
    first, second = rows_of(tmp_path, data)
    assert first.custom_id == "r1"
    assert content(first) == "\ufeffhi"
    bad(second, "not JSON")


@pytest.mark.parametrize(
    ("data", "numbers"),
    [
        (line("r1") + b"\n\n" + line("r2") + b"\n", [1, 3]),
        (line("r1") + b"\n" + line("r2") + b"\n\n\n", [1, 2]),
        (line("r1") + b"\r\n" + line("r2") + b"\r\n", [1, 2]),
        (line("r1") + b"\n \t \n" + line("r2"), [1, 3]),
        (line("r1") + b"\r\n\r\n" + line("r2"), [1, 3]),
        (b"\n" + line("r1") + b"\n" + line("r2"), [2, 3]),
        (line("r1").replace(b", ", b",\r") + b"\n" + line("r2"), [1, 2]),
    ],
    ids=["blank", "final newlines", "crlf", "white space", "blank crlf", "first blank", "lone cr inside"],
)
def test_a2_line_ends_and_blank_lines(tmp_path: Path, data: bytes, numbers: list[int]) -> None:
    rows = rows_of(tmp_path, data)
    assert [row.line for row in rows] == numbers, "lines are counted as an editor counts them"
    assert [row.custom_id for row in rows] == ["r1", "r2"]
    assert all(row.request for row in rows)


def test_a2_line_ends_across_the_reads_of_a_large_file(tmp_path: Path) -> None:
    data = b"".join(line(f"r{number}", "x" * (number % 977)) + b"\r\n" for number in range(2000))
    assert [row.custom_id for row in rows_of(tmp_path, data)] == [f"r{number}" for number in range(2000)]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"  \r\n"])
def test_a2_a_file_without_requests_says_so(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(data)
    with pytest.raises(InvalidRequest, match="holds no requests"):
        scan(path, Written())


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"custom_id": "\xff"}', ["not UTF-8", "byte 16 is 0xff"]),
        (line("r2")[:-1] + b"\xe2\x82", ["not UTF-8"]),
    ],
)
def test_a4_bytes_that_are_no_text_cost_one_row(tmp_path: Path, raw: bytes, words: list[str]) -> None:
    rows = rows_of(tmp_path, line("r1") + b"\n" + raw + b"\n" + line("r3"))
    bad(rows[1], *words)
    assert content(rows[0]) == content(rows[2]) == "hi"
    torn = rows_of(tmp_path, line("r1") + b"\n" + raw)
    assert [row.error is None for row in torn] == [True, False]


def test_a4_surrogates(tmp_path: Path) -> None:
    lone, pair = rows_of(tmp_path, line("r1", "a\ud83d") + b"\n" + line("r2", "\ud83c\udf78"))
    assert content(lone) == "a\ufffd"
    assert content(pair).encode() == b"\xf0\x9f\x8d\xb8"


@pytest.mark.parametrize(
    "raw",
    [
        line("\ud83d"),
        line("r", seed=1).replace(b"seed", b"\\ud83d"),
        line("r").replace(b'"method"', b'"\\ud83d"'),
        line("r").replace(b'"role"', b'"\\ud83d"'),
        line("r").replace(b'"user"', b'"\\ud83d"'),
        line("r").replace(b'"POST"', b'"\\ud83d"'),
        line("r").replace(b'"/v1', b'"\\ud83d'),
    ],
)
def test_a4_surrogates_where_no_text_is_expected(tmp_path: Path, raw: bytes) -> None:
    [row] = check_ids("in.jsonl", iter(rows_of(tmp_path, raw)))
    if row.error is not None:
        bad(row)
        row.error.message.encode()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"[1,2]", ["the line is an array"]),
        (b'"hello"', ["the line is a string"]),
        (b"null", ["the line is null"]),
        (b"7", ["the line is a number"]),
        (line("r").replace(b'{"messages"', b'"text", "x": {"messages"'), ["unknown field 'x'"]),
        (b'{"custom_id": "r", "method": "POST", "url": "/v1/chat/completions", "body": "text"}', ["body is a string"]),
        (b"[" * 20_000 + b"]" * 20_000, ["nested"]),
        (line("r").replace(b'"hi"', b"[" * 20_000 + b"]" * 20_000), ["nested", str(MAX_DEPTH)]),
        (line("r").replace(b'"hi"', b'{"a":' * 20_000 + b"1" + b"}" * 20_000), ["nested"]),
        (line("r", max_tokens=1).replace(b'"max_tokens": 1', b'"max_tokens": ' + b"9" * 5000), ["not JSON"]),
        (line("r", max_tokens=True), ["max_tokens", "valid integer"]),
        (line("r").replace(b'"method"', b'"custom_id": "s", "method"'), ["'custom_id' stands twice"]),
        (line("r").replace(b'"role"', b'"role": "user", "role"'), ["'role' stands twice"]),
        (line("r", temperature=float("nan")), ["NaN"]),
        (line("r", temperature=float("-inf")), ["-Infinity"]),
        (line("r", temperature=1).replace(b'"temperature": 1', b'"temperature": 1e999'), ["temperature", "finite"]),
        (b'{"custom_id": "r"', ["not JSON"]),
        (line("r") + line("s"), ["not JSON: Extra data"]),
        (line("r").replace(b"POST", b"GET"), ["method is 'GET'"]),
        (line("r").replace(b"/chat/completions", b"/embeddings"), ["url is '/v1/embeddings'", CHAT_URL]),
        (line("r").replace(b"/chat", b""), ["/v1/completions takes prompt"]),
        (b'{"custom_id": "r", "url": "/v1/chat/completions"}', ["body is missing"]),
    ],
)
def test_a5_lines_that_are_no_request_cost_one_row(tmp_path: Path, raw: bytes, words: list[str]) -> None:
    before, row, after = rows_of(tmp_path, line("r1") + b"\n" + raw + b"\n" + line("r3") + b"\n")
    bad(row, *words)
    assert content(before) == content(after) == "hi"


def test_brackets_in_texts_are_no_nesting(tmp_path: Path) -> None:
    text = '\\"[{' * 500
    [row] = rows_of(tmp_path, line("r", text))
    assert content(row) == text


def test_a6_bad_rows_shift_nothing(tmp_path: Path) -> None:
    data = b"\n".join([line("a"), b"{", line("b", temperature=9), line("c").replace(b"/v1", b"/v9"), line("d", "last")])
    path = tmp_path / "in.jsonl"
    path.write_bytes(data)
    for _ in range(2):
        rows = list(read_rows(path))
        assert [(row.line, row.custom_id, row.error is None) for row in rows] == [
            (1, "a", True), (2, None, False), (3, "b", False), (4, "c", False), (5, "d", True),
        ]  # fmt: skip
        assert content(rows[4]) == "last"
    plan = scan(path, Written())
    assert (plan.total, plan.bad, plan.to_go) == (5, 3, 5)


def test_a7_an_id_that_stands_twice_refuses_the_file(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b"\n".join([line("x"), line("y"), line("x", "other")]))
    with pytest.raises(BadIds, match=r"^in\.jsonl:3: custom_id 'x' is not unique; line 1 has it too$"):
        list(check_ids("in.jsonl", iter(rows)))


@pytest.mark.parametrize("custom_id", ["", None, 5, True, ["a"]])
def test_a7_an_id_that_names_nothing_refuses_the_file(tmp_path: Path, custom_id: Any) -> None:
    rows = rows_of(tmp_path, line("x") + b"\n" + line(custom_id))
    with pytest.raises(BadIds, match=r"^in\.jsonl:2: custom_id must be a text that is not empty$"):
        list(check_ids("in.jsonl", iter(rows)))
    missing = line("x").replace(b'"custom_id": "x", ', b"")
    with pytest.raises(BadIds, match="jsonl:1"):
        list(check_ids("in.jsonl", iter(rows_of(tmp_path, missing))))


def test_a_row_is_known_by_its_content(tmp_path: Path) -> None:
    spaced = line("a").replace(b": ", b":   ")
    same, moved, other_id, other_text, other_setting = rows_of(
        tmp_path, b"\n".join([line("a"), spaced, line("b"), line("a", "ho"), line("a", seed=1)])
    )
    assert same.row_id == moved.row_id
    assert len({row.row_id for row in (same, other_id, other_text, other_setting)}) == 4


def test_bad_lines_that_are_alike_are_different_rows(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b"[1,2]\n" + line("a") + b"\n[1,2]\n\xff\n\xff\n")
    assert len({row.row_id for row in rows}) == 5
    assert rows == rows_of(tmp_path, b"[1,2]\n" + line("a") + b"\n[1,2]\n\xff\n\xff\n")
