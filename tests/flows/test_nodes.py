"""The six real nodes in real flows, with a tiny model."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from flows.chain import chain
from flows.qa_pipeline import qa_pipeline
from tests.flows.chain_runs import fill_working_folder, read_run_result, twice
from trainyard.app.jobs.jobs import read_divergence
from trainyard.app.run_records import read_events
from trainyard.settings import settings
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import ChainSpec
from trainyard.spec.templates import PublishForm, TrainingForm
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.artifacts import open_reference

pytestmark = pytest.mark.usefixtures("prefect")

PAGE = """# The {name} station

The {name} station has {count} platforms. It was opened in {year} by the railway of the {name} valley.

## Opening hours of the {name} station

The {name} station is open from {hour} to 23 every day. On holidays the {name} station opens two hours later.

## Tickets at the {name} station

A ticket from the {name} station to the coast costs {price} crowns and is valid for three days.
"""


@pytest.fixture
def work(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with twelve documents and a data set, and the tiny model as the default base."""
    folder = tmp_path / "work"
    (folder / "docs").mkdir(parents=True)
    names = (
        "amber", "basalt", "cedar", "dune", "ember", "fjord", "grove", "harbour", "iris", "juniper", "kelp", "lagoon",
    )  # fmt: skip
    for n, name in enumerate(names):
        text = PAGE.format(name=name, count=n + 2, year=1850 + n, hour=5 + n % 4, price=12 + 3 * n)
        (folder / "docs" / f"{name}.md").write_text(text)
    return fill_working_folder(folder, tiny_model, monkeypatch, {"data.jsonl": twice(60)})


def run(*nodes: dict[str, Any]) -> State[Any]:
    spec = ChainSpec.model_validate({"name": "test", "nodes": nodes})

    async def carry_out() -> State[Any]:
        return await chain(spec, return_state=True)

    return asyncio.run(carry_out())


def source(path: str = "docs", **config: Any) -> dict[str, Any]:
    return {"type": "data_source", "config": {"path": path, **config}}


def test_documents_become_checked_rows(work: Path) -> None:
    state = run(source(), {"type": "ai_generator", "config": {"count": 40}}, {"type": "validator"})
    assert state.is_completed(), state.message
    result = read_run_result(state)
    assert result.node("data-source").outputs[Port.DOCUMENTS].rows == 12
    rows = result.node("validator").outputs[Port.SFT].rows
    assert rows is not None
    assert rows > 0
    facts = result.node("validator").facts["sft"]
    assert f"of {facts['read']} sft ({sum(facts['heldout'].values())} held out" in result.node("validator").message
    assert facts["read"] == facts["kept"] + sum(facts["heldout"].values()) + sum(facts["dropped"].values())


def test_personal_data_is_masked_in_what_the_validator_hands_on_and_told(work: Path) -> None:
    rows = [{"instruction": f"Who sells part {n}?", "output": f"Ask anna.meyer{n}@posteo.de."} for n in range(60)]
    (work / "private.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    state = run(source("private.jsonl"), {"type": "validator", "config": {"sensitive": {"email": "mask"}}})
    assert state.is_completed(), state.message
    node = read_run_result(state).node("validator")
    assert node.facts["sft"]["sensitive"]["email"] == {"action": "mask", "rows": 60, "found": 60}
    assert node.message.endswith(", 60 email masked")
    folder = open_reference(node.outputs[Port.SFT])
    assert not [path for path in folder.rglob("*") if path.is_file() and b"@posteo" in path.read_bytes()]


def test_a_second_run_reuses_everything(work: Path) -> None:
    nodes = (source(), {"type": "ai_generator", "config": {"count": 30}})
    run(*nodes)
    again = run(*nodes)
    assert again.message == "2 nodes finished, 2 of them reused."


def test_a_path_outside_is_refused_before_any_node_runs(work: Path) -> None:
    state = run(source("../../../etc"), {"type": "ai_generator"})
    assert state.is_failed()
    assert "R-PATH-ROOT data-source.config.path" in (state.message or "")
    assert not (settings().runs / str(state.state_details.flow_run_id)).exists()


def test_a_model_without_an_endpoint_is_never_replaced(work: Path) -> None:
    state = run(source(), {"type": "ai_generator", "config": {"model": "llama3.2"}})
    assert state.is_failed()
    assert "R-ENDPOINT ai-generator.config.model" in (state.message or "")


def test_a_chain_that_is_no_chain_fails_with_all_reasons(work: Path) -> None:
    state = run(source(), {"type": "trainer", "config": {"stage": "dpo"}})
    assert state.is_failed()
    assert state.message is not None
    assert "trainer" in state.message
    assert "Instead:" in state.message


def test_a_missing_file_and_a_missing_model_are_refused_before_any_node_runs(work: Path) -> None:
    state = run(source("nothing"), {"type": "ai_generator"}, {"type": "trainer", "config": {"base_model": "mine"}})
    assert state.is_failed()
    assert state.message is not None
    assert "E-DATA-NOT-FOUND data-source.config.path: There is no file or folder 'nothing'." in state.message
    assert f"It was looked for in {work}" in state.message
    assert "in `prefect deployment run` it starts where `trainyard up` was called." in state.message
    assert "E-MODEL-NOT-FOUND trainer.config.base_model: There is no model 'mine'." in state.message
    assert not (settings().runs / str(state.state_details.flow_run_id)).exists()


def test_a_relative_model_starts_at_the_working_folder_and_not_at_the_worker_s(work: Path, tiny_model: Path) -> None:
    shutil.copytree(tiny_model, work / "mine")
    state = run(source("data.jsonl"), {"type": "validator", "config": {"tokenizer": "mine"}})
    assert state.is_completed(), state.message
    chain_file = settings().runs / str(state.state_details.flow_run_id) / "chain.json"
    nodes = {node["id"]: node for node in json.loads(chain_file.read_text())["nodes"]}
    assert nodes["validator"]["config"]["tokenizer"] == str(work / "mine")


def test_rows_of_another_kind_are_refused_before_a_node_starts(work: Path) -> None:
    state = run(
        source("data.jsonl"), {"type": "trainer", "config": {"stage": "dpo", "hyperparameters": {"max_steps": 1}}}
    )
    assert state.is_failed()
    assert "R-PORT trainer: Stage dpo learns from preference, and what was read is sft rows" in str(state.message)


def test_rows_that_cannot_be_read_are_refused_before_a_node_starts(work: Path) -> None:
    (work / "p.jsonl").write_text('{"prompt": "a", "chosen": "b"}\n' * 3)
    state = run(source("p.jsonl", format="preference"))
    assert state.is_failed()
    assert "E-DATA-FORMAT data-source" in str(state.message)


@pytest.mark.slow
def test_a_whole_pipeline_leaves_a_version_that_is_live(work: Path) -> None:
    async def carry_out() -> State[Any]:
        return await qa_pipeline(
            documents="docs",
            count=90,
            training=TrainingForm(epochs=8, learning_rate=5e-3, rank=8, max_length=256),
            publish=PublishForm(role="guide", few_rows="allow", quotes=0),
            return_state=True,
        )

    state = asyncio.run(carry_out())
    assert state.is_completed(), state.message
    result = read_run_result(state)
    assert [node.id for node in result.nodes][-2:] == ["evaluator", "deployer"]
    live = AdapterRegistry(settings().adapters).show("default/guide")
    assert live.name == "default/guide/v1"
    assert "default/guide/v1 is live" in result.message
    again = read_run_result(asyncio.run(carry_out()))
    assert AdapterRegistry(settings().adapters).show("default/guide").name == "default/guide/v1"
    assert [node.id for node in again.nodes if node.state == "completed"] == ["deployer"]


EXACT_MATCH = {"name": "exact_match", "max_rows": 7}
"""A benchmark on which a model of one step is never better than its baseline: both score 0."""


@pytest.mark.slow
def test_an_adapter_that_is_not_better_is_kept_and_not_deployed(work: Path) -> None:
    hyperparameters = {"max_steps": 1, "max_length": 128}
    state = run(
        source("data.jsonl"), {"type": "validator"},
        {"type": "trainer", "config": {"hyperparameters": hyperparameters}},
        {"type": "evaluator", "config": {"samples": 0, "least_rows": 0, "benchmarks": [EXACT_MATCH]}},
        {"type": "deployer", "config": {"role": "guide"}},
    )  # fmt: skip
    result = read_run_result(state)
    assert (state.name, result.state, result.detail) == ("NotDeployed", "completed", "not deployed"), state.message
    assert result.gate is not None
    assert (result.gate.node, result.gate.evaluator) == ("deployer", "evaluator")
    lines = result.message.splitlines()
    assert lines[0] == f"Not deployed: {result.gate.line}."
    assert lines[1:-1] == [f"- {reason}" for reason in result.gate.reasons]
    assert lines[-1].startswith(f"`trainyard evaluations show {result.id} evaluator` has every check. ")
    assert result.gate.reasons[0] not in "".join(node.message for node in result.nodes), "each reason is told once"
    assert "correct the cause" not in result.message
    assert AdapterRegistry(settings().adapters).list() == []
    assert Port.ADAPTER in result.node("trainer").outputs


@pytest.mark.slow
def test_a_training_that_diverges_says_so_while_it_runs_and_at_its_end(work: Path) -> None:
    hyperparameters = {"max_steps": 20, "learning_rate": 1.0, "max_length": 128, "precision": "fp32"}
    config = {"method": "full", "hyperparameters": hyperparameters}
    state = run(source("data.jsonl"), {"type": "trainer", "config": config})
    assert state.is_completed(), state.message
    result = read_run_result(state)
    divergences = {divergence["kind"]: divergence for divergence in result.node("trainer").facts["divergence"]}
    assert divergences["loss_rose"]["advice"] == "lower hyperparameters.learning_rate, or raise warmup_ratio"
    assert divergences["loss_rose"]["text"] in result.node("trainer").message
    assert f"trainer: {divergences['loss_rose']['text']}" in result.message
    folder = settings().runs / result.run_id
    warned = [event for event in read_events(folder) if event.get("divergence")]
    assert {event["event"] for event in warned} == {"warning"}
    assert "loss_rose" in {event["divergence"]["kind"] for event in warned}
    assert {divergence.kind for divergence in read_divergence(folder, None)} >= {"loss_rose"}, "as while it runs"
    assert [divergence.text for divergence in read_divergence(folder, result)] == [
        divergence["text"] for divergence in divergences.values()
    ]
    training = open_reference(result.node("trainer").outputs[Port.MODEL]) / "training.json"
    assert json.loads(training.read_text())["divergence"] == list(divergences.values())


@pytest.mark.slow
def test_a_training_is_counted_to_the_token(work: Path) -> None:
    hyperparameters = {"max_steps": 2, "max_length": 128}
    state = run(source("data.jsonl"), {"type": "trainer", "config": {"hyperparameters": hyperparameters}})
    assert state.is_completed(), state.message
    tokens = read_run_result(state).node("trainer").facts["data"]["tokens"]
    parts = ("trained", "masked", "truncated", "dropped")
    assert tokens["read"] == sum(tokens[part] for part in parts)
