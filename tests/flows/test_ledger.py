"""A training leaves an entry in the ledger of its home, which anybody can check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flows.chain_runs import complete, fill_working_folder, twice
from trainyard.app.artifacts.lineage import build_lineage
from trainyard.app.artifacts.statements import build_statement
from trainyard.app.context import Context
from trainyard.settings import settings
from trainyard.spec.job import JobSpec, chain_of_job
from trainyard.stores.ledger.log import Ledger

pytestmark = [pytest.mark.usefixtures("prefect"), pytest.mark.integration]
CANARY = "sk-canary-0123456789abcdef"
NINE = (
    "date_time", "gpu_used", "gpu_provider", "gpu_price_per_hour", "model_trained", "model_parameters",
    "theme_of_training", "time_training_s", "sender_address",
)  # fmt: skip


def test_a_job_leaves_an_entry_with_its_nine_fields(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_PRICE_PER_HOUR", "2.5")
    monkeypatch.setenv("TRAINYARD_OPENLINEAGE", str(tmp_path / "events.jsonl"))
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    fill_working_folder(tmp_path, tiny_model, monkeypatch, {"data.jsonl": twice(30)})
    job = JobSpec.model_validate(
        {
            "dataset": {"path": "data.jsonl"},
            "theme": "arithmetic",
            "tags": ["demo"],
            "hyperparameters": {"max_steps": 2},
        }
    )
    result = complete(chain_of_job(job))
    ledger = Ledger.at_home(settings().home)
    head = ledger.head()
    entries = [head.entry(seq) for seq in range(head.size)]
    assert [entry["kind"] for entry in entries] == ["opened", "data_read", "trained"]
    entry = entries[-1]
    assert set(NINE) <= entry.keys()
    assert (entry["theme_of_training"], entry["tags"]) == ("arithmetic", ["demo"])
    assert float(entry["cost"]["amount"]) == pytest.approx(2.5 * entry["time_training_s"] / 3600, abs=0.006)
    assert entry["run"] == result.run_id
    assert entry["parents"] == [entries[1]["key"]]
    assert entry["data"][0]["sha256"] == entries[1]["outputs"]["sft"]["sha256"]
    assert entry["outputs"]["adapter"]["sha256"] == result.node("trainer").outputs["adapter"].sha256
    assert entry["sender_address"].startswith("ed25519:")
    assert entry["flops"] > 0
    statement = build_statement(entry)
    assert statement is not None
    assert statement["subject"] == [
        {"name": "adapter", "digest": {"trainyardTree": entry["outputs"]["adapter"]["sha256"]}}
    ]
    made_of = {
        part["name"]: part["digest"] for part in statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    }
    assert made_of["sft"] == {"trainyardTree": entry["data"][0]["sha256"]}
    graph = build_lineage(entry["job"], Context(settings()))
    assert {(node.kind.value, node.missing) for node in graph.nodes} == {
        (kind, False) for kind in ("document", "rows", "base", "adapter")
    }
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(event["job"]["name"], event["eventType"]) for event in events] == [
        (f"training-job.{node}", state) for node in ("data-source", "trainer") for state in ("START", "COMPLETE")
    ]
    assert events[-1]["inputs"][0]["name"] == events[1]["outputs"][0]["name"] == f"sft:{entry['data'][0]['sha256']}"
    written = b"".join(path.read_bytes() for path in ledger.folder.rglob("*") if path.is_file())
    assert not [text for text in (b"Twice", b"twice", CANARY.encode(), str(tmp_path).encode()) if text in written]
