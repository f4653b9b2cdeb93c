"""EPUB books: the chapters of the spine, each through the reader of HTML pages."""

from __future__ import annotations

import posixpath
import zipfile
from urllib.parse import unquote

from lxml import etree

from trainyard.data.quarantine import BadRow
from trainyard.data.readers.markup.archives import DAMAGE, damaged_file_error, open_archive, parse_xml
from trainyard.data.readers.markup.html import read_html

CONTAINER, ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
PAGES = ("application/xhtml+xml", "text/html")


def read_epub(data: bytes, name: str) -> tuple[str, str]:
    """(title of the metadata, the chapters in the order of reading)."""
    try:
        archive = open_archive(data, "EPUB")
        package = find_elements(parse_xml(archive.read(CONTAINER), "EPUB"), "rootfile")[0].get("full-path", "")
        root = parse_xml(archive.read(package), "EPUB")
        pages = read_spine(root, posixpath.dirname(package))
        refuse_encrypted(archive, pages)
        texts = [page_text(archive, page) for page in pages]
        titles = [element.text or "" for element in find_elements(root, "title")]
    except DAMAGE as error:
        raise damaged_file_error("EPUB", error) from error
    chapters = [text.strip() for text in texts if text.strip()]
    if not chapters:
        raise BadRow("no_text", "the spine of the EPUB names no page with text")
    return next(filter(None, titles), ""), "\n\n".join(chapters) + "\n"


def find_elements(root: etree._Element, name: str) -> list[etree._Element]:
    """Return the elements of a name in any namespace."""
    return list(root.iter(f"{{*}}{name}"))


def read_spine(root: etree._Element, folder: str) -> list[str]:
    """Names of the pages in the archive, in the order of reading."""
    items = {item.get("id"): item for item in find_elements(root, "item") if item.get("media-type") in PAGES}
    order = [items.get(reference.get("idref")) for reference in find_elements(root, "itemref")]
    names = [
        posixpath.normpath(posixpath.join(folder, unquote(item.get("href", "")))) for item in order if item is not None
    ]
    return list(dict.fromkeys(names))


def refuse_encrypted(archive: zipfile.ZipFile, pages: list[str]) -> None:
    """Fonts may be obfuscated; a page that is encrypted cannot be read."""
    if ENCRYPTION not in archive.namelist():
        return
    closed = {
        unquote(element.get("URI", ""))
        for element in find_elements(parse_xml(archive.read(ENCRYPTION), "EPUB"), "CipherReference")
    }
    if closed & set(pages):
        raise BadRow("encrypted", "pages of the EPUB are encrypted (DRM)")


def page_text(archive: zipfile.ZipFile, page: str) -> str:
    """Return the text of one page; one without text, such as a cover, gives none."""
    try:
        return read_html(archive.read(page), page)[1]
    except BadRow as bad:
        if bad.reason in ("no_text", "empty"):
            return ""
        raise
