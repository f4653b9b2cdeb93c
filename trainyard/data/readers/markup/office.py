"""XLSX and PPTX files: sheets as Markdown tables, slides as headings, lists and tables, with their notes.

openpyxl and python-pptx read values and texts; macros, links, formulas and embedded objects are not looked at. A cell
with a formula gives the value that was stored with it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from typing import Any

import openpyxl
import pptx

from trainyard.data.quarantine import BadRow
from trainyard.data.readers.markup.archives import DAMAGE, damaged_file_error, open_archive, refuse_declarations

MAX_CELLS = 1_000_000
"""Of a workbook, empty ones between others included; more is a table for a file of rows."""
MAX_TABLE_CHARS = 16 << 20


def read_xlsx(data: bytes, name: str) -> tuple[str, str]:
    """(title of the properties or an empty string, each visible sheet as a heading and a table)."""
    try:
        refuse_declarations(open_archive(data, "XLSX"), "XLSX")
        book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True, keep_links=False)
        left, parts = MAX_CELLS, []
        for sheet in book.worksheets:
            if sheet.sheet_state != "visible":
                continue
            sheet.reset_dimensions()  # what the file says of its size may be anything
            rows, left = sheet_rows(sheet, left)
            if rows:
                parts.append(f"## {to_one_line(sheet.title)}\n\n{table_text(rows)}")
        title = book.properties.title or ""
    except DAMAGE as error:
        raise damaged_file_error("XLSX", error) from error
    if not parts:
        raise BadRow("no_text", "the workbook has no visible cell with a value")
    return title, "\n\n".join(parts) + "\n"


def sheet_rows(sheet: Any, left: int) -> tuple[list[list[str]], int]:
    """Return the rows of a sheet without the empty ones, and how many cells may still come."""
    rows: list[list[str]] = []
    for row in sheet.iter_rows(values_only=True):
        left -= max(1, len(row))
        if left < 0:
            raise BadRow("too_large", f"the workbook has more than {MAX_CELLS:,} cells")
        cells = ["" if value is None else to_one_line(str(value)) for value in row]
        if any(cells):
            rows.append(cells)
    used = sorted({number for row in rows for number, cell in enumerate(row) if cell})
    return [[row[number] if number < len(row) else "" for number in used] for row in rows], left


def to_one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def table_text(rows: list[list[str]]) -> str:
    """Return a Markdown table whose first row is the head."""
    width = max(map(len, rows))
    if width * len(rows) * 3 + sum(len(cell) for row in rows for cell in row) > MAX_TABLE_CHARS:
        raise BadRow("too_large", f"a table has {width:,} columns in {len(rows):,} rows")
    lines = [f"| {' | '.join([*row, *[''] * (width - len(row))])} |" for row in rows]
    return "\n".join([lines[0], f"|{' --- |' * width}", *lines[1:]])


def read_pptx(data: bytes, name: str) -> tuple[str, str]:
    """(title of the properties or of the first slide, each slide with its texts, tables and notes)."""
    try:
        refuse_declarations(open_archive(data, "PPTX"), "PPTX")
        show = pptx.Presentation(io.BytesIO(data))
        slides = [list(slide_blocks(slide, number)) for number, slide in enumerate(show.slides, 1)]
        title = show.core_properties.title or ""
    except DAMAGE as error:
        raise damaged_file_error("PPTX", error) from error
    if not any(len(blocks) > 1 or not blocks[0].startswith("## Slide ") for blocks in slides):
        raise BadRow("no_text", "no slide has a text")
    headings = (blocks[0].removeprefix("## ") for blocks in slides)
    return title or next(headings), "\n\n".join(block for blocks in slides for block in blocks) + "\n"


def slide_blocks(slide: Any, number: int) -> Iterator[str]:
    """Yield the title of a slide as a heading, then its shapes in their order, then the notes."""
    title = slide.shapes.title
    heading = to_one_line(title.text_frame.text) if title is not None else ""
    yield f"## {heading or f'Slide {number}'}"
    for shape in slide.shapes:
        if title is None or shape.shape_id != title.shape_id:
            yield from shape_blocks(shape)
    if slide.has_notes_slide and (frame := slide.notes_slide.notes_text_frame) is not None and frame.text.strip():
        yield f"Notes: {frame.text.strip()}"


def shape_blocks(shape: Any) -> Iterator[str]:
    if hasattr(shape, "shapes"):  # a group
        for inner in shape.shapes:
            yield from shape_blocks(inner)
    elif getattr(shape, "has_table", False):
        cells = sum(1 for _ in islice(shape.table.iter_cells(), MAX_CELLS + 1))
        if cells > MAX_CELLS:
            raise BadRow("too_large", f"a table of the PPTX has more than {MAX_CELLS:,} cells")
        yield table_text([[to_one_line(cell.text) for cell in row.cells] for row in shape.table.rows])
    elif shape.has_text_frame:
        lines = [
            f"{'  ' * paragraph.level}- {to_one_line(paragraph.text)}"
            for paragraph in shape.text_frame.paragraphs
            if paragraph.text.strip()
        ]
        if lines:
            yield "\n".join(lines)
