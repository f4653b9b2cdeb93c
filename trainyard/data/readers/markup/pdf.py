"""PDF files: the text of each page. pypdf reads them; what it repairs is not reported."""

from __future__ import annotations

import io
import logging

import pypdf
from pypdf.errors import PyPdfError

from trainyard.data.quarantine import BadRow
from trainyard.data.readers.markup.word import DAMAGE

MAX_PAGES = 5000
logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it reports each repaired oddity; what counts is the text


def read_pdf(data: bytes, name: str) -> tuple[str, str]:
    """The text of each page; a scanned document without text is a bad row."""
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise BadRow("encrypted", "the PDF needs a password")
        if len(reader.pages) > MAX_PAGES:
            raise BadRow("too_large", f"the PDF has {len(reader.pages)} pages, at most {MAX_PAGES} are read")
        pages = [page.extract_text() for page in reader.pages]
        title = str(reader.metadata.title or "") if reader.metadata else ""
    except (PyPdfError, *DAMAGE) as error:
        raise BadRow("unreadable", f"the PDF is damaged ({type(error).__name__}: {error})"[:300]) from error
    text = "\n\n".join(page.strip() for page in pages if page.strip())
    if not text:
        raise BadRow("no_text", "the PDF contains no text; scanned pages need text recognition first")
    first = text.splitlines()[0].strip()
    return title.strip() or (first if len(first) <= 100 else ""), text + "\n"
