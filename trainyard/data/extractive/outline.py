"""Text to an outline: sections with their headings, paragraphs, list items, tables and code blocks.

CommonMark (with tables) is parsed by markdown-it; reStructuredText by docutils with file access, raw nodes and messages
switched off. Anything else is plain text: paragraphs between blank lines; a short line without full stop is a heading.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from docutils import nodes
from docutils.core import publish_doctree
from docutils.utils import SystemMessage
from markdown_it import MarkdownIt
from markdown_it.token import Token

from trainyard.data.extractive.cleaning import FOOTNOTE_BODY, join_line_ends, tidy_heading, tidy_text

MARKDOWN = MarkdownIt("commonmark").enable("table")
WITHOUT_TAGS = MarkdownIt("commonmark", {"html": False}).enable("table")
"""For texts that were read from a page: what looks like a tag in them is a word of the page."""
MARKED = ("markdown", "html", "docx", "epub", "pdf")
"""Kinds of documents whose readers write Markdown's marks."""
BREAK = re.compile(r"</?(?:br|p|div|ul|ol|li|tr|td|th)\b[^<>]*>", re.I)
"""A tag of HTML between two texts that are apart on the page."""
FRONT_MATTER = re.compile(r"\A---\r?\n.*?\r?\n---\r?\n", re.S)
BUILDER_LINK = re.compile(r"\[([^\[\]\n]{1,300})\]\s?\((?:\s*|(?:\{[{%][^{}\n]{0,300}[%}]\}){1,3}[^()\s]{0,200})\)")
"""A link whose target a site builder fills in, as in `[refunds]({% link refunds.md %})`."""
ROLE = re.compile(r":[a-zA-Z][\w:+-]{0,40}:`[~!]?([^`<]{1,300}?)(?:\s{0,9}<[^>`]{0,300}>)?`")
DOCUTILS = {
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "report_level": 5,
    "halt_level": 5,
    "warning_stream": False,
    "_disable_config": True,
    "smart_quotes": False,
    "line_length_limit": 100_000,
}


@dataclass
class Item:
    """One list item. `label` is its emphasised or code beginning, if it has one."""

    label: str
    text: str


@dataclass
class TextBlock:
    """A paragraph or a list item in the order of the page."""

    text: str
    list_id: int = 0
    """0 for a paragraph; the items of one list share a number."""
    number: int = 0
    """Place in a numbered list, from 1; 0 in any other."""
    label: str = ""
    lead: str = ""
    """The paragraph that announces the list, or the item above a nested one."""
    depth: int = 0


@dataclass
class Section:
    """The text between two headings. `heading` is empty above the first one."""

    heading: str
    level: int
    parent: str = ""
    paragraphs: list[str] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    """Table rows; the header row comes first, and a table follows another one after an empty row."""
    blocks: list[TextBlock] = field(default_factory=list)
    """Paragraphs and items in order."""
    code: list[tuple[str, str]] = field(default_factory=list)
    """(paragraph before the block, code)."""


def outline(kind: str, text: str) -> list[Section]:
    """Return the sections of a document of this kind (`DocumentRow.kind`)."""
    if kind == "rst":
        return rst_outline(text)
    if kind in MARKED or re.search(r"^#{1,6} \S", text, re.M):
        text = join_line_ends(text) if kind == "pdf" else text
        return markdown_outline(text, MARKDOWN if kind == "markdown" else WITHOUT_TAGS)
    return plain_outline(text)


class Builder:
    """Collects sections and knows the heading above each."""

    def __init__(self) -> None:
        self.sections = [Section("", 0)]
        self.lists: list[TextBlock] = []
        self.num_lists = 0

    @property
    def current(self) -> Section:
        return self.sections[-1]

    def heading(self, text: str, level: int) -> None:
        above = [section for section in self.sections if section.heading and section.level < level]
        self.sections.append(Section(tidy_heading(text), level, above[-1].heading if above else ""))

    def paragraph(self, text: str) -> None:
        self.current.paragraphs.append(text)
        self.current.blocks.append(TextBlock(text))

    def open_list(self, start: int = 0) -> None:
        """Begin a list, numbered from `start` on if that is not 0; the item or the paragraph before announces it."""
        last = self.current.blocks[-1] if self.current.blocks else TextBlock("")
        nested = bool(self.lists)
        announces = last.text.rstrip().endswith((":", "：")) or nested
        self.num_lists += 1
        lead = (last.label or last.text) if announces else ""
        self.lists.append(TextBlock("", self.num_lists, start, "", lead, len(self.lists) + 1))

    def close_list(self) -> None:
        self.lists.pop()

    def item(self, label: str, text: str, *, first: bool = True) -> None:
        """Add an item; a further paragraph of one (`first=False`) keeps the label of its item."""
        self.current.items.append(Item(label, text))
        if not self.lists:
            self.current.blocks.append(TextBlock(text, label=label))
            return
        around = self.lists[-1]
        if not first:
            before = [block for block in self.current.blocks if block.list_id == around.list_id]
            self.current.blocks.append(TextBlock(text, 0, 0, "", before[-1].label if before else "", around.depth))
            return
        number = around.number
        around.number += bool(number)
        self.current.blocks.append(TextBlock(text, around.list_id, number, label, around.lead, around.depth))

    def skip_item(self) -> None:
        """Count an item of which nothing is read: a picture, or a link."""
        if self.lists:
            self.lists[-1].number += bool(self.lists[-1].number)

    def code(self, code: str) -> None:
        before = self.current.paragraphs[-1] if self.current.paragraphs else ""
        self.current.code.append((before, code.rstrip()))


def inline_text(token: Token) -> str:
    """The words of an inline token: emphasis and link targets dropped, code kept in backticks, images left out."""
    parts = []
    for child in token.children or ():
        if child.type == "text":
            parts.append(child.content)
        elif child.type == "code_inline":
            parts.append(f"`{child.content}`")
        elif child.type in ("softbreak", "hardbreak") or BREAK.match(child.content):
            parts.append("; " if child.content.startswith("</li") else " ")
    return tidy_text("".join(parts).rstrip(" ;") if parts[-1:] == ["; "] else "".join(parts))


def inline_label(token: Token) -> str:
    """Return the emphasised or code text that an item begins with, else an empty string."""
    children = [child for child in token.children or () if child.type != "text" or child.content]
    if children and children[0].type == "code_inline":
        return f"`{children[0].content}`"
    if not children or children[0].type != "strong_open":
        return ""
    words = []
    for child in children[1:]:
        if child.type == "strong_close":
            break
        words.append(f"`{child.content}`" if child.type == "code_inline" else child.content)
    return tidy_text("".join(words)).rstrip(":").strip()


def markdown_outline(text: str, parser: MarkdownIt = MARKDOWN) -> list[Section]:
    builder = Builder()
    depth = quiet = 0
    has_text: list[bool] = []
    first = True
    cells: list[str] = []
    tokens = parser.parse(BUILDER_LINK.sub(r"[\1](#)", FRONT_MATTER.sub("", text)))
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type in ("list_item_open", "list_item_close"):
            depth += token.nesting
            first = True
            if token.nesting > 0:
                has_text.append(False)
            elif not has_text.pop():
                builder.skip_item()
        elif token.type in ("bullet_list_open", "ordered_list_open"):
            builder.open_list(int(token.attrGet("start") or 1) if token.type == "ordered_list_open" else 0)
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            builder.close_list()
        elif token.type in ("blockquote_open", "blockquote_close"):
            quiet += token.nesting
        elif token.type in {"fence", "code_block"}:
            builder.code(token.content)
        elif token.type == "table_open":
            builder.current.rows.append([])
        elif token.type == "tr_open":
            cells = []
        elif token.type == "tr_close":
            builder.current.rows.append(cells)
        elif token.type == "inline" and before is not None and not quiet:
            words = "" if FOOTNOTE_BODY.match(token.content) else inline_text(token)
            types = [child.type for child in token.children or ()]
            is_only_a_link = types[:1] == ["link_open"] and types[-1:] == ["link_close"]  # of a table of contents
            if before.type == "heading_open":
                builder.heading(words, int(before.tag[1]))
            elif before.type in ("th_open", "td_open"):
                cells.append(words)
            elif depth and words and not is_only_a_link:
                builder.item(inline_label(token), words, first=first)
                first, has_text[-1] = False, True
            elif words and not depth:
                builder.paragraph(words)
    return builder.sections


def rst_outline(text: str) -> list[Section]:
    """reStructuredText; Sphinx roles become code, directives that docutils does not know are left out."""
    try:
        tree = publish_doctree(ROLE.sub(r"``\1``", text), settings_overrides=DOCUTILS)
    except (SystemMessage, RecursionError, ValueError, AttributeError):
        return plain_outline(text)
    builder = Builder()
    if isinstance(tree, nodes.document) and tree.get("title"):
        builder.heading(tree["title"], 1)
    walk_rst(tree, builder, 1 if tree.get("title") else 0)
    return builder.sections


def walk_rst(node: nodes.Element, builder: Builder, level: int) -> None:
    for child in node.children:
        if isinstance(child, nodes.section):
            builder.heading(rst_text(child.next_node(nodes.title)), level + 1)
            walk_rst(child, builder, level + 1)
        elif isinstance(child, nodes.paragraph):
            builder.paragraph(rst_text(child))
        elif isinstance(child, nodes.Admonition):
            walk_rst(child, builder, level)
        elif isinstance(child, nodes.bullet_list | nodes.enumerated_list):
            builder.open_list(int(child.get("start", 1)) if isinstance(child, nodes.enumerated_list) else 0)
            for item in child.children:
                parts = list(item.children)
                builder.item(rst_label(item), rst_text(parts[0]) if parts else "")
                for part in parts[1:]:
                    if isinstance(part, nodes.paragraph):
                        builder.item("", rst_text(part), first=False)
            builder.close_list()
        elif isinstance(child, nodes.definition_list):
            for entry in child.children:
                term, meaning = rst_text(entry.next_node(nodes.term)), rst_text(entry.next_node(nodes.paragraph))
                if term and meaning:
                    builder.item(term, f"{term}: {meaning}")
        elif isinstance(child, nodes.literal_block):
            builder.code(child.astext())
        elif isinstance(child, nodes.table):
            builder.current.rows.append([])
            for row in child.findall(nodes.row):
                builder.current.rows.append([rst_text(entry) for entry in row.children])


def rst_text(node: nodes.Node | None) -> str:
    if node is None:
        return ""
    parts = [
        f"`{text.astext()}`" if isinstance(text.parent, nodes.literal) else text.astext()
        for text in node.findall(nodes.Text)
        if not isinstance(text.parent, nodes.footnote_reference | nodes.citation_reference)
    ]
    return tidy_text("".join(parts))


def rst_label(item: nodes.Node) -> str:
    paragraph = item.next_node(nodes.paragraph)
    first = paragraph.children[0] if paragraph is not None and paragraph.children else None
    return rst_text(first).rstrip(":") if isinstance(first, nodes.strong | nodes.literal) else ""


def plain_outline(text: str) -> list[Section]:
    builder = Builder()
    for block in re.split(r"\n\s*\n", join_line_ends(text.replace("\r\n", "\n"))):
        lines = [line.strip() for line in block.strip().split("\n")]
        if len(lines) == 2 and re.fullmatch(r"[=\-~^]{3,}", lines[1]):
            lines = lines[:1]
        words = tidy_text(" ".join(lines))
        if not words or FOOTNOTE_BODY.match(block.strip()):
            continue
        if len(lines) == 1 and len(words.split()) <= 10 and words[-1] not in ".!:;," and words[0].isalnum():
            builder.heading(words, 1 if len(builder.sections) == 1 else 2)
        elif re.match(r"[-*•] ", lines[0]):
            builder.open_list()
            for item in re.split(r"(?:^|\n)\s*[-*•] ", block):
                if item.strip():
                    builder.item("", tidy_text(item))
            builder.close_list()
        else:
            builder.paragraph(words)
    return builder.sections
