"""The log of a trainer while it grows."""

from __future__ import annotations

from pathlib import Path

from trainyard.compute.events import LineTail


def test_a_line_comes_when_it_is_whole_and_once(tmp_path: Path) -> None:
    path = tmp_path / "child.log"
    tail = LineTail.at_end(path, 100)
    assert tail.read_texts() == []
    path.write_bytes(b"one\n10%\r50%\r100%\nhal")
    assert tail.read_texts() == ["one", "100%"]
    with path.open("ab") as stream:
        stream.write(b"f\nlast")
    assert tail.read_texts() == ["half"]
    assert list(tail.read_last_texts()) == ["last"]
    assert list(tail.read_last_texts()) == []


def test_of_a_long_log_the_last_whole_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "child.log"
    path.write_text("".join(f"line {number}\n" for number in range(100)))
    assert LineTail.at_end(path, 20).read_texts() == ["line 98", "line 99"]
    assert LineTail.at_end(path, 10_000).read_texts()[0] == "line 0"
    assert LineTail.at_end(path).read_texts() == []


def test_a_log_that_was_cut_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "child.log"
    path.write_text("a long first line\n")
    tail = LineTail.at_end(path, 100)
    assert tail.read_texts() == ["a long first line"]
    path.write_text("new\n")
    assert tail.read_texts() == ["new"]
