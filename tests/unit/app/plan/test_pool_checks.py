"""`check` on a machine whose work pool is one of containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainyard.app.plan.pools import check_pool
from trainyard.app.plan.resolve import resolve_chain
from trainyard.settings import Settings
from trainyard.spec.chain import ChainSpec

IMAGE = "registry.example.com/trainyard:1"


def reasons(path: Path, **values: Any) -> list[tuple[str, str]]:
    source = {"type": "data_source", "config": {"path": str(path)}}
    spec = ChainSpec.model_validate({"name": "guide", "nodes": [source, {"type": "trainer", "config": {}}]})
    settings = Settings(**values)
    return [(reason.code, reason.because) for reason in check_pool(resolve_chain(spec, settings), settings)]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n')
    return path


def test_processes_need_nothing(rows: Path) -> None:
    assert reasons(rows) == []


def test_what_is_not_set_is_named(rows: Path) -> None:
    found = reasons(rows, work_pool_type="vertex-ai", data_roots=(rows.parent,))
    assert [code for code, _ in found] == ["E-SETTINGS", "E-SETTINGS", "E-SETTINGS", "R-PATH-ROOT"]
    assert "the setting image is empty" in found[0][1]
    assert "has no region" in found[1][1]
    assert "no folder of this machine" in found[3][1], "a job of Vertex AI has no volume of this home"


def test_data_beside_the_home_is_not_in_a_pod(rows: Path) -> None:
    ((code, because),) = reasons(rows, work_pool_type="kubernetes", image=IMAGE)
    assert code == "R-PATH-ROOT"
    assert str(rows) in because
    assert reasons(rows, work_pool_type="kubernetes", image=IMAGE, data_roots=(rows.parent,)) == []


def test_a_run_in_a_pod_is_not_checked_again(rows: Path) -> None:
    assert reasons(rows, work_pool_type="kubernetes", device_limits=False) == []


def test_a_setting_without_an_effect_is_refused(rows: Path) -> None:
    ((code, because),) = reasons(rows, image=IMAGE)
    assert code == "E-SETTINGS"
    assert "The setting image has no effect" in because
