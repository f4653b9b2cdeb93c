"""The night's config: defaults, refusals, and to which date a moment belongs."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from pydantic import ValidationError

from trainyard.errors import InvalidInput, Refused
from trainyard.spec.axes.stages import Stage
from trainyard.spec.night import NightConfig, Window, check_name, night_trainer, read_night

REPOSITORY = Path(__file__).parents[3]


def test_defaults_are_the_documented_profile() -> None:
    config = read_night()
    assert [(bucket.name, bucket.method, bucket.threshold) for bucket in config.in_order()] == [
        ("engineering", "sft", 50), ("apprenticeship", "dpo", 50),
    ]  # fmt: skip
    training = config.phase2.training
    assert (training.method.type, training.method.profile) == ("qlora", "nightly")
    assert (training.hyperparameters.epochs, training.hyperparameters.max_length) == (2, 512)
    assert training.hyperparameters.gradient_checkpointing
    assert (config.window.window_s, config.window.boot_s, config.window.phase1_s) == (14_400, 5_400, 7_200)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ({"buckets": [{"name": "big", "method": "cpt"}]}, "R-NIGHT buckets.0.method"),
        ({"phase2": {"training": {"stage": "cpt"}}}, "R-NIGHT phase2.training.stage"),
        (
            {"phase2": {"training": {"stage": "dpo"}}},
            "R-NIGHT phase2.training: In a night the stage is the bucket's `method`. Instead: Remove `stage`.",
        ),
        ({"phase2": {"training": {"method": "dpo"}}}, "R-NIGHT phase2.training: .* Remove `stage`"),
        ({"phase2": {"training": {"adapter": "stack", "reuse": False}}}, "Remove `adapter` and `reuse`"),
        ({"buckets": [{"name": "a", "method": "sft", "threshold": 0}]}, "at least 1"),
        ({"streams": [{"name": "a", "globs": ["../x/*.md"]}]}, "leads out of the folder"),
        ({"tenant": "../x"}, "E-SPEC-VALUE tenant"),
        ({"buckets": [{"name": "a", "method": "sft"}, {"name": "a", "method": "dpo"}]}, "listed twice"),
        ({"window": {"zone": "Mars/Olympus"}}, "no time zone"),
        ({"windw": {}}, "Did you mean 'window'"),
    ],
)
def test_what_is_wrong_is_told(value: dict[str, Any], match: str) -> None:
    with pytest.raises(Refused, match=match):
        read_night(value)


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({"method": "lora", "quantization": "nf4"}, ["R-QUANTIZATION phase2.training.quantization"]),
        ({"method": "qlora", "quantization": "gguf"}, ["R-QUANTIZATION phase2.training.quantization"]),
        ({"backend": "trl", "method": "oft"}, ["R-BACKEND-SETTING phase2.training.method"]),
        ({"launch": {"strategy": "zero3", "processes": 2}}, ["R-BACKEND-SETTING phase2.training.launch.strategy"]),
        ({"engine": {"fp8": "ms-amp"}}, ["R-QUANTIZATION phase2.training.engine.fp8"]),
        ({"device": "cpu", "hyperparameters": {"precision": "fp16"}},
         ["R-DEVICE phase2.training.hyperparameters.precision"]),
        ({"control": "shuffled_answers"}, ["R-CONTROL phase2.training.control"]),
        ({"method": "full"}, ["R-NIGHT phase2.training.method"]),
        ({"method": "freeze"}, ["R-NIGHT phase2.training.method"]),
        ({"backend": "openai"}, ["R-BACKEND-SETTING phase2.training.base_model"]),
        ({"backend": "cohere"}, ["R-PROVIDER phase2.training.backend"]),
        ({"backend": "trl", "method": "lora", "stage": {"type": "dpo", "loss": "simpo"}},
         ["R-BACKEND-SETTING phase2.training.stage.loss"]),
    ],
)  # fmt: skip
def test_a_training_is_judged_by_the_rows_of_a_chain(training: dict[str, Any], expected: list[str]) -> None:
    with pytest.raises(Refused) as refused:
        read_night({"phase2": {"training": training}})
    assert [f"{reason.code} {reason.field}" for reason in refused.value.reasons] == expected
    assert {reason.node for reason in refused.value.reasons} == {None}


def test_preference_settings_are_those_of_the_dpo_buckets() -> None:
    training = {"method": "lora", "preference": {"beta": 0.2}}
    config = read_night({"phase2": {"training": training}})
    assert night_trainer(config, "dpo").stage == Stage.DPO.settings(beta=0.2)
    assert night_trainer(config, "sft").stage == Stage.SFT.settings()
    assert read_night({"phase2": {"training": {"method": "lora", "stage": {"type": "dpo", "beta": 0.2}}}}) == config
    only_sft = [{"name": "engineering", "method": "sft"}]
    with pytest.raises(Refused, match=r"R-NIGHT phase2\.training\.stage: No bucket has method dpo"):
        read_night({"buckets": only_sft, "phase2": {"training": training}})


RATES: list[tuple[dict[str, Any], list[str], dict[str, float | None]]] = [
    ({}, ["sft", "dpo"], {"sft": None, "dpo": None}),
    ({"training": {"learning_rate": 1e-3}}, ["sft", "dpo"], {"sft": 1e-3, "dpo": None}),
    ({"training": {"learning_rate": 1e-3}}, ["dpo", "sft"], {"sft": 1e-3, "dpo": None}),
    ({"training": {"learning_rate": 1e-6}}, ["dpo"], {"dpo": 1e-6}),
    ({"learning_rates": {"dpo": 1e-6}}, ["sft", "dpo"], {"sft": None, "dpo": 1e-6}),
    (
        {"training": {"learning_rate": 1e-3}, "learning_rates": {"dpo": 1e-6}},
        ["sft", "dpo"],
        {"sft": 1e-3, "dpo": 1e-6},
    ),
]


@pytest.mark.parametrize(("phase2", "methods", "rates"), RATES)
def test_a_learning_rate_reaches_the_buckets_it_was_given_for(
    phase2: dict[str, Any], methods: list[str], rates: dict[str, float | None]
) -> None:
    training = {"hyperparameters": phase2["training"]} if "training" in phase2 else {}
    buckets = [{"name": f"bucket-{method}", "method": method} for method in methods]
    config = read_night({"buckets": buckets, "phase2": {**phase2, "training": training}})
    rate_by_method = {method: night_trainer(config, method).hyperparameters.learning_rate for method in config.methods}
    assert rate_by_method == rates


@pytest.mark.parametrize(
    ("phase2", "field"),
    [
        ({"learning_rates": {"dpo": 1e-6}}, "phase2.learning_rates.dpo"),
        (
            {"learning_rates": {"sft": 1e-4}, "training": {"hyperparameters": {"learning_rate": 1e-3}}},
            "phase2.training.hyperparameters.learning_rate",
        ),
    ],
)
def test_a_learning_rate_of_no_bucket_is_refused(phase2: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused, match="R-NIGHT") as caught:
        read_night({"buckets": [{"name": "one", "method": "sft"}], "phase2": phase2})
    assert [reason.field for reason in caught.value.reasons] == [field]


def test_a_form_refuses_what_the_night_decides_itself() -> None:
    """Prefect's form makes the config without `read_night`; one that was stored whole is read again."""
    with pytest.raises(ValidationError, match="the stage is the bucket's `method`"):
        NightConfig.model_validate({"phase2": {"training": {"stage": "kto"}}})
    config = read_night({"phase2": {"training": {"budget_s": 60, "launch": {"on_oom": "fail"}}}})
    assert NightConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize("name", ["../a", "a/b", "A", "", "a" * 64, "a.b"])
def test_names_become_paths_only_when_they_are_names(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not a valid role"):
        check_name(name, "role")


def test_a_night_has_one_date_whatever_the_clock_does() -> None:
    window = Window(zone="Europe/Berlin", starts="01:00")
    berlin = ZoneInfo("Europe/Berlin")

    def date(*when: int) -> str:
        return window.find_date(datetime(*when, tzinfo=berlin).timestamp())  # type: ignore[arg-type,misc]

    assert date(2027, 3, 28, 1, 0) == date(2027, 3, 28, 4, 30) == date(2027, 3, 29, 0, 59) == "20270328"
    assert date(2027, 10, 31, 0, 59) == "20271030"
    assert date(2027, 10, 31, 1, 0) == date(2027, 10, 31, 23, 0) == date(2027, 11, 1, 0, 30) == "20271031"


def test_a_night_that_is_continued_in_the_repeated_hour_keeps_its_date() -> None:
    window, berlin = Window(zone="Europe/Berlin", starts="02:30"), ZoneInfo("Europe/Berlin")
    first = datetime(2027, 10, 31, 2, 30, tzinfo=berlin).timestamp()
    assert window.find_date(first - 1) == "20271030"
    assert window.find_date(first) == "20271031"
    repeated = datetime(2027, 10, 31, 2, 15, tzinfo=berlin, fold=1).timestamp()
    assert repeated > first
    assert window.find_date(repeated) == "20271031"


def test_the_shipped_preset_is_valid() -> None:
    for path in (REPOSITORY / "deployments" / "presets").glob("nightly-*.yaml"):
        assert read_night(yaml.safe_load(path.read_text())["config"]).buckets
