"""The templates: their core nodes, their switches, and forms that a person can fill in."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from tests.unit.spec.chains import links
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import DataFormat, GenerationTemplate, GeneratorKind, Port
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.axes.stages import PreferenceLoss, Stage
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.graph import check, resolve
from trainyard.spec.load.files import load_chain
from trainyard.spec.templates import TEMPLATES, AlignmentPipeline, CodeTuning, QaPipeline, TrainingForm, build_template
from trainyard.spec.training import Hyperparameters

NEEDED = {
    "qa-pipeline": {"documents": "docs"},
    "alignment-pipeline": {"sft": "examples.json", "preference": "pairs.json"},
    "rag-tuning": {"documents": "docs"},
    "rlhf": {"sft": "examples.json", "preference": "pairs.json"},
    "grpo": {"rows": "problems.jsonl"},
}
OFF = {
    "qa-pipeline": {"validate": False, "evaluate": False, "deploy": False},
    "alignment-pipeline": {"validate": False, "evaluate": False, "deploy": False},
    "rlhf": {"validate": False, "evaluate": False, "deploy": False},
    "grpo": {"validate": False, "evaluate": False, "deploy": False},
    "rag-tuning": {"evaluate": False, "deploy": False},
    "code-tuning": {"deploy": False},
}


CONTROLLED = [name for name in TEMPLATES if name not in ("rlhf", "grpo")]
"""Templates whose last trainer has answers that a control can shuffle."""


def build_named(name: str, **parameters: Any) -> Any:
    return build_template(name, {**NEEDED.get(name, {}), **parameters})


def types(name: str, **parameters: Any) -> list[str]:
    return [node.type for node in build_named(name, **parameters).nodes]


def test_the_core_nodes_of_each_template() -> None:
    assert {name: types(name, steps=OFF[name]) for name in TEMPLATES} == {
        "qa-pipeline": ["data_source", "ai_generator", "trainer"],
        "alignment-pipeline": ["data_source", "trainer", "trainer"],
        "rlhf": ["data_source", "trainer", "trainer", "trainer"],
        "grpo": ["data_source", "trainer", "trainer"],
        "rag-tuning": ["data_source", "ai_generator", "validator", "trainer"],
        "code-tuning": ["data_source", "ai_generator", "validator", "trainer", "evaluator"],
    }
    assert {name: list(template.core) for name, template in TEMPLATES.items()} == {
        name: types(name, steps=OFF[name]) for name in TEMPLATES
    }


def test_the_switches_are_on_and_insert_the_other_nodes() -> None:
    six = ["data_source", "ai_generator", "validator", "trainer", "evaluator", "deployer"]
    assert types("qa-pipeline") == types("rag-tuning") == types("code-tuning") == six
    assert types("alignment-pipeline") == ["data_source", "validator", "trainer", "trainer", "evaluator", "deployer"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_is_accepted_as_it_comes(name: str) -> None:
    chain = build_named(name)
    assert chain.name == name
    assert check(chain) == []
    assert name not in CONTROLLED or check(build_named(name, steps={"control": True})) == []
    assert check(build_named(name, steps=OFF[name])) == []
    for method in Method:
        assert check(build_named(name, training={"method": method.value, "rank": 8})) == []


@pytest.mark.parametrize("name", CONTROLLED)
def test_a_control_is_trained_beside_and_only_the_evaluator_takes_it(name: str) -> None:
    resolved_chain = resolve(build_named(name, steps={"control": True}))
    last = "trainer-2" if name == "alignment-pipeline" else "trainer"
    control = resolved_chain.node("control")
    assert control.config == resolved_chain.node(last).config.model_copy(update={"control": "shuffled_answers"})
    assert control.needs == resolved_chain.node(last).needs
    assert links(resolved_chain, "evaluator")["adapter"] == [f"{last}.adapter", "control.adapter*"]
    assert links(resolved_chain, "deployer")["adapter"] == [f"{last}.adapter"]
    assert resolved_chain.order[-3:] == ("control", "evaluator", "deployer")


def test_a_control_without_an_evaluator_is_refused_and_not_left_out() -> None:
    steps = {"control": True, "evaluate": False, "deploy": False}
    assert [reason.row for reason in check(build_named("qa-pipeline", steps=steps))] == ["control-unused"]


def test_deploying_without_evaluation_has_to_be_said() -> None:
    steps = {"evaluate": False}
    assert [reason.row for reason in check(build_named("qa-pipeline", steps=steps))] == ["unevaluated"]
    assert check(build_named("qa-pipeline", steps=steps, publish={"unevaluated": True})) == []


def test_evaluation_without_validation_is_refused() -> None:
    refusals = check(build_named("qa-pipeline", steps={"validate": False}))
    assert [reason.row for reason in refusals] == ["no-heldout"]


def test_parameters_arrive_where_they_work() -> None:
    chain = build_named(
        "qa-pipeline", documents="handbook", count=60, model="writer", wordings=4, base_model="org/base",
        training={"method": "dora", "epochs": 8, "learning_rate": 2e-3, "batch_size": 2, "rank": 16,
                  "max_length": 256, "seed": 7},
        publish={"tenant": "guests", "role": "handbook", "targets": [{"type": "embedded"}, {"url": "http://a"}]},
    )  # fmt: skip
    source, generator, validator, trainer, evaluator, deployer = (node.config for node in chain.nodes)
    assert source.path == "handbook"
    assert (generator.count, generator.model, generator.engine, generator.wordings) == (60, "writer", None, 4)
    assert generator.template is GenerationTemplate.QA
    assert validator.max_tokens == 256
    hyper = trainer.hyperparameters
    assert (hyper.epochs, hyper.learning_rate, hyper.batch_size, hyper.max_length, hyper.seed) == (8, 2e-3, 2, 256, 7)
    assert (trainer.method.type, trainer.method.rank, trainer.base_model) == (Method.DORA, 16, "org/base")
    assert evaluator.benchmarks == ()
    assert (deployer.tenant, deployer.role, deployer.unevaluated) == ("guests", "handbook", False)
    assert [target.type for target in deployer.targets] == [TargetType.EMBEDDED, TargetType.REGISTRY]
    assert deployer.targets[1].url == "http://a"
    assert chain.tenant == "guests"


def test_how_a_form_optimises_arrives_at_each_trainer() -> None:
    training = {
        "max_steps": 30,
        "schedule": "cosine",
        "warmup_ratio": 0.1,
        "optimizer": "lion",
        "gradient_accumulation": 4,
    }
    chain = build_named("alignment-pipeline", training=training, alignment={"max_steps": 7})
    first, second = (node.config.hyperparameters for node in chain.nodes if node.type == "trainer")
    for hyper in (first, second):
        assert (hyper.schedule, hyper.warmup_ratio) == (Schedule.COSINE, 0.1)
        assert (hyper.optimizer, hyper.gradient_accumulation) == (Optimizer.LION, 4)
    assert (first.max_steps, second.max_steps) == (30, 7)
    assert build_named("qa-pipeline", training=training).nodes[3].config.hyperparameters == first


@pytest.mark.parametrize("name", TEMPLATES)
def test_trackers_of_a_form_are_those_of_every_trainer(name: str) -> None:
    for training in ({}, {"trackers": ["trackio", "mlflow"]}):
        chain = build_named(name, training=training)
        trainers = [node.config for node in chain.nodes if node.type == "trainer"]
        assert {config.engine.trackers for config in trainers} == {tuple(training.get("trackers", ()))}


def test_the_form_has_the_defaults_of_a_trainer() -> None:
    form, trainer = TrainingForm(), Hyperparameters()
    for name in TrainingForm.model_fields.keys() & Hyperparameters.model_fields.keys():
        assert getattr(form, name) == getattr(trainer, name), name


@pytest.mark.parametrize("loss", PreferenceLoss)
def test_every_loss_of_the_form_is_accepted(loss: PreferenceLoss) -> None:
    chain = build_named("alignment-pipeline", alignment={"loss": loss.value})
    assert check(chain) == []
    assert chain.nodes[3].config.stage.loss is loss


def test_a_template_leaves_the_backend_to_the_default() -> None:
    for name in TEMPLATES:
        backends = {node.config.backend for node in build_named(name).nodes if node.type == "trainer"}
        assert backends == {BackendName.NATIVE}


def test_without_a_model_pairs_are_extracted() -> None:
    assert build_named("qa-pipeline").nodes[1].config.engine is GeneratorKind.EXTRACTIVE


def test_alignment_is_sft_then_dpo_of_the_same_adapter() -> None:
    alignment = {"loss": "ipo", "beta": 0.3, "epochs": 2, "learning_rate": 1e-6, "batch_size": 3}
    resolved_chain = resolve(build_named("alignment-pipeline", alignment=alignment, training={"rank": 8, "seed": 3}))
    sets = resolved_chain.node("data-source").config.sets
    assert {port: data_set.path for port, data_set in sets.items()} == {
        Port.SFT: "examples.json",
        Port.PREFERENCE: "pairs.json",
    }
    assert all(data_set.format is DataFormat.AUTO for data_set in sets.values())
    first, second = resolved_chain.node("trainer").config, resolved_chain.node("trainer-2").config
    assert (first.stage.type, second.stage.type) == (Stage.SFT, Stage.DPO)
    assert second.method == first.method
    assert second.method.rank == 8
    hyper = second.hyperparameters
    assert (hyper.epochs, hyper.learning_rate, hyper.batch_size, hyper.seed) == (2, 1e-6, 3, 3)
    assert (second.stage.loss, second.stage.beta) == ("ipo", 0.3)
    assert links(resolved_chain, "trainer-2") == {
        "preference": ["validator.preference"],
        "adapter": ["trainer.adapter"],
    }


def test_alignment_can_be_tried_on_a_few_rows_of_each_set() -> None:
    sets = build_named("alignment-pipeline", max_rows=50).nodes[0].config.sets
    assert {port: data_set.max_rows for port, data_set in sets.items()} == {Port.SFT: 50, Port.PREFERENCE: 50}
    assert build_named("alignment-pipeline").nodes[0].config.sets[Port.SFT].max_rows is None


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_switches_of_a_form_stand_in_the_order_of_the_nodes(name: str) -> None:
    order = ["validate", "evaluate", "deploy", "control"]
    switches = list(TEMPLATES[name].model.model_fields["steps"].default.model_dump())
    assert switches == [key for key in order if key in switches]


def test_rag_checks_answers_against_their_documents() -> None:
    assert build_named("rag-tuning").nodes[2].config.grounding == 0.6
    assert build_named("rag-tuning", grounding=0.9).nodes[2].config.grounding == 0.9
    assert build_named("qa-pipeline").nodes[2].config.grounding is None
    assert build_named("rag-tuning").nodes[1].config.wordings == 3


def test_code_is_read_from_files_or_from_the_history() -> None:
    files = build_named("code-tuning", repository="src").nodes[0].config
    assert (files.path, files.repository, files.include[0]) == ("src", None, "**/*.py")
    commits = build_named("code-tuning", repository="src", learn_from="commits").nodes[0].config
    assert (commits.path, commits.repository, commits.include) == (None, "src", ())
    assert build_named("code-tuning").nodes[1].config.template is GenerationTemplate.CODE


def test_full_weights_have_no_adapter_shape() -> None:
    trainer = resolve(build_named("qa-pipeline", training={"method": "full"})).node("trainer")
    assert trainer.produces == (Port.MODEL,)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_form_is_short_and_every_field_has_a_title(name: str) -> None:
    def look(model: type[BaseModel], depth: int) -> None:
        assert len(model.model_fields) <= (13 if depth else 10)
        for key, field in model.model_fields.items():
            nested = field.annotation if isinstance(field.annotation, type) else None
            if nested and issubclass(nested, BaseModel):
                assert depth < 2
                look(nested, depth + 1)
            else:
                assert field.title, f"{model.__name__}.{key}"

    look(TEMPLATES[name].model, 0)
    assert TEMPLATES[name].description.endswith(".")


def test_the_schema_shows_the_switches_under_their_own_names() -> None:
    schema = QaPipeline.model_json_schema()
    assert set(schema["$defs"]["Steps"]["properties"]) == {"validate", "evaluate", "deploy", "control"}
    assert schema["$defs"]["TrainingForm"]["properties"]["rank"]["maximum"] == 256
    assert schema["$defs"]["Method"]["enum"] == list(Method)
    assert AlignmentPipeline.model_json_schema()["$defs"]["PreferenceLoss"]["enum"] == list(PreferenceLoss)
    assert set(CodeTuning.model_json_schema()["$defs"]["DeploySteps"]["properties"]) == {"deploy", "control"}


def test_a_form_writes_what_it_reads() -> None:
    form = QaPipeline(documents="docs", steps={"validate": False, "control": True})
    assert form.model_dump()["steps"] == {"deploy": True, "control": True, "evaluate": True, "validate": False}
    assert QaPipeline.model_validate(form.model_dump(mode="json")) == form
    assert build_template("qa-pipeline", form) == form.build()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("qa-pipeline", {"documents": ""}), ("qa-pipeline", {"count": 0}), ("qa-pipeline", {"wordings": 9}),
        ("qa-pipeline", {"training": {"rank": 257}}), ("qa-pipeline", {"training": {"method": "zz"}}),
        ("qa-pipeline", {"publish": {"role": "Has Spaces"}}), ("qa-pipeline", {"publish": {"tenant": "../up"}}),
        ("rag-tuning", {"steps": {"validate": False}}), ("code-tuning", {"steps": {"evaluate": False}}),
        ("rag-tuning", {"grounding": 1.1}), ("alignment-pipeline", {"sft": ""}),
        ("qa-pipeline", {"training": {"learning_rate": float("inf")}}),
    ],
)  # fmt: skip
def test_wrong_parameters_are_refused(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        build_named(name, **wrong)


def test_an_unknown_template() -> None:
    with pytest.raises(KeyError, match="qa"):
        build_template("qa")


def test_a_file_that_calls_a_template_is_the_same_chain() -> None:
    text = "template: qa-pipeline\nparameters: {documents: handbook, training: {rank: 8}}\n"
    assert load_chain(text) == build_named("qa-pipeline", documents="handbook", training={"rank": 8})


@given(
    st.builds(
        TrainingForm,
        method=st.sampled_from([method.value for method in Method]),
        epochs=st.floats(0.1, 100),
        learning_rate=st.none() | st.floats(1e-6, 0.1),
        batch_size=st.integers(1, 64),
        rank=st.integers(1, 256),
        max_length=st.integers(8, 4096),
    ),
    st.sampled_from(sorted(TEMPLATES)),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_form_that_is_filled_in_is_a_chain_that_is_accepted(
    training: TrainingForm, name: str, control: bool
) -> None:
    steps = {"control": control} if name in CONTROLLED else {}
    assert check(build_named(name, training=training, steps=steps)) == []


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_takes_a_limit_of_money_and_keeps_its_digest_without_one(name: str) -> None:
    parameters = NEEDED.get(name, {})
    assert build_template(name, {**parameters, "max_spend": "2.50"}).max_spend == Decimal("2.50")
    assert "max_spend" not in build_template(name, parameters).model_dump(mode="json")
