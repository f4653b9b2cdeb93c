"""The notebook of the examples: its commands and names exist, its stored output is clean, and it runs."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from trainyard.operations.table import OPERATIONS
from trainyard.spec.graph import check
from trainyard.spec.load.files import load_value
from trainyard.surfaces.cli.main import OperationCommand

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
NOTEBOOKS = sorted((REPOSITORY / "examples" / "notebooks").glob("*.ipynb"))
MAGIC = re.compile(r"%%(\w+) ?(.*)\n")
CONTROL = "\x1b"
"""Begins what moves the cursor of a terminal; a notebook shows it as text."""
MACHINE = re.compile(r"/(?:home|root|tmp|work|Users|mnt|srv|opt)/|\w+-\w+\.local\b")
"""A path or the name of the machine on which a notebook was executed."""
COMPLAINT = re.compile(r"\b(?:Warning|Traceback|Error|[RE]-[A-Z]{3,})\b")
PRINTED = {("stream", "stdout"), ("display_data", ""), ("execute_result", "")}
MAX_SECONDS = 600
"""Of one cell, on a busy machine; on two cores with other work the whole notebook took 95 to 131 s."""


def read(path: Path) -> Any:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def code_cells(path: Path) -> list[Any]:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def sources(path: Path) -> Iterator[tuple[str, str, str]]:
    """(magic, its argument, text) of each code cell; a cell of Python has no magic."""
    for cell in code_cells(path):
        match = MAGIC.match(cell.source)
        yield (match[1], match[2], cell.source[match.end() :]) if match else ("", "", cell.source)


def list_texts(path: Path) -> Iterator[str]:
    """What the cells have printed."""
    for cell in code_cells(path):
        for output in cell.outputs:
            yield output.get("text", "") or str(output.get("data", {}).get("text/plain", ""))


def commands(script: str) -> Iterator[list[str]]:
    """The words of every `trainyard` command of a shell script, without redirections."""
    lexer = shlex.shlex(script.replace("\\\n", " "), posix=True, punctuation_chars=";&|<>()\n")
    lexer.whitespace, lexer.whitespace_split = " \t", True
    arguments: list[str] = []
    for word in [*lexer, "\n"]:
        if set(word) <= set(";&|<>()\n"):
            if arguments[:1] == ["trainyard"]:
                yield arguments[1:-1] if arguments[-1].isdigit() else arguments[1:]
            arguments = []
        else:
            arguments.append(word)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_commands_exist_with_their_options(path: Path) -> None:
    command_lines = [arguments for magic, _, text in sources(path) if magic == "sh" for arguments in commands(text)]
    for arguments in command_lines:
        name = next(candidate for candidate in (" ".join(arguments[:2]), arguments[0]) if candidate in OPERATIONS)
        OperationCommand(name).make_context(name, arguments[len(name.split()) :])
    assert {"up", "run", "chat", "down"} <= {arguments[0] for arguments in command_lines}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_chain_is_accepted_and_its_names_can_be_imported(path: Path) -> None:
    chains = [text for magic, name, text in sources(path) if magic == "writefile" and name.endswith(".yaml")]
    assert chains
    assert [reason.line for text in chains for reason in check(load_value(text))] == []
    for text in [text for magic, _, text in sources(path) if not magic]:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_output_is_stored_whole_and_names_no_machine(path: Path) -> None:
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    for cell in cells:
        assert [
            output for output in cell.outputs if output.output_type == "error" or output.get("name") == "stderr"
        ] == []
    printed = "\n".join(list_texts(path))
    assert MACHINE.findall(printed) == []
    assert COMPLAINT.findall(printed) == []
    assert CONTROL not in printed
    assert "deployer: done (default/assistant/v1 is live)" in printed


def test_what_a_stored_output_may_not_contain_is_found() -> None:
    assert MACHINE.findall("a file /tmp/x and ~/home of 127.0.0.1") == ["/tmp/"]
    assert COMPLAINT.findall("UserWarning: E-CORRUPT and Error: held-out") == ["E-CORRUPT", "Error"]
    assert [*commands("trainyard up > up.log 2>&1 && echo ready\ntrainyard run a.yaml \\\n --watch | cat")] == [
        ["up"], ["run", "a.yaml", "--watch"],
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_in_a_home_of_its_own(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PREFECT_", "TRAINYARD_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = read(path)
    client = NotebookClient(
        notebook,
        timeout=MAX_SECONDS,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    try:
        client.execute()
    finally:
        subprocess.run([sys.executable, "-m", "trainyard", "down"], check=True, capture_output=True, timeout=120)
    executed = tmp_path / path.name
    nbformat.write(notebook, executed)
    test_its_output_is_stored_whole_and_names_no_machine(executed)


LIVE = """
from trainyard import Chain, DataSource, Trainer

words = {"max_steps": 60, "precision": "fp32", "batch_size": 2}
run = Chain([DataSource(path="rows.jsonl"), Trainer(stage="sft", hyperparameters=words)], name="live").run(watch=True)
print(run.state.value)
"""


class CountingClient(NotebookClient):
    """Executes a notebook, and keeps what its outputs are replaced with."""

    replaced: list[str]

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] == "update_display_data":
            self.replaced.append(msg["content"]["data"].get("text/markdown", ""))
        return super().process_message(msg, cell, cell_index)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_is_watched_is_drawn_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PREFECT_", "TRAINYARD_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    row = {"messages": [{"role": "user", "content": "What is a node?"}, {"role": "assistant", "content": "A box."}]}
    (tmp_path / "rows.jsonl").write_text((json.dumps(row) + "\n") * 16)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(LIVE)])
    client = CountingClient(notebook, timeout=MAX_SECONDS, resources={"metadata": {"path": str(tmp_path)}})
    client.replaced = []
    command = [sys.executable, "-m", "trainyard"]
    subprocess.run([*command, "up"], check=True, capture_output=True, timeout=240, cwd=tmp_path)
    try:
        client.execute()
    finally:
        subprocess.run([*command, "down"], check=True, capture_output=True, timeout=120)
    pictures = [output for output in notebook.cells[0].outputs if output.output_type == "display_data"]
    assert [output.get("text") for output in notebook.cells[0].outputs if output.output_type == "stream"] == [
        "completed\n"
    ]
    assert len(pictures) == 1
    last = pictures[0]["data"]["text/markdown"]
    assert "completed" in last
    assert "data:image/svg+xml" in last
    curves = [text for text in client.replaced if "data:image/svg+xml" in text]
    assert len(set(curves)) >= 2, "the curve was drawn while the training ran"
    assert any("| trainer | running |" in text for text in curves)
