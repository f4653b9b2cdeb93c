"""Workbooks, slides, books, mails and notebooks made to hang or to fill the memory: each costs only itself."""

from __future__ import annotations

import io
import json
import pickle
import time
import zipfile
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path

import openpyxl
import pptx
import pytest

from tests.unit.data.reading import read_all, settings_for

pytestmark = pytest.mark.integration

MOST_S = 60.0
"""A reader that is not capped takes minutes or the machine's memory; the machine may be busy with other tests."""
LAUGHS = """<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;"><!ENTITY d SYSTEM "file:///etc/passwd">]>"""


def archive(parts: dict[str, bytes | str], base: bytes = b"") -> bytes:
    """A zip archive with these parts in place of those of `base`."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as written:
        if base:
            with zipfile.ZipFile(io.BytesIO(base)) as base_archive:
                for entry in base_archive.infolist():
                    if entry.filename not in parts:
                        written.writestr(entry.filename, base_archive.read(entry))
        for name, data in parts.items():
            written.writestr(name, data)
    return stream.getvalue()


def save_bytes(document: object) -> bytes:
    stream = io.BytesIO()
    document.save(stream)  # type: ignore[attr-defined]
    return stream.getvalue()


def sheet(rows: str, dimension: str = "A1") -> bytes:
    """A workbook whose sheet has these rows in XML."""
    text = (
        '<?xml version="1.0"?><worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">'
        f'<dimension ref="{dimension}"/><sheetData>{rows}</sheetData></worksheet>'
    )
    return archive({"xl/worksheets/sheet1.xml": text}, save_bytes(openpyxl.Workbook()))


def million_cells() -> bytes:
    """70 rows whose only cell is in the last column: a million cells between them and the first one."""
    return sheet("".join(f'<row r="{n}"><c r="XFD{n}"><v>1</v></c></row>' for n in range(1, 71)))


def nest_mail(depth: int) -> bytes:
    mail = EmailMessage()
    mail.set_content("the innermost")
    mail["Subject"] = "inner"
    for _ in range(depth):
        outer = EmailMessage()
        outer["Subject"] = "outer"
        outer.set_content("a text")
        outer.add_attachment(mail)
        mail = outer
    return mail.as_bytes()


def nest_multiparts(depth: int) -> bytes:
    head = b"From: a@example.org\nSubject: deep\n"
    begin = b"".join(b'Content-Type: multipart/mixed; boundary="b%d"\n\n--b%d\n' % (n, n) for n in range(depth))
    return head + begin + b"\ntext\n"


CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="book.opf"/></rootfiles></container>'
)
MIXED = b'From: a@b\nContent-Type: multipart/mixed; boundary="x"\n\n'
BOMB = b" " * (200 << 20)
ATTACKS: dict[str, tuple[str, Callable[[], bytes], tuple[str, ...]]] = {
    "a workbook that expands": ("m.xlsx", lambda: archive({"xl/workbook.xml": BOMB}), ("too_large",)),
    "slides that expand": ("m.pptx", lambda: archive({"ppt/presentation.xml": BOMB}), ("too_large",)),
    "a book that expands": ("m.epub", lambda: archive({"book.opf": BOMB}), ("too_large",)),
    "a book of 20,000 entries": (
        "m.epub", lambda: archive({f"{n}.txt": "a text of some length" * 3 for n in range(20_000)}), ("too_large",),
    ),
    "a workbook with entities": (
        "m.xlsx", lambda: archive({"xl/sharedStrings.xml": LAUGHS + "<l>&c;&d;</l>"}, save_bytes(openpyxl.Workbook())),
        ("unreadable",),
    ),
    "slides with entities": (
        "m.pptx", lambda: archive({"ppt/presentation.xml": LAUGHS + "<l>&c;&d;</l>"}, save_bytes(pptx.Presentation())),
        ("unreadable",),
    ),
    "a book with entities": (
        "m.epub", lambda: archive({"META-INF/container.xml": LAUGHS + "<l>&c;&d;</l>"}), ("unreadable",),
    ),
    "a workbook of a million cells": ("m.xlsx", million_cells, ("too_large",)),
    "one cell at the far end of a sheet": (
        "m.xlsx", lambda: sheet('<row r="1048576"><c r="XFD1048576"><v>1</v></c></row>', "A1:XFD1048576"),
        ("too_large",),
    ),
    "a mail in a mail in a mail": ("m.eml", lambda: nest_mail(40), ("too_deep",)),
    "parts in parts in parts": ("m.eml", lambda: nest_multiparts(3000), ("unreadable", "too_large", "time_limit")),
    "a mail of 5,000 parts": (
        "m.eml", lambda: MIXED + b"--x\n\ntext\n" * 5000 + b"--x--",
        ("too_large",),
    ),
    "a notebook that is a pickle": ("m.ipynb", lambda: pickle.dumps({"cells": [1]}), ("not_utf8", "not_json")),
    "a notebook of nested lists": (
        "m.ipynb", lambda: json.dumps({"cells": []}).encode()[:-1] + b', "x": ' + b"[" * 200_000, ("too_deep",),
    ),
    "a book that leads out of itself": (
        "m.epub",
        lambda: archive({
            "META-INF/container.xml": CONTAINER,
            "book.opf": '<package><manifest><item id="a" href="../../../etc/passwd" media-type="text/html"/></manifest>'
            '<spine><itemref idref="a"/></spine></package>',
        }),
        ("unreadable",),
    ),
}  # fmt: skip


def test_each_attack_costs_only_itself(tmp_path: Path) -> None:
    """One folder with all of them, so that those behind an attack are seen to be read."""
    documents = tmp_path / "given"
    documents.mkdir()
    names = {}
    for number, (attack, (name, data, reasons)) in enumerate(ATTACKS.items()):
        names[f"{number:02}-{name}"] = attack, reasons
        (documents / f"{number:02}-{name}").write_bytes(data())
        (documents / f"{number:02}-z.md").write_text(f"# Good {number}\n\nA text.\n")
    began = time.monotonic()
    (result,) = read_all(tmp_path / "out", settings_for(documents), path=str(documents), max_bad_fraction=0.6).values()
    assert time.monotonic() - began < MOST_S * len(ATTACKS)
    assert [row.title for row in result.rows] == [f"Good {number}" for number in range(len(ATTACKS))]
    found_reasons = {entry["source"].rpartition(":")[0]: entry["reason"] for entry in result.quarantine}
    wrong = {names[name][0]: reason for name, reason in found_reasons.items() if reason not in names[name][1]}
    assert wrong == {}
    assert found_reasons.keys() == names.keys()
    assert "root:" not in json.dumps(result.quarantine)
