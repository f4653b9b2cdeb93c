"""Lists of a DOCX file: whether a paragraph is an item, of which level, with a bullet or a number.

Word keeps this apart from the text: a paragraph, or its style, names a numbering and a level; the numbering part of the
file says how the level is shown. A level without a sign is a further paragraph of the item above.
"""

from __future__ import annotations

import re

from docx.document import Document
from docx.oxml.ns import qn
from docx.styles.style import BaseStyle
from lxml.etree import _Element

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
