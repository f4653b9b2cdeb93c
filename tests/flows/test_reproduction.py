"""A recorded training is carried out again, in another checkout and another home, to the same digests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.another_checkout import copy_package, reproduce_elsewhere
from tests.flows.chain_runs import complete_nodes, fill_working_folder, twice
from trainyard.app.artifacts.ledger import export
from trainyard.app.context import Context
from trainyard.operations.ledger import LedgerExportInput
from trainyard.settings import settings
from trainyard.stores.ledger.log import Ledger

pytestmark = [pytest.mark.usefixtures("prefect"), pytest.mark.integration]
HYPER = {"max_steps": 3, "batch_size": 4, "max_length": 64, "learning_rate": 1e-3}
PAIRS = [
    {"prompt": f"What is thrice {n}?", "chosen": f"Thrice {n} is {3 * n}.", "rejected": f"No idea, {n} or so."}
    for n in range(24)
]


@pytest.mark.slow
def test_an_sft_and_a_dpo_training_have_the_same_digests_elsewhere(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    fill_working_folder(work, tiny_model, monkeypatch, {"examples.jsonl": twice(24), "pairs.jsonl": PAIRS})
    sets = {"sft": {"path": "examples.jsonl"}, "preference": {"path": "pairs.jsonl"}}
    complete_nodes(
        {"type": "data_source", "config": {"sets": sets}},
        {"type": "validator"},
        {"type": "trainer", "config": {"method": {"type": "lora", "rank": 4}, "hyperparameters": HYPER}},
        {"type": "trainer", "config": {"stage": "dpo", "hyperparameters": HYPER}},
    )
    head = Ledger.at_home(settings().home).head()
    entries = [head.entry(seq) for seq in range(head.size)]
    sft, dpo = (entry["seq"] for entry in entries if entry["kind"] == "trained")
    bundle = tmp_path / "bundle"
    export(LedgerExportInput(target=bundle, entries=(str(dpo), str(sft)), data=True), Context(settings()))
    checkout = copy_package(tmp_path / "checkout")
    base = ("--bundle", str(bundle), "--base", str(tiny_model))
    there = reproduce_elsewhere(checkout, tmp_path / "home2", work, str(sft), *base)
    print(json.dumps(there, indent=1))
    assert there["verdict"] == "identical"
    again = reproduce_elsewhere(checkout, tmp_path / "home2", work, str(dpo), *base, "--from-base")
    print(json.dumps(again, indent=1))
    assert again["verdict"] == "identical"
