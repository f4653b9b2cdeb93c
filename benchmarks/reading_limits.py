"""What do the limits of reading cost: 10,000 Markdown files of 4 KB, and 100 MB of JSON Lines?

Ours against the same readers in this process, without a child. Both leave the same rows in Arrow. A data source starts
the reading service once: the pages are read with a service of their own, the rows with one that is open, and the start
has a row of its own.

The baseline has no limit at all. A page costs 0.2 ms in this process and as much again to cross a pipe from its child
and to be checked there, so the bars say what the limits may cost, not that they are free: 2.5 times for pages, 1.25
times for rows.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Row, alternate, finish, median, size
from benchmarks.jsonl_to_arrow import WORDS, write_chats
from trainyard.data.limited.children import DocumentReply
from trainyard.data.limited.jobs import run_request
from trainyard.data.limited.requests import SetRequest
from trainyard.data.limited.service import ReadingService, keep_service
from trainyard.data.limited.sets import document_bytes, document_chunk, walk
from trainyard.data.paths import open_inside
from trainyard.data.readers.documents import read_document
from trainyard.data.readers.row_writer import RowWriter
from trainyard.data.readers.selection import FileSelection
from trainyard.data.readers.streams import Limits
from trainyard.spec.axes.data import Port

NUM_FILES, FILE_BYTES, NUM_ROWS = size(10_000, 100), 4096, size(120_000, 1_000)


def write_pages(folder: Path) -> None:
    chance = random.Random(0)
    for number in range(NUM_FILES):
        text = f"# Document {number}\n\n"
        while len(text) < FILE_BYTES:
            text += f"## Section {len(text)}\n\n{' '.join(chance.choices(WORDS, k=80))}.\n\n- one\n- two\n\n"
        page_folder = folder / f"{number // 500:02d}"
        page_folder.mkdir(exist_ok=True)
        (page_folder / f"{number:05d}.md").write_text(text[:FILE_BYTES])


def request_for(path: Path, target: str) -> SetRequest:
    return SetRequest(path, (path.parent,), Path(target), deduplicate=path.is_file())


def limited(path: Path, service: ReadingService) -> float:
    with tempfile.TemporaryDirectory(dir=path.parent) as target:
        return float(service.read_set(request_for(path, target), lambda fraction, text: None).balance.read)


def start() -> float:
    """Start a service and wait until it has answered."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.md"
        path.write_text("# Page\n")
        return cold(path)


def cold(path: Path) -> float:
    """With a service of its own, as a data source has it."""
    with ReadingService() as service:
        return limited(path, service)


def pages_here(folder: Path) -> float:
    """Each file read in this process."""
    roots, limits = (folder.parent,), Limits()
    with tempfile.TemporaryDirectory(dir=folder.parent) as target, RowWriter(Path(target), Port.DOCUMENTS) as intake:
        for path in walk(folder, FileSelection()):
            name = path.relative_to(folder).as_posix()
            with open_inside(path, roots) as stream:
                row = read_document(document_bytes(stream, name, limits), name)
            intake.take(document_chunk(name, DocumentReply(row)))
        return float(intake.num_rows)


def rows_here(path: Path) -> float:
    with tempfile.TemporaryDirectory(dir=path.parent) as target:
        result = run_request(request_for(path, target), lambda fraction, text: None)
    return float(result.balance.read)  # type: ignore[union-attr]


def main() -> int:
    with tempfile.TemporaryDirectory() as name, keep_service() as service:
        pages, rows = Path(name) / "pages", Path(name) / "chats.jsonl"
        pages.mkdir()
        write_pages(pages)
        write_chats(rows, NUM_ROWS)
        samples = alternate(
            {
                "pages limited": lambda: cold(pages),
                "pages here": lambda: pages_here(pages),
                "rows limited": lambda: limited(rows, service),
                "rows here": lambda: rows_here(rows),
                "start": start,
            }
        )
    cpu = {name: median(variant_samples, "cpu_s") for name, variant_samples in samples.items()}
    table = [
        Row.ratio_at_most("CPU s, 10,000 pages", cpu["pages limited"], cpu["pages here"], "no limits", 2.5),
        Row.ratio_at_most("CPU s, 100 MB of rows", cpu["rows limited"], cpu["rows here"], "no limits", 1.25),
        Row.at_most("CPU s, start of the service", cpu["start"], 1.0),
    ]
    return finish("reading_limits", table, samples)


if __name__ == "__main__":
    sys.exit(main())
