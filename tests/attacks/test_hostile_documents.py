"""Files made to hang or to fill the memory: each costs at most its own limits, and those next to it are read."""

from __future__ import annotations

import io
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import docx
import psutil
import pyarrow as pa
import pytest
from docx.oxml import OxmlElement
from docx.oxml.ns import qn
from pyarrow import parquet

from tests.unit.data.reading import Result, read_all, settings_for
from trainyard.data.limited.service import ReadingService
from trainyard.data.readers.streams import Limits
from trainyard.errors import LimitExceeded

pytestmark = pytest.mark.integration

GOOD = "# Rails\n\nRails are made of steel.\n"
MOST_S = 60.0
"""For a document that took minutes or hours; the machine may be busy with other tests."""
MOST_BYTES = 2 << 30


def folder_with(folder: Path, name: str, data: bytes) -> Path:
    """A folder with the attack between two good documents."""
    documents = folder / "given"
    documents.mkdir()
    (documents / "a.md").write_text(GOOD)
    (documents / name).write_bytes(data)
    (documents / "z.md").write_text(GOOD.replace("Rails", "Ties"))
    return documents


def read_next_to_good(folder: Path, name: str, data: bytes, limits: Limits | None = None) -> Result:
    documents = folder_with(folder, name, data)
    (result,) = read_all(
        folder / "out", settings_for(documents), limits=limits, path=str(documents), max_bad_fraction=0.5
    ).values()
    titles = [row.title for row in result.rows]
    assert (titles[0], titles[-1]) == ("Rails", "Ties")
    return result


def word_table(columns: str) -> bytes:
    """A DOCX whose only cell says that it covers so many columns."""
    document = docx.Document()
    cell = document.add_table(rows=1, cols=1).cell(0, 0)
    cell.text = "fourteen bytes"
    span = OxmlElement("w:gridSpan")
    span.set(qn("w:val"), columns)
    cell._tc.get_or_add_tcPr().append(span)
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


SPACES = b" " * 300_000
FAST_ATTACKS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a heading with 20,000 spaces": ("m.md", lambda: b"# a" + b" " * 20_000 + b"b\n"),
    "a heading with 300,000 spaces": ("m.md", lambda: b"# a" + SPACES + b"b\n"),
    "underlines and spaces": ("m.md", lambda: b"a\n" + b"=" * 100_000 + SPACES + b"b\n"),
    "fences that nobody closes": ("m.md", lambda: b"```x\n" * 72_000),
    "a title in front matter with spaces": ("m.md", lambda: b"---\ntitle: a" + SPACES + b"b\n---\n# Text\n"),
    "pre with spaces": ("m.html", lambda: b"<html><body><pre>x" + SPACES + b"y</pre></body></html>"),
    "a paragraph of 20,000 lines": ("m.html", lambda: b"<p>" + b"a<br>" * 20_000),
    "scripts between 30,000 paragraphs": ("m.html", lambda: b"<p>a</p><script>b</script>" * 30_000),
    "meta without an end": ("m.html", lambda: b"<meta " * 60_000 + b"<p>\xff text"),
    "RST underlines": ("m.rst", lambda: b"a\n" + b"=" * 100_000 + b" " * 100_000 + b"x\n"),
}


@pytest.mark.parametrize("attack", FAST_ATTACKS)
def test_a_pattern_takes_time_that_grows_with_the_file(attack: str, tmp_path: Path) -> None:
    name, data = FAST_ATTACKS[attack]
    began = time.monotonic()
    result = read_next_to_good(tmp_path, name, data())
    assert time.monotonic() - began < MOST_S
    assert len(result.rows) == 3 or result.reasons == ["charset"]


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("m.html", b"<div>" * 20_000 + b"x", "too_deep"),
        ("m.docx", word_table("300000"), "too_large"),
        ("m.docx", word_table("100000000"), "too_large"),
    ],
    ids=["nested html", "docx 300,000 columns", "docx 100,000,000 columns"],
)
def test_what_a_document_may_describe_is_capped(name: str, data: bytes, reason: str, tmp_path: Path) -> None:
    began = time.monotonic()
    result = read_next_to_good(tmp_path, name, data)
    assert time.monotonic() - began < MOST_S
    assert (result.reasons, len(result.rows)) == ([reason], 2)


def test_a_document_over_its_time_costs_only_itself(tmp_path: Path) -> None:
    slow = b"<p>" + b"<b>x</b> " * 300_000
    result = read_next_to_good(tmp_path, "m.html", slow, Limits(document_cpu_s=0.5, document_cpu_s_per_mib=0.0))
    assert (result.reasons, len(result.rows)) == (["time_limit"], 2)
    assert result.report["dropped"] == {"time_limit": 1}


def test_a_document_over_its_memory_costs_only_itself(tmp_path: Path) -> None:
    large = b"<p>" + b"<b>x</b> " * 100_000
    result = read_next_to_good(tmp_path, "m.html", large, Limits(document_memory=64 << 20))
    assert (result.reasons, len(result.rows)) == (["memory_limit"], 2)


def test_a_folder_of_breaches_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.html").write_bytes(b"<p>" + b"<b>x</b> " * 100_000)
    limits = Limits(document_memory=24 << 20, breaches=1)
    with pytest.raises(LimitExceeded, match=r"E-DATA-UNREADABLE: .* 2 of its documents went over the limits"):
        read_all(tmp_path / "out", settings_for(tmp_path), limits=limits, path=str(folder))


def test_a_document_over_its_output_costs_only_itself(tmp_path: Path) -> None:
    result = read_next_to_good(tmp_path, "m.txt", b"x" * 5000, Limits(text=4000))
    assert (result.reasons, len(result.rows)) == (["too_large"], 2)


def test_every_document_gets_its_turn_after_many_breaches(tmp_path: Path) -> None:
    documents = tmp_path / "given"
    documents.mkdir()
    for number in range(12):
        (documents / f"{number:02d}.md").write_text(f"# Page {number}\n" if number % 3 else "x" * 9000)
    limits = Limits(text=8000, documents_per_child=4)
    (result,) = read_all(
        tmp_path / "out", settings_for(documents), limits=limits, path=str(documents), max_bad_fraction=0.5
    ).values()
    assert [row.title for row in result.rows] == [f"Page {number}" for number in range(12) if number % 3]
    assert result.report["dropped"] == {"too_large": 4}


def parquet_bytes(table: pa.Table) -> bytes:
    stream = io.BytesIO()
    parquet.write_table(table, stream, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=False)
    return stream.getvalue()


def dictionary_bomb(rows: int, mib: int) -> bytes:
    """Rows of one value of so many MiB, which the file contains once, compressed."""
    value = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * (mib << 20)]))
    return parquet_bytes(pa.table({"instruction": value, "output": pa.array(["y"] * rows)}))


@pytest.mark.parametrize(("rows", "mib"), [(1000, 6), (100_000, 6), (1000, 60)])
def test_a_dictionary_bomb_is_refused(rows: int, mib: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(dictionary_bomb(rows, mib))
    assert path.stat().st_size < 100_000
    began = time.monotonic()
    with pytest.raises(LimitExceeded, match=r"E-DATA-LIMIT: rows.parquet"):
        read_all(tmp_path / "out", settings_for(tmp_path), path=str(path))
    assert time.monotonic() - began < MOST_S


def test_rows_over_the_memory_of_a_set_end_in_a_code(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    values = pa.array([os.urandom(20 << 20).hex()])
    path.write_bytes(parquet_bytes(pa.table({"text": values})))
    with pytest.raises(LimitExceeded, match=r"E-DATA-LIMIT: rows\.parquet needs more memory"):
        read_all(tmp_path / "out", settings_for(tmp_path), limits=Limits(rows_memory=64 << 20), path=str(path))


def test_rows_over_the_time_of_a_chunk_end_in_a_code(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": [' + "[1,2,3]," * 1_000_000 + "1]}\n")
    with pytest.raises(LimitExceeded, match=r"E-DATA-LIMIT: rows\.jsonl took too long to read"):
        read_all(tmp_path / "out", settings_for(tmp_path), limits=Limits(chunk_cpu_s=0.05), path=str(path))


def test_archives_that_expand_are_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b" " * (200 << 20))
    result = read_next_to_good(tmp_path, "m.docx", stream.getvalue())
    assert result.reasons == ["too_large"]


def test_a_reading_process_has_no_secret_and_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reading_service: ReadingService
) -> None:
    """The service of the module may have started before; this one is a new one, after the variable is set."""
    monkeypatch.setenv("SOME_API_KEY", "secret-value")
    with ReadingService() as fresh:
        assert fresh.process is not None
        environment = psutil.Process(fresh.process.pid).environ()
        assert "SOME_API_KEY" not in environment
        assert "secret-value" not in str(environment)
    assert reading_service.sealed


@pytest.mark.faults
def test_nothing_is_left_when_the_service_is_stopped_in_the_middle(tmp_path: Path) -> None:
    with ReadingService() as fresh:
        assert fresh.process is not None
        server = psutil.Process(fresh.process.pid)
    assert not server.is_running()
