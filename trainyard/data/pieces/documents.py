"""The extractive generator's pieces: documents through its rules; which pairs become rows is decided when merged."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pyarrow.compute as pc

from trainyard.data.extractive.pairs import Pair, pairs
from trainyard.data.generation.generate import Findings, FindPairs
from trainyard.data.generation.rows import count_wordings
from trainyard.data.mixing import open_rows
from trainyard.data.pieces.contract import PIECES_FOLDER, FanOut, Piece, split_evenly
from trainyard.data.rows import ROWS_FILE, DocumentRow
from trainyard.spec.nodes import AiGeneratorConfig

KIND = "documents"
PAIRS_FILE = "pairs.msgpack"


class DocumentPairs(msgspec.Struct):
    """A document without its text, and its pairs."""

    document: DocumentRow
    pairs: list[Pair]


def find_pairs(piece: Piece, shared: Path, folder: Path) -> None:
    """Apply the rules to the documents of a piece."""
    config, found = AiGeneratorConfig.model_validate(piece["config"]), list[DocumentPairs]()
    first, last = piece["rows"]
    for row in open_rows(Path(piece["documents"])).slice(first, last - first).to_pylist():
        document = msgspec.convert(row, DocumentRow)
        document_pairs = pairs(document, config.template, wordings=count_wordings(config))
        found.append(DocumentPairs(msgspec.structs.replace(document, text=""), document_pairs))
    (folder / PAIRS_FILE).write_bytes(msgspec.msgpack.encode(found))


def find_in_pieces(fan_out: FanOut, folder: Path) -> FindPairs:
    """Return the counterpart of `find_in_documents` that has pieces done, below the folder of the result."""

    def find(config: AiGeneratorConfig, documents: Path) -> Findings:
        shared = folder / PIECES_FOLDER
        shared.mkdir()
        try:
            for left in fan_out(KIND, plan_pieces(config, documents, fan_out.pieces), shared):
                for part in msgspec.msgpack.decode((left / PAIRS_FILE).read_bytes(), type=list[DocumentPairs]):
                    yield part.document, part.pairs.copy
        finally:
            shutil.rmtree(shared)

    return find


def plan_pieces(config: AiGeneratorConfig, documents: Path, count: int) -> list[Piece]:
    """Return ranges of documents with about as much text each."""
    path = documents / ROWS_FILE
    sizes = [1 + size for size in pc.binary_length(open_rows(path).column("text")).to_pylist()]
    shared: Piece = {"documents": str(path), "config": config.model_dump(mode="json")}
    return [{**shared, "rows": [first, last]} for first, last in split_evenly(sizes, count)]
