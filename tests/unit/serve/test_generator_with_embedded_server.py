"""The generator against the embedded server: a random model, held to the schema, gives rows that are well formed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainyard.data.generation import generate
from trainyard.data.rows import DocumentRow, SftRow, read_rows, write_rows
from trainyard.serve.client import completer
from trainyard.spec.axes import Port
from trainyard.spec.nodes import AiGeneratorConfig

pytestmark = pytest.mark.xdist_group("model-server")


@pytest.fixture
def address(tiny_model: Path, tmp_path: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "trainyard.serve.server", "--model", str(tiny_model), "--threads", "1"]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def test_every_row_is_kept_or_rejected_with_a_reason(address: str, tiny_model: Path, tmp_path: Path) -> None:
    document = DocumentRow("d0", "docs/chain.md", "markdown", "Chain", "A chain is a list of nodes.")
    write_rows(tmp_path / "documents" / "rows.arrow", Port.DOCUMENTS, [document])
    config = AiGeneratorConfig(
        model="tiny", engine="openai", count=4, wordings=2, max_tokens=400, temperature=1, retries=0, concurrency=2
    )
    produced = generate(
        config,
        tmp_path / "documents",
        tmp_path / "out",
        complete=completer(config, f"{address}/v1", str(tiny_model)),
        report=lambda fraction, text: None,
    )
    facts = produced.facts
    assert facts["asked"] == 4 == facts["kept"] + sum(facts["rejected"].values())
    assert facts["kept"] > 0
    assert facts["usage"]["completion_tokens"] > 0
    rows = list(read_rows(tmp_path / "out/sft/rows.arrow", Port.SFT))
    for row in rows:
        assert isinstance(row, SftRow)
        assert all(message.content.strip() for message in row.messages)
    accounting = json.loads((tmp_path / "out/sft/accounting.json").read_text())
    assert accounting["kept"] == len(rows)
