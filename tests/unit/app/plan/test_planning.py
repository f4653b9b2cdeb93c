from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from trainyard.app.plan.keys import dependencies, list_needed_models
from trainyard.app.plan.machine import probe_backends
from trainyard.app.plan.parse import deep_merge, parse_request
from trainyard.app.plan.plan import ChainPlan, plan_chain
from trainyard.app.plan.refusals import check_teachers, list_refusals, refuse_or_wait
from trainyard.app.plan.resolve import resolve_chain
from trainyard.errors import InvalidInput, NotFound, Refused
from trainyard.settings import Settings, settings
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import ChainSpec, ResolvedChain
from trainyard.stores.artifacts import ArtifactStore, Produced, ProducedSet
from trainyard.surfaces.cli.command import render

ROW = '{"prompt": "What is a kettle?", "completion": "A vessel that boils water."}\n'


@pytest.fixture
def here(tmp_path: Path, tiny_model: Path) -> Settings:
    (tmp_path / "work" / "docs").mkdir(parents=True)
    text = "# Kettle\n\nThe kettle is a vessel that boils two litres of water.\n"
    (tmp_path / "work" / "docs" / "a.md").write_text(text)
    return Settings(home=tmp_path / "home", working_folder=tmp_path / "work", default_base_model=str(tiny_model))


def make_plan(here: Settings, **parameters: Any) -> ChainPlan:
    return plan_chain(parse_request("qa-pipeline", {"documents": "docs", **parameters}).spec, here)


def test_a_template_s_name_is_its_chain_and_its_deployment() -> None:
    request = parse_request("rag-tuning", {"documents": "docs", "count": 7})
    assert request.deployment == "rag-tuning/local"
    assert request.parameters == {"documents": "docs", "count": 7}
    assert request.spec.name == "rag-tuning"


def test_a_job_s_parameters_are_the_body_of_a_job() -> None:
    request = parse_request("training-job", {"dataset": {"path": "a.jsonl"}, "stage": "dpo"})
    assert request.deployment == "training-job/local"
    assert [node.type for node in request.spec.nodes] == ["data_source", "trainer"]


def test_a_chain_file_runs_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("name: mine\nnodes: [{type: data_source, config: {path: docs}}]")
    request = parse_request(str(path))
    assert request.deployment == "chain/adhoc"
    assert request.parameters["spec"]["name"] == "mine"


def test_a_file_that_calls_a_template_runs_as_that_template(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("template: qa-pipeline\nparameters: {documents: d, count: 5, training: {epochs: 2, rank: 4}}")
    request = parse_request(str(path), {"training": {"epochs": 9}})
    assert request.deployment == "qa-pipeline/local"
    assert request.parameters == {"documents": "d", "count": 5, "training": {"epochs": 9, "rank": 4}}


def test_a_preset_lies_below_the_parameters() -> None:
    request = parse_request("qa-pipeline", {"count": 11}, preset="quick")
    assert request.parameters["count"] == 11
    assert request.parameters["training"]["epochs"] == 2


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(NotFound, match=r"E-PARAMETER: qa-pipeline has no preset 'nope'\. Why: It has: control, quick"):
        parse_request("qa-pipeline", preset="nope")


def test_neither_template_nor_file() -> None:
    with pytest.raises(NotFound, match=r"E-PARAMETER: There is neither a template nor a file 'qa'\. Why: Templates"):
        parse_request("qa")


def test_a_whole_chain_takes_no_parameters(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("nodes: [{type: data_source, config: {path: docs}}]")
    with pytest.raises(InvalidInput, match=r"E-PARAMETER: .* is a whole chain and takes no parameters"):
        parse_request(str(path), {"count": 1})


def test_a_misspelt_parameter_is_refused_with_a_hint() -> None:
    with pytest.raises(Refused, match=r"E-SPEC-KEY parameters\.countt: .*Did you mean 'count'"):
        parse_request("qa-pipeline", {"countt": 1})


def test_a_plan_lists_the_nodes_in_order_with_their_complete_config(here: Settings) -> None:
    plan = make_plan(here)
    assert plan.order == ("data-source", "ai-generator", "validator", "trainer", "evaluator", "deployer")
    trainer = next(node for node in plan.nodes if node.id == "trainer")
    assert trainer.config["base_model"] == here.default_base_model
    assert trainer.takes == {"sft": ("validator.sft",)}
    assert trainer.estimate.memory_bytes is not None
    assert trainer.estimate.basis
    assert plan.exit_code == 0


def test_a_plan_shows_what_is_finished_already(here: Settings) -> None:
    key = next(node for node in make_plan(here).nodes if node.id == "data-source").key
    assert key is not None

    def make(folder: Path) -> Produced:
        (folder / "documents").mkdir()
        return Produced(outputs={Port.DOCUMENTS: ProducedSet(folder="documents", rows=17)})

    ArtifactStore(here.artifacts).produce(key, make)
    nodes = {node.id: node for node in make_plan(here).nodes}
    assert nodes["data-source"].reused
    assert nodes["data-source"].estimate.rows == 17
    assert nodes["ai-generator"].key is not None
    assert not nodes["ai-generator"].reused
    assert nodes["validator"].key is None


def test_a_plan_says_what_is_missing(here: Settings) -> None:
    plan = make_plan(here, documents="nothing", base_model="./no-model")
    problems = {node.id: node.problem for node in plan.nodes if node.problem}
    assert "E-DATA-NOT-FOUND" in problems["data-source"]
    assert "E-MODEL-NOT-FOUND" in problems["trainer"]
    assert plan.exit_code == 5


def test_a_plan_lists_what_this_machine_refuses(here: Settings) -> None:
    plan = make_plan(here, documents="../outside", model="llama3.2")
    assert {refusal["row"] for refusal in plan.refusals} == {"path-root", "engine-unresolved"}
    assert render("plan", plan).count("R-PATH-ROOT") == 1
    assert plan.exit_code == 5


def test_a_chain_whose_backend_is_not_here_is_refused_and_a_job_waits(here: Settings) -> None:
    (here.working_folder / "docs" / "a.jsonl").write_text(ROW)
    request = parse_request("training-job", {"dataset": {"path": "docs/a.jsonl"}, "backend": "unsloth"})
    chain = resolve_chain(request.spec, here)
    with pytest.raises(Refused, match="R-BACKEND-MISSING"):
        refuse_or_wait(chain, here, is_job=False)
    why = refuse_or_wait(chain, here, is_job=True)
    assert why.startswith("no trainer installed: unsloth is not installed")
    assert why.endswith("Run `trainyard backends install unsloth`.")


def test_a_job_with_another_problem_is_refused_with_all_reasons(here: Settings) -> None:
    request = parse_request("training-job", {"dataset": {"path": "../a.jsonl"}, "backend": "unsloth"})
    with pytest.raises(Refused) as refused:
        refuse_or_wait(resolve_chain(request.spec, here), here, is_job=True)
    assert {reason.code for reason in refused.value.reasons} == {"R-BACKEND-MISSING", "R-PATH-ROOT"}


def test_a_path_that_no_data_worker_has_is_refused_before_anything_is_planned(here: Settings) -> None:
    dataset = {"path": "a.jsonl", "data_worker": "http://worker:9000", "format": "openai"}
    request = parse_request("training-job", {"dataset": dataset})
    with pytest.raises(Refused, match=r"R-DATA-WORKER .*'a.jsonl' is not a place"):
        resolve_chain(request.spec, here)


@pytest.mark.parametrize(
    ("changed", "row"),
    [
        ({"model_type": "bert", "is_decoder": False}, "base-layout"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "base-layout"),
        ({"vocab_size": 100}, "base-vocabulary"),
        ({}, None),
    ],
)
def test_a_base_that_no_stage_can_train_is_refused_by_the_plan(
    changed: dict[str, Any], row: str | None, here: Settings, tiny_model: Path
) -> None:
    base = here.working_folder / "base"
    shutil.copytree(tiny_model, base)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, **changed}))
    plan = make_plan(here, base_model=str(base))
    assert [refusal["row"] for refusal in plan.refusals] == ([row] if row else [])


def distillation(here: Settings, teacher: str, **trainer: Any) -> ResolvedChain:
    (here.working_folder / "a.jsonl").write_text(ROW)
    stage = {"type": "distill", "teacher": teacher}
    job = {"dataset": {"path": "a.jsonl"}, "device": "cpu", "stage": stage, **trainer}
    return resolve_chain(parse_request("training-job", job).spec, here)


def test_a_teacher_is_looked_for_digested_and_estimated(here: Settings, tiny_model: Path) -> None:
    shutil.copytree(tiny_model, here.working_folder / "larger")
    chain = distillation(here, "larger")
    assert list_refusals(chain, here) == []
    trainer = chain.nodes[-1]
    assert trainer.config.stage.teacher_model == str(here.working_folder / "larger")
    assert {dependency.name for dependency in dependencies(trainer, here, "")} == {"base", "teacher"}
    assert list_needed_models(trainer, here) == [str(tiny_model), str(here.working_folder / "larger")]
    (line,) = [node for node in plan_chain(chain_spec(chain), here).nodes if node.type == "trainer"]
    assert any(", teacher 0.0" in text for text in line.estimate.basis), line.estimate.basis


def chain_spec(chain: ResolvedChain) -> ChainSpec:
    """A resolved chain as it was requested."""
    nodes = [{"type": node.type, "config": node.config.model_dump(mode="json")} for node in chain.nodes]
    return ChainSpec.model_validate({"name": chain.name, "nodes": nodes})


def test_a_teacher_that_is_not_here_is_refused(here: Settings) -> None:
    (reason,) = list_refusals(distillation(here, "./nowhere"), here)
    assert (reason.code, reason.field) == ("E-MODEL-NOT-FOUND", "config.stage.teacher")


def test_a_teacher_that_no_memory_here_can_take_is_refused(here: Settings, tiny_model: Path) -> None:
    shutil.copytree(tiny_model, here.working_folder / "larger")
    (reason,) = check_teachers(distillation(here, "larger"), here, lambda: 1000)
    assert (reason.code, reason.field) == ("E-MEMORY-FIT", "config.stage.teacher")
    assert "this machine has 0.0 GiB" in reason.because


def test_the_plan_says_that_paged_states_are_not_paged_on_a_cpu(here: Settings) -> None:
    (here.working_folder / "a.jsonl").write_text(ROW)
    hyper = {"optimizer": "paged_adamw_8bit", "precision": "fp32"}
    job = {"dataset": {"path": "a.jsonl"}, "device": "cpu", "hyperparameters": hyper}
    plan = plan_chain(parse_request("training-job", job).spec, here)
    assert "Paged memory is CUDA's: on a CPU paged_adamw_8bit runs as adamw_8bit." in plan.nodes[-1].advice


def test_the_embedded_server_is_asked_for_only_where_a_target_wants_it(here: Settings) -> None:
    targets = {"publish": {"targets": [{"type": "embedded"}]}}
    assert {refusal["code"] for refusal in make_plan(here, **targets).refusals} == {"R-TARGET-DOWN"}


def test_merging_goes_group_by_group() -> None:
    assert deep_merge({"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"d": 3}, "e": 4}) == {
        "a": 1, "b": {"c": 1, "d": 3}, "e": 4,
    }  # fmt: skip


def test_the_backends_say_why_they_are_not_here() -> None:
    probes = probe_backends(settings())
    assert probes["native"] is None  # type: ignore[index]
    assert probes["trl"] is None  # type: ignore[index]
    assert "trainyard backends install unsloth" in str(probes["unsloth"])  # type: ignore[index]
