"""All reading of others' files goes through `trainyard/data/limited`: a reader called around it has no limits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.test_budgets import REPOSITORY, format_path, sources

CHILDREN = ("jobs", "sets")
INSIDE = (
    "trainyard/data/readers/",
    "trainyard/data/remote/queries.py",
    *(f"trainyard/data/limited/{module}.py" for module in CHILDREN),
)
"""Code that runs in a reading process alone; `service.py`, which everybody may import, imports none of it."""
PARSES = (*("documents", "markup", "rowfiles", "jsonl", "tables", "repositories", "intake", "streams", "parts"),)
"""Modules of `trainyard/data/readers` that look at the bytes of a file."""
SIMULATED = "trainyard/testing/nights/"
"""Its documents are its own and in memory: `parse_in_process` parses them in the simulator's process."""
NIGHT = ("trainyard/night/", "trainyard/data/corpora.py")
"""Code of the night's process, which has the bytes of documents and of lines of a corpus."""
OWN_RECORDS = {"read_intent", "write_report", "point_there", "judge"}
"""Functions of the night that decode JSON which the night itself wrote."""
DECODES = {"loads", "decode_json", "safe_load", "parse_text", "parse_item"}
LIGHT = {"trainyard.data.readers.streams.Limits", "trainyard.data.readers.documents.TYPES"}
PARSERS = {
    *("pypdf", "docx", "bs4", "lxml", "openpyxl", "odf", "pyarrow.parquet", "pyarrow.csv", "pyarrow.json"),
    *("csv", "zipfile", "gzip", "bz2", "lzma", "zlib", "html.parser", "xml.etree.ElementTree", "xlrd", "markdown"),
}
"""Libraries that parse documents. A new reader uses one of them or a new one, which belongs in this list."""


def find_imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names of everything that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_reader(name: str) -> bool:
    """Whether a dotted name belongs to code that parses the files of others."""
    if name in LIGHT:
        return False
    if any(name == parser or name.startswith(f"{parser}.") for parser in PARSERS):
        return True
    return any(name.startswith(f"trainyard.data.readers.{module}") for module in PARSES) or (
        name.startswith("trainyard.data.limited.") and name.split(".")[3] in (*CHILDREN, "server", "children")
    )


def readers_called_around(name: str, text: str) -> list[str]:
    """The readers that a module imports although it does not run in a reading process."""
    if name.startswith((*INSIDE, SIMULATED)) or name.startswith("trainyard/data/limited/server"):
        return []
    tree = ast.parse(text)
    decoded = [f"{name}: {call}" for call in decoding(tree)] if name.startswith(NIGHT) else []
    return decoded + [f"{name}: {imported_name}" for imported_name in find_imports(tree) if is_reader(imported_name)]


def decoding(tree: ast.AST) -> Iterator[str]:
    """Calls that parse text, outside of the functions that read the night's own records."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name not in OWN_RECORDS:
            for call in ast.walk(function):
                if isinstance(call, ast.Call):
                    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
                    if called in DECODES:
                        yield f"{function.name} calls {called}"


def test_no_reader_is_called_around_the_limits() -> None:
    calls = [call for path in sources() for call in readers_called_around(format_path(path), path.read_text())]
    assert calls == []


@pytest.mark.parametrize(
    "text",
    [
        "from trainyard.data.readers.documents import read_document",
        "from trainyard.data.readers import documents",
        "import trainyard.data.readers.tables as t",
        "def f():\n    from pypdf import PdfReader",
        "from trainyard.data.limited.jobs import run_request",
        "from pyarrow import parquet",
        "import openpyxl",
    ],
)
def test_a_planted_call_around_the_limits_is_found(text: str) -> None:
    assert readers_called_around("nodes/data_source.py", text)


@pytest.mark.parametrize(
    "text",
    [
        "import orjson\ndef read(data):\n    return orjson.loads(data)",
        "from trainyard.spec.load.text import parse_text\ndef read(data):\n    return parse_text(data)",
        "from trainyard.data.limited.jobs import parse_item",
        "from trainyard.data.readers.parts import find_parts",
        "import yaml\nclass Reader:\n    def read(self, data):\n        return yaml.safe_load(data)",
    ],
)
@pytest.mark.parametrize("name", ["trainyard/night/streams.py", "trainyard/data/corpora.py"])
def test_parsing_in_the_process_of_the_night_is_found(name: str, text: str) -> None:
    assert readers_called_around(name, text)


def test_every_type_of_document_is_read_in_a_child() -> None:
    """Sets are read by `Batch`, and nothing else of the readers calls `read_document`."""
    callers = [
        format_path(path)
        for path in sources("trainyard", "nodes", "tasks", "flows")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "read_document"
    ]
    assert set(callers) == {"trainyard/data/limited/sets.py"}
    assert (Path(REPOSITORY) / "trainyard/data/limited/sets.py").read_text().count("Batch(sizes, read") == 2
