"""The two small corpora as HTML, DOCX and PDF give about the pairs of their Markdown, and the retrieval benchmark."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import docx
import pytest
from markdown_it import MarkdownIt
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from benchmarks.pairs_by_rule import print_retrieval
from trainyard.data.extractive.outline import Section, outline
from trainyard.data.extractive.pairs import pairs
from trainyard.data.readers.documents import read_document
from trainyard.spec.axes.data import GenerationTemplate

PAGES = sorted((Path(__file__).parents[2] / "resources" / "corpora").rglob("*.md"))
LINE_CHARS = 90


def html(text: str) -> bytes:
    body = MarkdownIt("commonmark").enable("table").render(text)
    return f"<!doctype html><html><body><nav>Home</nav><main>{body}</main></body></html>".encode()


def write_word(text: str) -> bytes:
    """A document with the styles of Word for headings, lists and code."""
    document = docx.Document()
    for section in list_sections(text):
        if section.heading:
            document.add_heading(section.heading, section.level)
        for block in section.blocks:
            style = ("List Number" if block.number else "List Bullet") if block.list_id else None
            paragraph = document.add_paragraph(style=style)
            for position, part in enumerate(re.split(r"`([^`]*)`", block.text)):
                run = paragraph.add_run(part)
                run.font.name = "Courier New" if position % 2 else None
        for table_rows in list_tables(section):
            table = document.add_table(len(table_rows), len(table_rows[0]))
            for row, cells in zip(table.rows, table_rows, strict=True):
                for cell, words in zip(row.cells, cells, strict=True):
                    cell.text = words
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def pdf(text: str) -> bytes:
    """Pages with larger headings, gaps between paragraphs, bullets and numbers; without tables."""
    writer = PdfWriter()
    lines: list[tuple[str, int, int]] = []
    for section in list_sections(text):
        lines += [(section.heading, 24 - 3 * section.level, 30)] if section.heading else []
        for block in section.blocks:
            mark = (f"{block.number}. " if block.number else "- ") if block.list_id else ""
            for number, line in enumerate(wrap_text(f"{mark}{block.text}")):
                lines.append((line, 10, 13 if number else 22))
    commands, y = [], 60 + sum(gap for _, _, gap in lines)
    page = writer.add_blank_page(600, y + 40)
    for line, size, gap in lines:
        y -= gap
        escaped = re.sub(r"([()\\])", r"\\\1", line.replace("`", ""))
        commands.append(f"BT /F1 {size} Tf 40 {y} Td ({escaped}) Tj ET")
    font = DictionaryObject({
        NameObject("/Type"): NameObject("/Font"), NameObject("/Subtype"): NameObject("/Type1"),
        NameObject("/BaseFont"): NameObject("/Helvetica"), NameObject("/Encoding"): NameObject("/WinAnsiEncoding"),
    })  # fmt: skip
    fonts = DictionaryObject({NameObject("/F1"): writer._add_object(font)})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    content = DecodedStreamObject()
    content.set_data("\n".join(commands).encode("cp1252"))
    page[NameObject("/Contents")] = writer._add_object(content)
    stream = io.BytesIO()
    writer.write(stream)
    return stream.getvalue()


def wrap_text(text: str) -> list[str]:
    lines = [""]
    for word_ in text.split():
        if len(lines[-1]) + len(word_) > LINE_CHARS:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word_}".strip()
    return lines


def list_sections(text: str) -> list[Section]:
    return outline("markdown", text)


def list_tables(section: Section) -> list[list[list[str]]]:
    tables: list[list[list[str]]] = []
    for row in section.rows:
        if row:
            tables[-1].append(row)
        else:
            tables.append([])
    return tables


def answers(data: bytes, name: str) -> list[str]:
    document = read_document(data, name)
    pairs_found = pairs(document, GenerationTemplate.QA, wordings=1)
    return [" ".join(re.findall(r"\w+", pair.answer.lower())) for pair in pairs_found]


@pytest.mark.parametrize(
    ("suffix", "write", "share"), [(".html", html, 0.95), (".docx", write_word, 0.9), (".pdf", pdf, 0.8)]
)
def test_a_page_gives_the_pairs_of_its_markdown_in_any_format(
    suffix: str, write: Callable[[str], bytes], share: float
) -> None:
    expected = got = same = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if suffix == ".pdf":
            text = re.sub(r"^\|.*\n", "", text, flags=re.M)  # its tables are lines of words
        expected_answers = answers(text.encode(), page.name)
        found_answers = answers(write(text), page.stem + suffix)
        expected, got, same = (
            expected + len(expected_answers),
            got + len(found_answers),
            same + sum(answer in found_answers for answer in expected_answers),
        )
    assert expected >= 22
    assert same >= share * expected, (same, got, expected)
    assert got <= 1.15 * expected


def test_lists_code_and_definitions_of_a_page_stay() -> None:
    page = (
        b"<h1>Pump</h1><ol><li><p>Open the lid.</p><ul><li>Use <code>--slow</code>.</li></ul></li><li>Close it.</li>"
        b"</ol><dl><dt>Flow</dt><dd>Litres per minute.</dd></dl><blockquote><p>Said by a user.</p></blockquote>"
        b"<ul><li><strong>Filter</strong>: a mesh of steel</li></ul><pre>a:\n  b &lt;c&gt;\n</pre>"
        b"<table><tr><th>Part</th><td><p>one</p><p>two | three</p></td></tr></table>"
    )
    assert read_document(page, "a.html").text == (
        "# Pump\n\n1. Open the lid.\n\n    - Use `--slow`.\n\n2. Close it.\n\n- **Flow**: Litres per minute.\n\n"
        "> Said by a user.\n\n- **Filter**: a mesh of steel\n\n```\na:\n  b <c>\n\n```\n\n"
        "| Part |  one  two \\| three  |\n| --- | --- |\n"
    )


@pytest.mark.parametrize(("fact", "enough"), [("Monday", True), ("a fact of no page", False)])
def test_retrieval_counts_the_questions_whose_fact_a_pair_has(
    fact: str, enough: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "desk").mkdir()
    page = "# Desk\n\nRefunds are paid on Monday at the counter. Lost keys are kept in the safe of the porter.\n"
    (tmp_path / "desk" / "refunds.md").write_text(page, encoding="utf-8")
    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps({"question": "On which day do I get a refund?", "fact": fact}), encoding="utf-8")
    assert print_retrieval(tmp_path / "desk", questions) is enough
    assert f"{int(enough)} of 1 questions find it in three" in capsys.readouterr().out
