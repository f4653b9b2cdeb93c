"""What the reading tests share: one call that reads a set and shows everything it left."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.data.readers.streams import Limits
from trainyard.data.rows import ROWS_FILE, Row, read_rows
from trainyard.data.sources import read_source
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import DataSourceConfig
from trainyard.stores.artifacts import Facts


@dataclass
class Result:
    port: Port
    rows: list[Any]
    quarantine: list[dict[str, Any]]
    report: dict[str, Any]
    facts: Facts

    @property
    def reasons(self) -> list[str]:
        return [entry["reason"] for entry in self.quarantine]


def settings_for(*roots: Path, **other: Any) -> Settings:
    return load_settings(data_roots=roots, **other)


def read_all(output: Path, settings: Settings, *, limits: Limits | None = None, **config: Any) -> dict[Port, Result]:
    """Read a data source into `output`; checks the balance of every set."""
    produced = read_source(
        DataSourceConfig(**config), output, settings=settings, report=lambda fraction, text: None, limits=limits
    )
    results = {}
    for port, part in produced.outputs.items():
        folder = output / part.folder
        rows: list[Row] = list(read_rows(folder / ROWS_FILE, port))
        quarantine = [json.loads(line) for line in (folder / "quarantine.jsonl").read_text().splitlines()]
        report = json.loads((folder / "report.json").read_text())
        assert report["read"] == report["kept"] + sum(report["dropped"].values())
        assert report["kept"] == len(rows) == part.rows
        assert report["quarantined"] == len(quarantine)
        results[port] = Result(port, rows, quarantine, report, part.facts)
    return results


def read_text(
    folder: Path, content: bytes | str, name: str = "rows.jsonl", *, limits: Limits | None = None, **config: Any
) -> Result:
    """Write one file and read it; half of its rows may be bad unless the config says otherwise."""
    folder_of_rows = folder / "given"
    folder_of_rows.mkdir(exist_ok=True)
    path = folder_of_rows / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    number = len(list(folder.glob("output*")))
    config.setdefault("max_bad_fraction", 0.5)
    results = read_all(
        folder / f"output{number}", settings_for(folder_of_rows), limits=limits, path=str(path), **config
    )
    (result,) = results.values()
    return result


def json_lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)
