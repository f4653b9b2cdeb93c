from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from trainyard.app.plan import keys
from trainyard.backends.choices import decide_evaluation, keep_evaluation
from trainyard.errors import NotFound, Refused
from trainyard.settings import Settings
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.devices import Device
from trainyard.spec.chain import ResolvedNode
from trainyard.spec.nodes import DataSourceConfig, DeployerConfig, EvaluatorConfig, SourceSet, ValidatorConfig
from trainyard.spec.training import TrainerConfig
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.artifacts import Reference


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    (tmp_path / "work" / "docs").mkdir(parents=True)
    (tmp_path / "work" / "docs" / "a.md").write_text("# A")
    return Settings(home=tmp_path / "home", working_folder=tmp_path / "work")


def node(config: Any, kind: str) -> ResolvedNode:
    return ResolvedNode(id="n", type=kind, config=config)  # type: ignore[arg-type]


def make_data(sha256: str = "1" * 64) -> dict[Port, list[Reference]]:
    return {Port.SFT: [Reference(uri="file:///x", sha256=sha256, kind=Port.SFT)]}


def source_key(here: Settings, run_id: str = "run", **fields: Any) -> str:
    return keys.content_key(node(DataSourceConfig(**fields), "data_source"), {}, here, run_id)


def test_the_same_files_have_the_same_key_in_every_run(here: Settings) -> None:
    assert source_key(here, "one", path="docs") == source_key(here, "two", path="docs")


def test_what_an_evaluation_leaves_open_is_a_part_of_its_key(here: Settings) -> None:
    """The machine's threads and device: another number of threads gives other last bits."""

    def compute_key(settings: Settings) -> str:
        return keys.content_key(node(EvaluatorConfig(), "evaluator"), make_data(), settings, "run")

    two = here.model_copy(update={"threads": 2})
    assert compute_key(two) == compute_key(two)
    assert compute_key(two) != compute_key(here.model_copy(update={"threads": 1}))
    kept_evaluation = keep_evaluation(two)
    assert kept_evaluation == decide_evaluation(two)
    (path,) = two.choices.iterdir()
    value = json.loads(path.read_text())
    assert (value["chosen"]["threads"], value["facts"]["requested"]) == (2, {"node": "evaluator"})
    before = compute_key(two)
    value["chosen"]["device"] = "mps"
    path.write_text(json.dumps(value))  # what was decided counts
    assert (decide_evaluation(two).device, compute_key(two) != before) == (Device.MPS, True)


def test_a_changed_file_changes_the_key(here: Settings) -> None:
    before = source_key(here, path="docs")
    (here.working_folder / "docs" / "a.md").write_text("# B!")
    assert source_key(here, path="docs") != before


def test_a_touched_file_is_read_again(here: Settings) -> None:
    before = source_key(here, path="docs")
    os.utime(here.working_folder / "docs" / "a.md", ns=(1, 1))
    assert source_key(here, path="docs") != before


def test_a_new_file_changes_the_key(here: Settings) -> None:
    before = source_key(here, path="docs")
    (here.working_folder / "docs" / "b.md").write_text("# B")
    assert source_key(here, path="docs") != before


@pytest.mark.parametrize("fields", [{"url": "https://example.org/a.jsonl"}, {"repository": "docs"}])
def test_what_cannot_be_pinned_is_named_by_the_run(here: Settings, fields: dict[str, str]) -> None:
    assert source_key(here, "one", **fields) == source_key(here, "one", **fields)
    assert source_key(here, "one", **fields) != source_key(here, "two", **fields)


def test_each_of_several_sets_counts(here: Settings) -> None:
    (here.working_folder / "p.jsonl").write_text("{}")
    sets = {Port.DOCUMENTS: SourceSet(path="docs"), Port.PREFERENCE: SourceSet(path="p.jsonl")}
    before = source_key(here, sets=sets)
    (here.working_folder / "p.jsonl").write_text("{ }")
    assert source_key(here, sets=sets) != before


def test_a_path_outside_is_refused_before_any_work(here: Settings) -> None:
    with pytest.raises(Refused, match="R-PATH-ROOT"):
        source_key(here, path="../../etc")


def test_a_missing_path_is_told_before_any_work(here: Settings) -> None:
    with pytest.raises(NotFound, match="E-DATA-NOT-FOUND"):
        source_key(here, path="nothing")


def test_other_inputs_make_another_result(here: Settings) -> None:
    judge = node(EvaluatorConfig(), "evaluator")
    assert keys.content_key(judge, make_data("1" * 64), here, "r") != keys.content_key(
        judge, make_data("2" * 64), here, "r"
    )


def test_a_trainer_depends_on_its_base_model(here: Settings, tiny_model: Path) -> None:
    first_key = keys.content_key(node(TrainerConfig(base_model=str(tiny_model)), "trainer"), make_data(), here, "r")
    other = keys.content_key(node(TrainerConfig(base_model="org/model"), "trainer"), make_data(), here, "r")
    assert first_key != other


def test_a_trainer_without_reuse_is_made_by_each_run(here: Settings) -> None:
    again = node(TrainerConfig(base_model="org/model", reuse=False), "trainer")
    assert keys.content_key(again, make_data(), here, "one") != keys.content_key(again, make_data(), here, "two")
    shared = node(TrainerConfig(base_model="org/model"), "trainer")
    assert keys.content_key(shared, make_data(), here, "one") == keys.content_key(shared, make_data(), here, "two")


def test_a_missing_base_model_is_told_before_any_work(here: Settings) -> None:
    with pytest.raises(NotFound, match=r"E-MODEL-NOT-FOUND: There is no model 'nowhere'"):
        keys.content_key(node(TrainerConfig(base_model="nowhere"), "trainer"), make_data(), here, "r")


def test_a_validator_depends_on_its_tokenizer_and_its_evaluation_sets(here: Settings) -> None:
    config = ValidatorConfig(tokenizer="org/model", evaluation_sets=("docs/a.md",))
    dependencies = keys.dependencies(node(config, "validator"), here, "r")
    assert {dependency.name for dependency in dependencies if dependency.digest()} == {"tokenizer", "evaluation/0"}


def live_adapter(here: Settings, folder: Path, role: str) -> str:
    """Register an adapter, make it live, and return its digest."""
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(folder.name.encode())
    registry = AdapterRegistry(here.adapters)
    version = registry.register("default", role, folder)
    registry.promote(version.name)
    return version.sha256


@pytest.mark.parametrize("baseline", ["live", "both"])
def test_a_comparison_with_what_is_live_is_made_anew_when_that_changes(
    here: Settings, tmp_path: Path, baseline: str
) -> None:
    judge = node(EvaluatorConfig.model_validate({"baseline": baseline, "role": "desk"}), "evaluator")
    before = keys.content_key(judge, make_data(), here, "r")
    live_adapter(here, tmp_path / "other", "other-role")
    assert keys.content_key(judge, make_data(), here, "r") == before
    sha256 = live_adapter(here, tmp_path / "one", "desk")
    assert keys.content_key(judge, make_data(), here, "r") != before
    candidate = Reference(uri="file:///x", sha256=sha256, kind=Port.ADAPTER)
    is_live = keys.content_key(judge, {**make_data(), Port.ADAPTER: [candidate]}, here, "r")
    live_adapter(here, tmp_path / "two", "desk")
    assert keys.content_key(judge, {**make_data(), Port.ADAPTER: [candidate]}, here, "r") != is_live
    alone = node(EvaluatorConfig(), "evaluator")
    assert keys.live_digest(None, here) == ""
    assert keys.content_key(alone, make_data(), here, "one") == keys.content_key(alone, make_data(), here, "two")


def test_what_a_machine_decides_is_part_of_a_trainers_key(here: Settings, tiny_model: Path) -> None:
    def compute_key(threads: int = 1, **config: object) -> str:
        fields = {"base_model": str(tiny_model), "device": "cpu", **config}
        settings = here.model_copy(update={"threads": threads})
        return keys.content_key(node(TrainerConfig.model_validate(fields), "trainer"), make_data(), settings, "r")

    assert compute_key() == compute_key()
    assert compute_key() != compute_key(threads=2)
    assert compute_key() != compute_key(hyperparameters={"precision": "bf16"})


def test_deploying_is_an_act_and_never_found_in_the_store(here: Settings) -> None:
    act = node(DeployerConfig(), "deployer")
    assert keys.content_key(act, make_data(), here, "one") != keys.content_key(act, make_data(), here, "two")


def test_every_node_type_names_the_rooms_that_make_its_result() -> None:
    from_types = {kind: keys.versions(kind) for kind in keys.ROOMS}
    assert all(len(digests["code"]) == 64 for digests in from_types.values())
    packages = {"torch", "transformers", "peft", "trl", "bitsandbytes", "schedulefree", "pytorch_optimizer", "torchao"}
    packages |= {"flash_attn", "flash_attn_3", "liger_kernel"}
    assert set(from_types["trainer"]) == {"trainyard", "code", *packages}
