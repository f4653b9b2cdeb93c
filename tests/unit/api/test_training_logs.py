"""The log of a trainer while it grows."""

from __future__ import annotations

from pathlib import Path

from trainyard.api.training_logs import LogTail


def test_a_line_comes_when_it_is_whole_and_once(tmp_path: Path) -> None:
    path = tmp_path / "child.log"
    tail = LogTail.at_end(path, 100)
    assert list(tail.read()) == []
    path.write_bytes(b"one\n10%\r50%\r100%\nhal")
    assert list(tail.read()) == ["one", "100%"]
    with path.open("ab") as stream:
        stream.write(b"f\nlast")
    assert list(tail.read()) == ["half"]
    assert list(tail.rest()) == ["last"]
    assert list(tail.rest()) == []


def test_of_a_long_log_the_last_whole_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "child.log"
    path.write_text("".join(f"line {number}\n" for number in range(100)))
    assert list(LogTail.at_end(path, 20).read()) == ["line 98", "line 99"]
    assert next(iter(LogTail.at_end(path, 10_000).read())) == "line 0"
    assert list(LogTail.at_end(path).read()) == []


def test_a_log_that_was_cut_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "child.log"
    path.write_text("a long first line\n")
    tail = LogTail.at_end(path, 100)
    assert list(tail.read()) == ["a long first line"]
    path.write_text("new\n")
    assert list(tail.read()) == ["new"]
