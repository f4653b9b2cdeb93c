"""The training of a night is carried out again in another home, or it says which digest is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.another_checkout import copy_package, reproduce_elsewhere
from trainyard.app.artifacts.ledger import export
from trainyard.app.artifacts.reproduction import Reproduction, reproduce
from trainyard.app.context import Context
from trainyard.data.corpora import Corpora
from trainyard.errors import Corrupt, InvalidInput, NotFound
from trainyard.night.deps import TrainingRequest
from trainyard.night.training import LocalTrainer
from trainyard.operations.ledger import LedgerExportInput, ReproduceInput, reproduction_text
from trainyard.settings import load_settings
from trainyard.spec.night import read_night
from trainyard.stores.ledger.log import Ledger
from trainyard.stores.markers.records import Marker

HYPER = {"max_steps": 2, "batch_size": 4, "max_length": 64, "precision": "fp32", "learning_rate": 1e-3}
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A home whose ledger has one training, of a night."""
    home = tmp_path_factory.mktemp("recorded") / "home"
    corpora = Corpora(home / "tenants" / "acme" / "corpora")
    corpora.add("engineering", "sft", [{"diff": f"+{n}", "message": f"Change {n}"} for n in range(12)])
    tuples = corpora.read("engineering", "sft").tuples
    marker = Marker(
        run="20270101", tenant="acme", role="engineering", bucket="engineering", method="sft", rows=12,
        corpus_sha256="0" * 64, corpus="corpus", base_model=str(tiny_model), created=0.0,
    )  # fmt: skip
    work = home / "tenants" / "acme" / "training" / "key"
    order = TrainingRequest(marker, tuples, work, budget_s=3600.0, renew_if_due=lambda: None)
    training = {"method": "lora", "device": "cpu", "base_model": str(tiny_model), "hyperparameters": HYPER}
    config = read_night({"tenant": "acme", "phase2": {"training": training}})
    facts = LocalTrainer(config, load_settings(home=home, threads=1)).train(order).facts
    assert "ledger" not in facts, "it says why nothing was recorded"
    return home


def run(home: Path, **fields: object) -> Reproduction:
    context = Context(load_settings(home=home, threads=2), say=lambda _: None)
    return reproduce(ReproduceInput.model_validate({"entry": "1", **fields}), context)


def find_rows(home: Path) -> Path:
    (rows,) = (home / "tenants").rglob("rows.arrow")
    return rows


def test_a_night_has_the_same_weights_in_another_home(home: Path, tiny_model: Path, tmp_path: Path) -> None:
    there = tmp_path / "model"
    shutil.copytree(tiny_model, there)
    request = LedgerExportInput(target=tmp_path / "bundle", entries=("1",), data=True)
    assert export(request, Context(load_settings(home=home))).recipes == 1
    result = run(tmp_path / "home2", bundle=tmp_path / "bundle", base=str(there), keep=tmp_path / "kept")
    assert (result.verdict, result.exit_code) == ("identical", 0), reproduction_text(result)
    assert {item.role: item.matches for item in result.inputs} == {"base": True, "data/sft": True}
    assert result.differences == ("threads: 1 recorded and used, this machine has 2",)
    assert "a night's rows are made from a corpus that grows" in result.unchecked[0]
    assert (tmp_path / "kept" / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "home2" / "adapters").exists()
    assert Ledger.at_home(home).head().size == 2


@pytest.mark.slow
def test_a_night_has_the_same_weights_in_another_checkout_and_home(
    home: Path, tiny_model: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    export(LedgerExportInput(target=bundle, entries=("1",), data=True), Context(load_settings(home=home)))
    checkout, work = copy_package(tmp_path / "checkout"), tmp_path / "work"
    options = ("--bundle", str(bundle), "--base", str(tiny_model))
    answer = reproduce_elsewhere(checkout, tmp_path / "home2", work, "1", *options)
    assert answer["verdict"] == "identical", answer
    assert {item["role"]: item["sha256"] == item["recorded"] for item in answer["inputs"]} == {
        "base": True, "data/sft": True,
    }  # fmt: skip


@pytest.mark.parametrize("damage", ["delete", "change"])
def test_rows_that_are_gone_are_named_by_their_digest(home: Path, damage: str, tmp_path: Path) -> None:
    copy = tmp_path / "home"
    shutil.copytree(home, copy)
    rows = find_rows(copy)
    rows.unlink() if damage == "delete" else rows.write_bytes(rows.read_bytes()[:-9])
    with pytest.raises(NotFound, match=r"data/sft with the digest [0-9a-f]{64} is not here"):
        run(copy)
    with pytest.raises(NotFound, match="Entry 1 needs it"):
        export(
            LedgerExportInput(target=tmp_path / "bundle", entries=("1",), data=True), Context(load_settings(home=copy))
        )
    assert not (tmp_path / "bundle").exists()


def test_a_recipe_that_was_changed_is_refused(home: Path, tmp_path: Path) -> None:
    copy = tmp_path / "home"
    shutil.copytree(home, copy)
    (recipe,) = (copy / "recipes").iterdir()
    recipe.write_bytes(recipe.read_bytes().replace(b'"seed":42', b'"seed":43'))
    with pytest.raises(Corrupt, match="other bytes than the ledger says"):
        run(copy)
    recipe.unlink()
    with pytest.raises(NotFound, match="ledger export FOLDER --entry N --data"):
        run(copy)


def test_another_base_is_refused_with_both_digests(home: Path, tiny_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "model"
    shutil.copytree(tiny_model, other)
    weights = other / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(Corrupt, match=r"have the digest [0-9a-f]{64}.*The training had [0-9a-f]{64}"):
        run(home, base=str(other))
    with pytest.raises(NotFound, match=r"with the digest [0-9a-f]{64} is not here"):
        run(home, base="nothing/here/at-all")


@pytest.mark.parametrize(
    ("entry", "kind", "message"),
    [("0", InvalidInput, "of the kind opened"), ("7", NotFound, "no entry '7'"), ("zzzzzzz", NotFound, "no entry")],
)
def test_a_word_that_names_no_training_is_refused(entry: str, kind: type[Exception], message: str, home: Path) -> None:
    with pytest.raises(kind, match=message):
        run(home, entry=entry)
