"""A stage or method as a word or with its settings, and the groups in which earlier versions had those."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.spec.chains import chain, node, reasons, source
from trainyard.app.context import Context
from trainyard.app.plan.parse import deep_merge, parse_request
from trainyard.app.plan.plan import plan
from trainyard.operations.chains import PlanInput
from trainyard.settings import load_settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.methods import METHOD_SETTINGS, TRAINED_METHODS, Method
from trainyard.spec.axes.stages import STAGE_SETTINGS, Stage
from trainyard.spec.graph import resolve
from trainyard.spec.migrate import group_settings, list_deprecated, trainer_words
from trainyard.spec.model_schema import ABSENT, read_setting
from trainyard.spec.training import TrainerConfig

VALUES: dict[str, tuple[Any, ...]] = {
    "profile": ("classic", "nightly"), "rank": (4, 64), "alpha": (8.0,), "dropout": (0.1,),
    "target_modules": (["q_proj"], "attention-only"), "modules_to_save": (["lm_head"],), "layers": ([0, 1],),
    "rslora": (True,), "ratio": (8.0,), "block_size": (16,), "blocks": (3,), "head": (True,),
    "loss": ("hinge", "simpo"), "beta": (0.3,), "label_smoothing": (0.2,), "gamma": (1.0,), "centering": (0.01,),
    "desirable_weight": (2.0,), "undesirable_weight": (0.5,),
}  # fmt: skip
"""Setting -> values other than its default."""
EARLIER = {
    "ratio": "lora.lora_plus_ratio", "block_size": "engine.oft_block_size", "blocks": "engine.freeze_blocks",
    "head": "engine.freeze_head", "centering": "engine.reward_centering", "gamma": "preference.simpo_gamma",
}  # fmt: skip
"""Setting -> where earlier versions had it; the others were below `lora`, `preference` or `rollouts`."""
NEWER = {
    "init", "interval", "average", "turns", "neftune_alpha", "shared_prompt", "latent", "environment", "rollouts",
}  # fmt: skip
"""Settings that no earlier version had; the script backend, which reads the groups, takes their defaults only."""
DRAWN: dict[str, tuple[Any, ...]] = {
    "rewards": ([{"type": "exact_match", "weight": 2.0, "ignore_case": True}],), "num_generations": (4,),
    "max_completion_length": (64,), "temperature": (0.7,), "beta": (0.1,), "num_iterations": (2,), "epsilon": (0.1,),
    "loss": ("grpo",), "scale_rewards": ("batch",),
}  # fmt: skip
"""The same for stage grpo, which has losses and ranges of its own."""
AXES = {"method": {value: METHOD_SETTINGS[value] for value in TRAINED_METHODS}, "stage": STAGE_SETTINGS}
EVERY = [(axis, value) for axis, models in AXES.items() for value in models]
GROUPED = [(axis, value) for axis, value in EVERY if value not in (Stage.DISTILL, Stage.PPO)]
"""Variants that earlier versions had, with their settings in groups."""


def write_variants(axis: str, value: Any) -> list[dict[str, Any]]:
    """Settings of a stage or method: none, each of its values by itself, and every pair of them."""
    fields, values = AXES[axis][value].model_fields, DRAWN if value is Stage.GRPO else VALUES
    single = [{name: setting_value} for name in values.keys() & fields.keys() for setting_value in values[name]]
    assert fields.keys() - {"type"} - NEWER <= values.keys()
    return [{}, *single, *({**first, **other} for first, other in itertools.combinations(single, 2))]


def write_earlier_form(axis: str, value: Any, settings: dict[str, Any]) -> dict[str, Any]:
    usual = "lora" if axis == "method" else "rollouts" if value is Stage.GRPO else "preference"
    trainer_settings: dict[str, Any] = {axis: value.value}
    for name, setting_value in settings.items():
        group, _, old = EARLIER.get(name, f"{usual}.{name}").partition(".")
        trainer_settings.setdefault(group, {})[old] = setting_value
    return trainer_settings


@pytest.mark.parametrize(("axis", "value"), EVERY)
def test_a_bare_word_has_the_defaults_of_its_variant(axis: str, value: Any) -> None:
    by_word, in_full = (
        TrainerConfig.model_validate({axis: axis_value}) for axis_value in (value.value, {"type": value.value})
    )
    assert by_word == in_full == TrainerConfig.model_validate({axis: value.settings()})
    variant = getattr(by_word, axis)
    assert (variant.type, str(variant), variant.facts) == (value, value.value, value.facts)


def test_settings_without_a_word_are_those_of_the_usual_method() -> None:
    assert TrainerConfig(method={"rank": 8}).method == Method.LORA.settings(rank=8)
    (reason,) = reasons(source(), node("trainer", method={"blocks": 2}))
    assert reason.instead == "`blocks` is a setting of method freeze."
    (reason,) = reasons(source(), node("trainer", stage={"gamma": 2}))
    assert reason.instead == "`gamma` is a setting of stage ppo, dpo."


def test_a_word_survives_what_leaves_defaults_out() -> None:
    config = TrainerConfig(method=Method.DORA.settings(rank=8))
    assert config.model_dump(mode="json", exclude_unset=True) == {"method": {"type": "dora", "rank": 8}}


@pytest.mark.parametrize(("axis", "usual"), [("method", "lora"), ("stage", "sft")])
def test_the_schema_tells_the_variants_apart(axis: str, usual: str) -> None:
    schema = TrainerConfig.model_json_schema()
    word, variants = schema["properties"][axis]["anyOf"]
    values = [value.value for value in type(next(iter(AXES[axis])))]
    assert schema["$defs"][word["$ref"].rpartition("/")[2]]["enum"] == values
    mapping = variants["discriminator"]["mapping"]
    assert (variants["discriminator"]["propertyName"], set(mapping)) == ("type", set(values))
    assert schema["properties"][axis]["default"] == usual


def test_the_schema_of_a_variant_has_its_settings_alone() -> None:
    schema = TrainerConfig.model_json_schema()
    mapping = schema["properties"]["method"]["anyOf"][1]["discriminator"]["mapping"]
    freeze = schema["$defs"][mapping["freeze"].rpartition("/")[2]]
    assert set(freeze["properties"]) == {"type", "blocks", "head", "interval"}
    assert freeze["additionalProperties"] is False


@pytest.mark.parametrize(("axis", "value"), GROUPED)
def test_what_earlier_versions_had_in_groups_is_the_same(axis: str, value: Any) -> None:
    for settings in write_variants(axis, value):
        config = TrainerConfig.model_validate({axis: {"type": value.value, **settings}})
        assert TrainerConfig.model_validate(write_earlier_form(axis, value, settings)) == config, settings


@pytest.mark.parametrize(("axis", "value"), GROUPED)
def test_a_script_reads_the_groups_and_they_are_read_back(axis: str, value: Any) -> None:
    for settings in write_variants(axis, value):
        config = TrainerConfig.model_validate({axis: {"type": value.value, **settings}})
        groups = group_settings(config.model_dump(mode="json"))
        assert groups[axis] == value.value
        assert TrainerConfig.model_validate(groups) == config, settings


def test_both_forms_of_a_chain_have_one_digest() -> None:
    old = chain(source(), node("trainer", method="lora_plus", lora={"rank": 8, "lora_plus_ratio": 4}))
    new = chain(source(), node("trainer", method={"type": "lora_plus", "rank": 8, "ratio": 4}))
    assert resolve(old).digest == resolve(new).digest
    pairs = source(format="preference")
    old = chain(pairs, node("trainer", stage="dpo", preference={"loss": "simpo", "beta": 2.0, "simpo_gamma": 1}))
    new = chain(pairs, node("trainer", stage={"type": "dpo", "loss": "simpo", "beta": 2.0, "gamma": 1}))
    assert resolve(old).digest == resolve(new).digest


WRITTEN_OUT = {
    "lora": {
        "profile": "platform", "rank": 32, "alpha": 64.0, "dropout": 0.0, "target_modules": "all-linear",
        "modules_to_save": [], "layers": None, "rslora": False, "lora_plus_ratio": 16.0,
    },
    "engine": {
        "freeze_blocks": 2, "freeze_head": False, "oft_block_size": 32, "reward_centering": 0.0, "too_long": "drop",
    },
    "preference": {
        "loss": "sigmoid", "beta": 0.1, "label_smoothing": 0.0, "simpo_gamma": 0.5, "desirable_weight": 1.0,
        "undesirable_weight": 1.0,
    },
    "rollouts": None,
}  # fmt: skip
"""What an earlier version stored of a trainer without settings of its own."""


@pytest.mark.parametrize(("axis", "value"), EVERY)
def test_defaults_that_were_written_out_are_left_where_they_do_not_belong(axis: str, value: Any) -> None:
    config = TrainerConfig.model_validate({axis: value.value, **WRITTEN_OUT})
    assert (getattr(config, axis).type, config.engine.too_long) == (value, "drop")
    if axis == "stage":
        assert config.stage == value.settings()


@pytest.mark.parametrize(
    ("settings", "because"),
    [
        ({"method": "full", "lora": {"rank": 8}}, "Only method lora, qlora, dora, lora_plus reads lora.rank"),
        ({"method": "oft", "lora": {"profile": "classic", "rank": 32}}, "reads lora.rank; here it would be ignored"),
        ({"engine": {"freeze_blocks": 3}}, "Only method freeze reads engine.freeze_blocks"),
        ({"method": {"type": "lora", "rank": 8}, "lora": {"rank": 16}}, "lora.rank is 16, and method.rank is 8"),
        ({"preference": {"beta": 0.2}}, "Only stage dpo, kto reads preference.beta"),
        ({"stage": "grpo", "preference": {"beta": 0.2}}, "Only stage dpo, kto reads preference.beta"),
        ({"stage": "dpo", "rollouts": {"beta": 0.2}}, "Only stage grpo reads rollouts.beta"),
        ({"rollouts": {"rewards": [{"type": "exact_match"}]}}, "Only stage grpo reads rollouts.rewards"),
        ({"stage": "dpo", "engine": {"reward_centering": 0.1}}, "Only stage reward reads engine.reward_centering"),
    ],
)
def test_an_earlier_setting_that_does_not_fit_is_refused(settings: dict[str, Any], because: str) -> None:
    with pytest.raises(ValidationError, match=because):
        TrainerConfig.model_validate(settings)


def test_an_earlier_setting_may_repeat_what_the_method_says() -> None:
    assert TrainerConfig.model_validate({"method": {"rank": 8}, "lora": {"rank": 8}}).method.rank == 8


def test_a_misspelt_earlier_setting_is_answered_with_the_right_one() -> None:
    (reason,) = reasons(source(), node("trainer", lora={"ranks": 8}))
    assert (reason.field, reason.instead) == ("config.method.ranks", "Did you mean 'rank'?")


def test_an_earlier_group_is_told_once_a_setting() -> None:
    value = {"nodes": [source(), node("trainer", lora={"rank": 8}, engine={"head": "full", "freeze_blocks": 2})]}
    assert list(list_deprecated(value)) == [
        "nodes.1.config.lora.rank is deprecated: write nodes.1.config.method.rank.",
        "nodes.1.config.engine.freeze_blocks is deprecated: write nodes.1.config.method.blocks.",
    ]
    assert list(list_deprecated({"nodes": [source(), node("trainer", method={"rank": 8})]})) == []


def test_a_plan_says_what_to_write() -> None:
    messages: list[str] = []
    job = {"dataset": {"path": "rows.jsonl"}, "lora": {"rank": 8}}
    plan(PlanInput(target="training-job", parameters=job), Context(load_settings(), say=messages.append))
    assert messages == ["lora.rank is deprecated: write method.rank."]


def test_parameters_are_laid_over_a_word() -> None:
    assert deep_merge({"method": "dora"}, {"method": {"rank": 8}}) == {"method": {"type": "dora", "rank": 8}}
    below = {"method": {"type": "lora", "rank": 8}}
    assert deep_merge(below, {"method": {"alpha": 4}}) == {"method": {"type": "lora", "rank": 8, "alpha": 4}}
    assert deep_merge(below, {"method": {"type": "freeze", "blocks": 1}}) == {"method": {"type": "freeze", "blocks": 1}}
    assert deep_merge(below, {"method": "full"}) == {"method": "full"}


def test_a_job_that_is_started_says_its_method_in_full() -> None:
    job = {"dataset": {"path": "rows.jsonl"}, "method": {"rank": 8}}
    assert parse_request("training-job", job).parameters["job"]["method"] == {"type": "lora", "rank": 8}


def test_words_alone_are_left_as_they_are() -> None:
    assert trainer_words({"method": "dora", "engine": {"head": "full"}}) == {
        "method": "dora",
        "engine": {"head": "full"},
    }


@pytest.mark.parametrize("backend", BackendName)
def test_every_setting_that_a_backend_limits_exists(backend: BackendName) -> None:
    facts = backend.facts
    named = {*facts.settings, *facts.sharded, *facts.default_only, *facts.whole_numbers}
    configs = [TrainerConfig(method=method.settings(), stage=stage.settings()) for method in Method for stage in Stage]
    assert all(any(read_setting(config, setting) is not ABSENT for config in configs) for setting in named)
