"""Chains whose trainer is a cloud provider, at doubles of the providers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.chain_runs import complete_nodes, fill_working_folder, read_record, twice
from trainyard.settings import settings
from trainyard.stores.adapters import AdapterRegistry
from trainyard.testing.loopback import serving
from trainyard.testing.providers.double import COST_USD, KEY
from trainyard.testing.providers.faults import CreateFault, Faults
from trainyard.testing.providers.together import TogetherDouble
from trainyard.testing.providers.weights import make_adapter_files

pytest.importorskip("together")
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture
def together(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TogetherDouble]:
    faults = Faults(creates=[CreateFault.STORED_THEN_LOST], list_lag=1, unknown_word="rebalancing")
    with serving(TogetherDouble(faults, make_adapter_files(tiny_model))) as server:
        assert isinstance(server, TogetherDouble)
        monkeypatch.setenv("TOGETHER_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("TOGETHER_API_KEY", KEY)
        monkeypatch.setenv("TRAINYARD_PROVIDER_POLL_S", "0.05")
        monkeypatch.setenv("TRAINYARD_PROVIDER_SETTLE_S", "0.1")
        settings.cache_clear()
        yield server


@pytest.mark.usefixtures("prefect")
def test_a_chain_at_a_provider_ends_in_an_adapter_version(
    together: TogetherDouble, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_working_folder(tmp_path, tiny_model, monkeypatch, {"rows.jsonl": twice(40)})
    trainer: dict[str, Any] = {
        "backend": "together", "base_model": str(tiny_model), "hyperparameters": {"epochs": 3, "learning_rate": 1e-5},
        "service": {"base_model": "meta-llama/Llama-3-8b", "suffix": "handbook"},
    }  # fmt: skip
    result = complete_nodes(
        {"type": "data_source", "config": {"path": "rows.jsonl"}},
        {"type": "trainer", "config": trainer},
        {"type": "deployer", "config": {"role": "cloud", "unevaluated": True}},
    )
    (job,) = together.jobs.values()
    assert job.body["suffix"].startswith("handbook-ty-")
    assert job.body["n_epochs"] == 3
    record = read_record(result)
    assert record["provider"]["cost_usd"] == COST_USD
    assert AdapterRegistry(settings().adapters).show("default/cloud").name == "default/cloud/v1"
    (work,) = (path.parent for path in (settings().runs / "training").glob("*/provider.json"))
    events = [json.loads(line) for line in (work / "events.jsonl").read_text().splitlines()]
    assert [event["amount_usd"] for event in events if event["event"] == "cost"] == [COST_USD]
    assert "does not know" in "".join(event.get("text", "") for event in events if event["event"] == "remote_state")
    assert KEY not in "".join(path.read_text() for path in work.iterdir() if path.is_file())
