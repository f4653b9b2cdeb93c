"""DOCX files: paragraphs, tables, content controls and text boxes in the order of the text.

python-docx opens the file and knows the styles; it passes over content controls (`w:sdt`), text boxes and inserted
text, so the elements are walked here. A file in the Strict form of the standard (ISO/IEC 29500) has other names for the
same elements, and is read after its names are replaced.

Lists of a DOCX file: whether a paragraph is an item, of which level, with a bullet or a number.

Word keeps this apart from the text: a paragraph, or its style, names a numbering and a level; the numbering part of the
file says how the level is shown. A level without a sign is a further paragraph of the item above.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby

import docx
from docx.document import Document
from docx.oxml.ns import qn
from docx.oxml.xmlchemy import BaseOxmlElement
from docx.styles.style import BaseStyle
from docx.text.paragraph import Paragraph
from lxml.etree import _Element

from trainyard.data.quarantine import BadRow
from trainyard.data.readers.markup.archives import DAMAGE, damaged_file_error, open_archive

STYLE = re.compile(r"List (?:(?P<kind>Bullet|Number|Continue|Paragraph) ?)?(?P<level>\d)?")
INDENT = "    "
MOST_LEVELS = 9


class Lists:
    """The numberings of a document, and how far each has counted."""

    def __init__(self, document: Document) -> None:
        self.formats: dict[tuple[str, int], str] = {}
        self.numbers: dict[tuple[str, int], int] = {}
        relations = document.part.rels.values()
        parts = [relation.target_part for relation in relations if relation.reltype.endswith("/numbering")]
        if parts:
            self.read_numberings(parts[0].element)

    def read_numberings(self, root: _Element) -> None:
        """Note the form of each level of each numbering: "bullet", "decimal", …, or empty where it has no sign."""
        abstract = {element.get(qn("w:abstractNumId")): element for element in root.findall(qn("w:abstractNum"))}
        for number in root.findall(qn("w:num")):
            shape = abstract.get(read_value(number, "abstractNumId"))
            for level in shape.findall(qn("w:lvl")) if shape is not None else ():
                form, sign = read_value(level, "numFmt"), read_value(level, "lvlText")
                visible_form = form if sign.strip() and form != "none" else ""
                self.formats[number.get(qn("w:numId"), ""), int(level.get(qn("w:ilvl"), 0))] = visible_form

    def mark(self, position: tuple[int, str], text: str) -> str:
        """Return an item's text with its mark and indent."""
        level, form = position
        indent = INDENT * min(level, MOST_LEVELS)
        if form == "":
            return indent_text(text, indent + INDENT)
        return indent + indent_text(f"{form} {text}", indent + INDENT).strip()

    def find_place(self, element: _Element, style: BaseStyle | None) -> tuple[int, str] | None:
        """(level from 0, mark) of an item; the mark is empty for a further paragraph of one."""
        numbering = element.find(f"{qn('w:pPr')}/{qn('w:numPr')}")
        while numbering is None and style is not None:
            numbering = style.element.find(f"{qn('w:pPr')}/{qn('w:numPr')}")
            named = STYLE.fullmatch(style.name or "") if numbering is None else None
            if named and named["kind"] != "Paragraph":
                level = int(named["level"] or 1) - 1
                return level, {"Number": "1.", "Continue": ""}.get(named["kind"] or "", "-")
            style = getattr(style, "base_style", None)
        number = read_value(numbering, "numId") if numbering is not None else "0"
        if number in ("", "0"):
            return None
        level = int(read_value(numbering, "ilvl") or 0)
        form = self.formats.get((number, level), "bullet")
        if form in ("", "bullet"):
            return level, "-" if form else ""
        for deeper in [key for key in self.numbers if key[0] == number and key[1] > level]:
            del self.numbers[deeper]
        self.numbers[number, level] = self.numbers.get((number, level), 0) + 1
        return level, f"{self.numbers[number, level]}."


def read_value(element: _Element | None, name: str) -> str:
    """Return the `w:val` of a child element, or an empty string."""
    child = element.find(qn(f"w:{name}")) if element is not None else None
    return (child.get(qn("w:val")) or "") if child is not None else ""


def indent_text(text: str, indent: str) -> str:
    return "\n".join(f"{indent}{line}" for line in text.split("\n"))


MAX_COLUMNS = 63
"""Columns of a table in Word; a cell that covers more is damage."""
MAX_TABLE_CHARS = 16 << 20
"""Text of a table, with that of a merged cell in each place that it covers."""
STRICT = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/")
TRANSITIONAL = rb"http://schemas.openxmlformats.org/\1/2006/"
FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
"""A second copy of a text box, for programs that do not know the first one."""
BOX, PARAGRAPH, TABLE, CONTROL = (qn(name) for name in ("w:txbxContent", "w:p", "w:tbl", "w:sdt"))
ROW, CELL = qn("w:tr"), qn("w:tc")
PASSED = {*(qn(f"w:{name}") for name in ("del", "moveFrom", "pPr", "rPr", "sdtPr", "sdtEndPr", "rt")), FALLBACK}
"""Deleted text, formats, and the pronunciation above a word."""
CODE_STYLE = re.compile(r"code|verbatim|preformatted|macro text", re.I)
QUOTE_STYLE = re.compile(r"(?:intense )?quote|block text", re.I)
FIXED_FONTS = {"courier", "courier new", "consolas", "menlo", "monaco", "lucida console", "dejavu sans mono"}
CODE_LINE = "\x01"
"""Begins a paragraph of code until paragraphs of code are joined; XML cannot contain it."""
SIGNS = {qn("w:tab"): "\t", qn("w:cr"): "\n", qn("w:noBreakHyphen"): "-"}


def read_docx(data: bytes, name: str) -> tuple[str, str]:
    """(title of the properties or an empty string, text). Heading styles become `#` lines, list styles `-` lines."""
    try:
        document = docx.Document(io.BytesIO(transitional(data)))
        blocks = list(fence_code(read_blocks(document.element.body, document, Lists(document))))
        title = document.core_properties.title
    except DAMAGE as error:
        raise damaged_file_error("DOCX", error) from error
    headings = (block.lstrip("#").strip() for block in blocks if block.startswith("#") and block.strip("# "))
    return title or next(headings, ""), "\n\n".join(block for block in blocks if block.strip()) + "\n"


def transitional(data: bytes) -> bytes:
    """Return the file itself, or one with the names of the Transitional form in place of the Strict ones."""
    with open_archive(data, "DOCX") as archive:
        if not STRICT.search(archive.read("_rels/.rels")):
            return data
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as rewritten:
            for entry in archive.infolist():
                part = archive.read(entry)
                text = entry.filename.endswith((".xml", ".rels"))
                rewritten.writestr(entry.filename, STRICT.sub(TRANSITIONAL, part) if text else part)
    return stream.getvalue()


def fence_code(blocks: Iterable[str]) -> Iterator[str]:
    """Join paragraphs of code that follow each other to a block of code."""
    for is_code, group in groupby(blocks, key=lambda block: block.startswith(CODE_LINE)):
        if is_code:
            yield "\n".join(["```", *(block[1:] for block in group), "```"])
        else:
            yield from group


def read_blocks(element: _Element, document: Document, lists: Lists) -> Iterator[str]:
    """Yield the paragraphs and tables below an element; a text box follows the paragraph that it is anchored in."""
    for child in element:
        if child.tag == PARAGRAPH:
            yield paragraph_text(child, document, lists)
            for box in outermost(child, BOX, PASSED):
                yield from read_blocks(box, document, lists)
        elif child.tag == TABLE:
            yield table_text(child, document, lists)
        elif child.tag not in PASSED and not is_placeholder(child):
            yield from read_blocks(child, document, lists)


def is_placeholder(element: _Element) -> bool:
    """Whether a content control shows only its hint ("Click here to enter text")."""
    return element.tag == CONTROL and element.find(f"{qn('w:sdtPr')}/{qn('w:showingPlcHdr')}") is not None


def outermost(element: _Element, tag: str, passed: Collection[str]) -> Iterator[_Element]:
    """Yield the outermost elements of a tag below an element, each once, also those inside of content controls."""
    for child in element:
        if child.tag == tag:
            yield child
        elif child.tag not in passed:
            yield from outermost(child, tag, passed)


def inline_text(element: _Element) -> str:
    """Return the characters of a paragraph, without those of its text boxes."""
    parts = []
    for child in element:
        if child.tag == qn("w:t"):
            parts.append(child.text or "")
        elif child.tag in SIGNS:
            parts.append(SIGNS[child.tag])
        elif child.tag == qn("w:br"):
            parts.append("\n" if child.get(qn("w:type")) in (None, "textWrapping") else "")
        elif child.tag not in PASSED and child.tag != BOX and not is_placeholder(child):
            parts.append(inline_text(child))
    return "".join(parts)


def paragraph_text(element: BaseOxmlElement, document: Document, lists: Lists) -> str:
    paragraph_style = Paragraph(element, document).style
    style = (paragraph_style.name if paragraph_style is not None else "") or ""
    if CODE_STYLE.search(style):
        return f"{CODE_LINE}{inline_text(element)}"
    if style == "Title" or style.startswith("Heading"):
        level = int(style.split()[-1]) if style.split()[-1].isdigit() else 1
        text = inline_text(element)
        return f"{'#' * min(level, 6)} {text}" if text else ""
    text = "".join(mark_spans(element))
    if QUOTE_STYLE.fullmatch(style):
        return "\n".join(f"> {line}" for line in text.split("\n"))
    position = lists.find_place(element, paragraph_style)
    return lists.mark(position, "".join(mark_spans(element, label=True))) if position and text else text


def mark_spans(element: _Element, *, label: bool = False) -> Iterator[str]:
    """The texts of a paragraph with the marks of code, and with `label` those of the bold words that it begins with."""
    groups = [
        (kind, "".join(text for text, _ in group))
        for kind, group in groupby(read_runs(element), key=lambda run: run[1])
    ]  # fmt: skip
    for index, (kind, text) in enumerate(groups):
        words = text.strip()
        if kind == "code" and words and "`" not in words and "\n" not in words:
            yield text.replace(words, f"`{words}`")
        elif kind == "bold" and label and index == 0 and len(groups) > 1 and words and "*" not in words:
            yield text.replace(words, f"**{words}**")
        else:
            yield text


def read_runs(element: _Element) -> Iterator[tuple[str, str]]:
    """(text, "code", "bold" or empty) of the runs of a paragraph."""
    for child in element:
        if child.tag == qn("w:r"):
            if text := inline_text(child):
                yield text, find_kind(child)
        elif child.tag in (qn("w:t"), *SIGNS):
            yield SIGNS.get(child.tag, child.text or ""), ""
        elif child.tag not in PASSED and child.tag != BOX and not is_placeholder(child):
            yield from read_runs(child)


def find_kind(run: _Element) -> str:
    properties = run.find(qn("w:rPr"))
    if properties is None:
        return ""
    style, fonts, bold = (properties.find(qn(f"w:{name}")) for name in ("rStyle", "rFonts", "b"))
    named = style is not None and CODE_STYLE.search(style.get(qn("w:val"), ""))
    if named or (fonts is not None and fonts.get(qn("w:ascii"), "").lower() in FIXED_FONTS):
        return "code"
    return "bold" if bold is not None and bold.get(qn("w:val"), "1") not in ("0", "false") else ""


def table_text(table: _Element, document: Document, lists: Lists) -> str:
    """Return a Markdown table. A merged cell is repeated in each column and row that it covers."""
    rows: list[list[str]] = []
    chars = 0
    passed = {PARAGRAPH, TABLE, *PASSED}
    for row in outermost(table, ROW, passed):
        cells: list[str] = []
        for cell in outermost(row, CELL, passed):
            blocks = (block.removeprefix(CODE_LINE) for block in read_blocks(cell, document, lists))
            text = " ".join(" ".join(blocks).replace("|", "\\|").split())
            merged = cell.find(f"{qn('w:tcPr')}/{qn('w:vMerge')}")
            if merged is not None and merged.get(qn("w:val")) != "restart" and rows:
                text = rows[-1][len(cells)] if len(cells) < len(rows[-1]) else text
            span = cell.find(f"{qn('w:tcPr')}/{qn('w:gridSpan')}")
            covered = int(span.get(qn("w:val"), 1)) if span is not None else 1
            chars += max(0, covered) * (len(text) + 3)
            if covered > MAX_COLUMNS or chars > MAX_TABLE_CHARS:
                raise BadRow("too_large", f"a table has a cell over {covered:,} columns, {chars:,} characters so far")
            cells += [text] * covered
        rows.append(cells)
    width = max(map(len, rows), default=0)
    if width * len(rows) * 3 > MAX_TABLE_CHARS:
        raise BadRow("too_large", f"a table has {width:,} columns in {len(rows):,} rows")
    lines = ["| " + " | ".join([*row, *[""] * (width - len(row))]) + " |" for row in rows]
    return "\n".join([*lines[:1], "|" + " --- |" * width, *lines[1:]]) if width else ""
