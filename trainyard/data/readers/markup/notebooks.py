"""Jupyter notebooks (nbformat 3 and 4): text as it is, code in fences, without outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trainyard.data.quarantine import BadRow
from trainyard.data.readers.tables import strict_json


def read_notebook(data: bytes, name: str) -> tuple[str, str]:
    """(title of the metadata or an empty string, the cells in order)."""
    book = strict_json(data.removeprefix(b"\xef\xbb\xbf"))
    if not isinstance(book, dict) or not (cells := list_cells(book)):
        raise BadRow("unreadable", "the file has no cells of a notebook")
    metadata = book.get("metadata")
    about: dict[str, object] = metadata if isinstance(metadata, dict) else {}
    kernel = about.get("language_info") or about.get("kernelspec") or {}
    language = str(kernel.get("name") or kernel.get("language") or "python") if isinstance(kernel, dict) else "python"
    text = "\n\n".join(cell_blocks(cells, "python" if language.startswith("python") else language))
    if not text:
        raise BadRow("no_text", "the cells of the notebook are empty")
    title = about.get("title")
    return title if isinstance(title, str) else find_heading(text), text + "\n"


def list_cells(book: Mapping[str, object]) -> list[object]:
    """Return the cells; nbformat 3 has them in worksheets."""
    sheets = book.get("worksheets")
    lists = [sheet.get("cells") for sheet in sheets if isinstance(sheet, dict)] if isinstance(sheets, list) else []
    cell_lists = [entry for entry in (book.get("cells"), *lists) if isinstance(entry, list)]
    return [cell for cells in cell_lists for cell in cells]


def cell_blocks(cells: Sequence[object], language: str) -> Iterator[str]:
    for cell in cells:
        if not isinstance(cell, dict):
            raise BadRow("unreadable", "a cell of the notebook is not an object")
        source = cell.get("source", cell.get("input", ""))
        lines = source if isinstance(source, list) else [source]
        texts = [line for line in lines if isinstance(line, str)]
        if len(texts) < len(lines):
            raise BadRow("unreadable", "a cell of the notebook has a source that is not text")
        text = "".join(texts).strip("\n")
        if not text.strip():
            continue
        kind = cell.get("cell_type")
        if kind == "code":
            fence = "````" if "```" in text else "```"
            yield f"{fence}{language}\n{text}\n{fence}"
        else:
            level = cell.get("level", 1) if kind == "heading" else 0
            yield f"{'#' * min(6, level)} {text}" if isinstance(level, int) and level else text


def find_heading(text: str) -> str:
    """Return the first heading of the text outside of code, without its `#`."""
    outside = True
    for line in text.split("\n"):
        outside ^= line.startswith("```")
        if outside and line.startswith("#") and line.lstrip("#").startswith(" "):
            return line.lstrip("#").strip()
    return ""
