"""Workbooks, slides, books, mails and notebooks as documents: titles, order, and what is left out."""

from __future__ import annotations

import io
import json
import zipfile
from email.message import EmailMessage
from typing import Any

import openpyxl
import pptx
import pytest

from trainyard.data.quarantine import BadRow
from trainyard.data.readers.documents import read_document
from trainyard.data.rows import DocumentRow


def save_document(document: Any) -> bytes:
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def workbook() -> bytes:
    book = openpyxl.Workbook()
    book.properties.title = "Stock list"
    sheet = book.active
    sheet.title = "Parts"
    for row in (["name", None, "count"], ["bolt | nut", None, 12], [], ["rail", None, 3.5]):
        sheet.append(row)
    hidden = book.create_sheet("Notes")
    hidden.append(["nobody sees this"])
    hidden.sheet_state = "hidden"
    return save_document(book)


def slides() -> bytes:
    show = pptx.Presentation()
    first = show.slides.add_slide(show.slide_layouts[1])
    first.shapes.title.text = "The reset button"
    first.placeholders[1].text = "Press it\nfor ten seconds"
    first.notes_slide.notes_text_frame.text = "Show the device."
    second = show.slides.add_slide(show.slide_layouts[5])
    cells = second.shapes.add_table(2, 2, 0, 0, 100, 100).table
    for position, text in enumerate(("LED", "meaning", "red", "off")):
        cells.cell(position // 2, position % 2).text = text
    group = second.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "inside a group"
    return save_document(show)


def book(*, encryption: str = "", container: str = "") -> bytes:
    package = """<package xmlns="http://www.idpf.org/2007/opf"><metadata
      xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Rails</dc:title></metadata><manifest>
      <item id="b" href="two.xhtml" media-type="application/xhtml+xml"/>
      <item id="a" href="one%20x.xhtml" media-type="application/xhtml+xml"/>
      <item id="p" href="cover.png" media-type="image/png"/></manifest>
      <spine><itemref idref="p"/><itemref idref="a"/><itemref idref="b"/></spine></package>"""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("mimetype", "application/epub+zip")
        archive.writestr(
            "META-INF/container.xml",
            container
            or '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>',
        )
        archive.writestr("OEBPS/book.opf", package)
        for name, text in (("one x", "Iron"), ("two", "Wood")):
            page = f"<!DOCTYPE html><html><body><h1>{text}</h1><p>About {text}.</p></body></html>"
            archive.writestr(f"OEBPS/{name}.xhtml", page)
        if encryption:
            archive.writestr("META-INF/encryption.xml", f'<e><CipherReference URI="{encryption}"/></e>')
    return stream.getvalue()


def mail(body: str = "The device is *off*.", subtype: str = "plain", inner: EmailMessage | None = None) -> EmailMessage:
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = "Reset", "Ada <ada@example.org>", "bob@example.org"
    message["Date"] = "Mon, 23 Nov 2026 10:00:00 +0000"
    message.set_content(body, subtype=subtype)
    if inner is not None:
        message.add_attachment(inner)
    return message


def notebook(*cells: dict[str, Any], **more: Any) -> bytes:
    about = {"language_info": {"name": "python"}}
    return json.dumps({"nbformat": 4, "metadata": about, "cells": list(cells), **more}).encode()


def read(data: bytes, name: str) -> DocumentRow:
    return read_document(data, name)


def test_a_workbook_is_a_table_for_each_visible_sheet() -> None:
    row = read(workbook(), "stock.xlsx")
    assert (row.kind, row.title) == ("xlsx", "Stock list")
    assert row.text == (
        "## Parts\n\n| name | count |\n| --- | --- |\n| bolt \\| nut | 12 |\n| rail | 3.5 |\n"
    )  # fmt: skip


def test_slides_are_headings_with_their_texts_tables_and_notes() -> None:
    row = read(slides(), "talk.pptx")
    assert (row.kind, row.title) == ("pptx", "The reset button")
    blocks = row.text.strip().split("\n\n")
    assert blocks[:3] == ["## The reset button", "- Press it\n- for ten seconds", "Notes: Show the device."]
    assert blocks[3:] == ["## Slide 2", "| LED | meaning |\n| --- | --- |\n| red | off |", "- inside a group"]


def test_a_book_is_its_chapters_in_the_order_of_reading() -> None:
    row = read(book(), "rails.epub")
    assert (row.kind, row.title, row.text) == ("epub", "Rails", "# Iron\n\nAbout Iron.\n\n# Wood\n\nAbout Wood.\n")
    assert read(book(encryption="OEBPS/fonts/a.otf"), "rails.epub").title == "Rails"


def test_a_mail_is_its_text_with_forwarded_mails() -> None:
    row = read(mail(inner=mail("<p>An <b>old</b> one.</p>", "html")).as_bytes(), "reset.eml")
    assert (row.kind, row.title) == ("mail", "Reset")
    head = "From: Ada <ada@example.org>\nTo: bob@example.org\nDate: Mon, 23 Nov 2026 10:00:00 +0000"
    assert row.text == f"{head}\n\nThe device is *off*.\n\n# Reset\n\n{head}\n\nAn old one.\n"


def test_a_notebook_is_text_and_fenced_code() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Load the rows\n", "First."]},
        {"cell_type": "code", "source": "import json\n", "outputs": [{"output_type": "stream", "text": "noise"}]},
        {"cell_type": "code", "source": ""},
    ]
    row = read(notebook(*cells), "load.ipynb")
    assert (row.kind, row.title) == ("notebook", "Load the rows")
    assert row.text == "# Load the rows\nFirst.\n\n```python\nimport json\n```\n"
    old = {"nbformat": 3, "worksheets": [{"cells": [{"cell_type": "code", "input": ["x = 1"]}]}]}
    assert read(json.dumps(old).encode(), "old.ipynb").text == "```python\nx = 1\n```\n"


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.xlsx", b"PK\x03\x04 not an archive", "unreadable"),
        ("a.xlsx", save_document(openpyxl.Workbook()), "no_text"),
        ("a.pptx", save_document(pptx.Presentation()), "no_text"),
        ("a.epub", book(encryption="OEBPS/two.xhtml"), "encrypted"),
        ("a.epub", book(container="<container/>"), "unreadable"),
        ("a.eml", b"only a text\n", "unreadable"),
        ("a.ipynb", b"{}", "unreadable"),
        ("a.ipynb", notebook({"cell_type": "code", "source": [1]}), "unreadable"),
        ("a.ipynb", b"[" * 100_000, "too_deep"),
        ("a.ipynb", notebook({"cell_type": "code", "source": " "}), "no_text"),
    ],
)
def test_what_is_not_a_document_says_why(name: str, data: bytes, reason: str) -> None:
    with pytest.raises(BadRow) as raised:
        read(data, name)
    assert raised.value.reason == reason
