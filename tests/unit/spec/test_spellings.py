"""Names of settings as other tools write them are answered with ours."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest

from tests.unit.spec.chains import node, reasons, source
from trainyard.spec import nodes, training
from trainyard.spec.load.files import read_chain
from trainyard.spec.load.spellings import ELSEWHERE, GROUPS, OURS, SPELLINGS, VALUES
from trainyard.spec.nodes import DataSourceConfig
from trainyard.spec.training import EngineSettings, TrainerConfig


def answers(**config: Any) -> list[tuple[str, str]]:
    """The field and the suggestion of each reason against a trainer."""
    return [(reason.field, reason.instead) for reason in reasons(source(), node("trainer", **config))]


def test_the_arguments_of_hugging_face_are_answered_with_ours() -> None:
    hyper = {
        "num_train_epochs": 3, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "lr": 2e-4,
        "lr_scheduler_type": "cosine", "num_warmup_steps": 10, "optim": "adamw_torch", "max_seq_length": 2048,
        "bf16": True,
        "fp16": False,
    }  # fmt: skip
    answer_by_field = answers(
        hyperparameters=hyper,
        method={"type": "lora", "r": 16, "lora_alpha": 32, "lora_dropout": 0.05, "use_rslora": True},
    )
    assert {field.rpartition(".")[2]: instead for field, instead in answer_by_field} == {
        "num_train_epochs": "Write `epochs`.",
        "per_device_train_batch_size": "Write `batch_size`.",
        "gradient_accumulation_steps": "Write `gradient_accumulation`.",
        "lr": "Write `learning_rate`.",
        "lr_scheduler_type": "Write `schedule`.",
        "num_warmup_steps": "Write `warmup_steps`.",
        "optim": "Write `optimizer`.",
        "max_seq_length": "Write `max_length`.",
        "bf16": "Write `precision: bf16`.",
        "fp16": "Remove it; `precision: fp16` is what switches it on.",
        "r": "Write `rank`.",
        "lora_alpha": "Write `alpha`.",
        "lora_dropout": "Write `dropout`.",
        "use_rslora": "Write `rslora`.",
    }


def test_a_setting_in_another_group_is_answered_with_its_place() -> None:
    answer_by_field = dict(
        answers(epochs=3, rank=8, r=8, load_in_4bit=True, beta=1, hyperparameters={"lora_r": 8, "method": "x"})
    )
    assert answer_by_field == {
        "config.epochs": "Write `hyperparameters.epochs`.",
        "config.rank": "Write `method.rank`.",
        "config.r": "Write `method.rank`.",
        "config.load_in_4bit": "Write `method: qlora`.",
        "config.beta": "Write `stage.beta`.",
        "config.hyperparameters.lora_r": "Write `method.rank`.",
        "config.hyperparameters.method": "Write `method`.",
    }


@pytest.mark.parametrize(
    ("setting", "value", "our_value"),
    [
        ("optimizer", "adamw_torch", "adamw"), ("optimizer", "adamw_torch_fused", "adamw"),
        ("optimizer", "adamw_bnb_8bit", "adamw_8bit"), ("schedule", "warmup_stable_decay", "wsd"),
        ("precision", "bfloat16", "bf16"), ("precision", "float32", "fp32"),
    ],
)  # fmt: skip
def test_a_value_of_another_tool_is_answered_with_ours(setting: str, value: str, our_value: str) -> None:
    assert answers(hyperparameters={setting: value}) == [
        (f"config.hyperparameters.{setting}", f"Did you mean {our_value!r}?")
    ]


def test_jobs_and_forms_are_answered_too() -> None:
    (reason,) = read_chain({"dataset": {"path": "a.jsonl"}, "num_train_epochs": 3})[1]
    assert (reason.field, reason.instead) == ("num_train_epochs", "Write `hyperparameters.epochs`.")
    (reason,) = read_chain({"dataset": {"path": "a.jsonl", "max_samples": 3}})[1]
    assert (reason.field, reason.instead) == ("dataset.max_samples", "Write `max_rows`.")
    form = {"template": "qa-pipeline", "parameters": {"documents": "docs", "training": {"lr": 1e-4}}}
    (reason,) = read_chain(form)[1]
    assert (reason.field, reason.instead) == ("parameters.training.lr", "Write `learning_rate`.")


def test_another_node_is_not_told_of_a_trainer() -> None:
    (reason,) = reasons(source(), node("validator", lora_alpha=3))
    assert reason.instead.startswith("Write one of: ")


def test_every_suggestion_exists() -> None:
    """No name of ours is in the table as another's, and no name is in it twice."""
    names = [name for spellings in SPELLINGS.values() for name in spellings.split()]
    assert len(names) == len(OURS)
    for our_name in SPELLINGS:
        group, _, last = our_name.partition(":")[0].rpartition(".")
        models = GROUPS[group] if group else (TrainerConfig, DataSourceConfig)
        assert any(last in model.model_fields for model in models), our_name
    within = (name for models in GROUPS.values() for model in models for name in model.model_fields)
    fields = {*TrainerConfig.model_fields, *within}
    assert not fields & {*names, *ELSEWHERE}
    named = {**vars(training), **vars(nodes)}.values()
    kinds = [kind for kind in named if isinstance(kind, type) and issubclass(kind, StrEnum)]
    axis_values = {str(word) for kind in kinds for word in kind}
    assert (
        set(VALUES.values()) - axis_values
        == {"fa2", "fa3"}
        <= set(EngineSettings.model_fields["attention"].annotation.__args__)
    )
    assert not axis_values & set(VALUES)
