"""The output file: torn at any byte, of other input, and rewritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from headrace.producers.dataset import scan
from headrace.producers.output_file import LedgerMismatch, OutputFile, Written


def line(name: str, *, failed: bool = False) -> str:
    """An output line with a long and non-ASCII body."""
    error = {"code": "x", "message": "y"} if failed else None
    return json.dumps({"id": f"id-{name}", "custom_id": name, "response": {"body": "ä" * 40}, "error": error})


def append(path: Path, *lines: str) -> None:
    output = OutputFile(path)
    output.append(lines)
    output.close()


def test_c13_a_tail_torn_at_any_byte_is_cut_and_redone(tmp_path: Path) -> None:
    whole = [line("a"), line("b", failed=True)]
    last = line("c").encode() + b"\n"
    for length in range(len(last)):
        path = tmp_path / "out.jsonl"
        path.unlink(missing_ok=True)
        append(path, *whole)
        kept = path.read_bytes()
        path.write_bytes(kept + last[:length])
        written = OutputFile(path).read()
        assert written.done == {"id-a", "id-b"}
        assert written.failed == {"id-b"}
        assert path.read_bytes() == kept
        append(path, line("c"))
        assert path.read_bytes() == kept + last
        assert OutputFile(path).read().done == {"id-a", "id-b", "id-c"}


def test_c13_a_torn_line_longer_than_any_buffer(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    append(path, line("a"))
    kept = path.read_bytes()
    torn = line("b" * 200_000).encode()
    path.write_bytes(kept + torn)
    assert OutputFile(path).read().done == {"id-a"}
    assert path.read_bytes() == kept
    path.write_bytes(torn)
    assert OutputFile(path).read().done == set()
    assert path.read_bytes() == b""


def test_no_file_and_an_empty_one_hold_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert OutputFile(path).read() == Written()
    assert not path.exists()
    path.touch()
    assert OutputFile(path).read() == Written()


@pytest.mark.parametrize(
    "foreign",
    ["notes", "[1]", "null", "{}", '{"id": "x"}', '{"custom_id": "x", "error": null}', '{"a": 1}', '{"id": 5}', ""],
)
def test_c13_a_foreign_file_is_left_alone(tmp_path: Path, foreign: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(line("a") + "\n" + foreign + "\n")
    before = path.read_bytes()
    with pytest.raises(LedgerMismatch, match=r"^out\.jsonl:2: not an output line"):
        OutputFile(path).read()
    assert path.read_bytes() == before


def test_c13_a_foreign_file_without_a_last_line_end_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    for foreign in (b"one line of notes", b"two lines\nof notes", b'{\n  "pretty": 1\n}'):
        path.write_bytes(foreign)
        with pytest.raises(LedgerMismatch):
            OutputFile(path).read()
        assert path.read_bytes() == foreign


def source(path: Path, **prompts: str) -> Path:
    """An input file."""
    rows = [{"custom_id": name, "url": "/v1/completions", "body": {"prompt": text}} for name, text in prompts.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def written_for(rows: Path) -> Written:
    """What an output holds after all rows of an input."""
    from headrace.producers.batch_input import read_rows

    return Written({row.custom_id: {row.row_id} for row in read_rows(rows)})


def test_c13_rows_match_by_id_and_content_whatever_their_order(tmp_path: Path) -> None:
    done = written_for(source(tmp_path / "some.jsonl", b="2", a="1"))
    plan = scan(source(tmp_path / "in.jsonl", a="1", c="3", b="2"), done)
    assert (plan.total, plan.resumed, plan.to_go) == (3, 2, 1)


def test_c13_a_changed_prompt_is_a_mismatch(tmp_path: Path) -> None:
    done = written_for(source(tmp_path / "before.jsonl", a="1", b="2"))
    with pytest.raises(LedgerMismatch, match=r"holds 1 rows that are changed in, or missing from, .* 'b'"):
        scan(source(tmp_path / "in.jsonl", a="1", b="changed"), done)
    with pytest.raises(LedgerMismatch, match="'b'"):
        scan(source(tmp_path / "in.jsonl", a="1"), done)


def test_drop_removes_rows_and_keeps_the_others_bytes(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    append(path, line("a"), line("b", failed=True), line("c"), line("d", failed=True))
    output = OutputFile(path)
    output.drop(output.read().failed)
    assert path.read_text() == line("a") + "\n" + line("c") + "\n"
    output.append([line("b")])
    output.close()
    assert OutputFile(path).read().done == {"id-a", "id-b", "id-c"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


def test_lines_are_in_the_file_when_append_returns(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    output = OutputFile(path)
    for number in range(1, 4):
        output.append([line(str(number))])
        assert len(path.read_text().splitlines()) == number
    output.close()
    output.close()
