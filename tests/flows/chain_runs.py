"""Chains that run in this process, on the Prefect server of the tests, and what they left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from flows.chain import chain
from trainyard.app.run_records import RunResult, read_result
from trainyard.settings import settings
from trainyard.spec.chain import ChainSpec

Rows = Sequence[Mapping[str, Any]]


def twice(count: int) -> Rows:
    """Questions whose form is soon learned."""
    return [{"instruction": f"What is twice {n}?", "output": f"Twice {n} is {2 * n}."} for n in range(count)]


def fill_working_folder(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, Rows] | None = None
) -> Path:
    """Make a folder with these files of rows the working folder, and a model the default base, for one thread."""
    for name, rows in (files or {}).items():
        (folder / name).write_text("\n".join(json.dumps(row) for row in rows))
    monkeypatch.setenv("TRAINYARD_WORKING_FOLDER", str(folder))
    monkeypatch.setenv("TRAINYARD_DEFAULT_BASE_MODEL", str(model))
    monkeypatch.setenv("TRAINYARD_THREADS", "1")
    settings.cache_clear()
    return folder


def read_run_result(state: State[Any]) -> RunResult:
    result = read_result(settings().runs / str(state.state_details.flow_run_id))
    assert result is not None
    return result


def complete(spec: ChainSpec) -> RunResult:
    """Run a chain, which has to end well."""

    async def run() -> State[Any]:
        return await chain(spec, return_state=True)

    state = asyncio.run(run())
    assert state.is_completed(), state.message
    return read_run_result(state)


def complete_nodes(*nodes: dict[str, Any]) -> RunResult:
    return complete(ChainSpec.model_validate({"name": "test", "nodes": nodes}))


def read_record(result: RunResult, node: str = "trainer") -> dict[str, Any]:
    """What a trainer wrote next to its weights."""
    (output,) = result.node(node).outputs.values()
    record: dict[str, Any] = json.loads((output.path / "training.json").read_text(encoding="utf-8"))
    return record
