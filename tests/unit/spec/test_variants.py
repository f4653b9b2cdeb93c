"""A method as a word or with its settings, and the groups in which earlier versions had those."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.spec.chains import chain, node, reasons, source
from trainyard.api.context import Context
from trainyard.api.planning import asked, merged
from trainyard.api.requests.chains import PlanInput
from trainyard.api.verbs.chains.plan import plan
from trainyard.settings import load_settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.methods import METHOD_SETTINGS, Method
from trainyard.spec.compat.context import ABSENT, value_at
from trainyard.spec.graph import resolve
from trainyard.spec.migrate import in_groups, list_deprecated, trainer_words
from trainyard.spec.training import TrainerConfig

VALUES: dict[str, tuple[Any, ...]] = {
    "profile": ("classic", "nightly"), "rank": (4, 64), "alpha": (8.0,), "dropout": (0.1,),
    "target_modules": (["q_proj"], "attention-only"), "modules_to_save": (["lm_head"],), "layers": ([0, 1],),
    "rslora": (True,), "ratio": (8.0,), "block_size": (16,), "blocks": (3,), "head": (True,),
}  # fmt: skip
"""Setting -> values other than its default."""
EARLIER = {
    "ratio": "lora.lora_plus_ratio", "block_size": "engine.oft_block_size", "blocks": "engine.freeze_blocks",
    "head": "engine.freeze_head",
}  # fmt: skip
"""Setting -> where earlier versions had it; the others were below `lora`."""


def written(method: Method) -> list[dict[str, Any]]:
    """Settings of a method: none, each of its values by itself, and every pair of them."""
    fields = METHOD_SETTINGS[method].model_fields
    single = [{name: value} for name, values in VALUES.items() for value in values if name in fields]
    return [{}, *single, *({**one, **other} for one, other in itertools.combinations(single, 2))]


def in_earlier_form(method: Method, settings: dict[str, Any]) -> dict[str, Any]:
    words: dict[str, Any] = {"method": method.value}
    for name, value in settings.items():
        group, _, old = EARLIER.get(name, f"lora.{name}").partition(".")
        words.setdefault(group, {})[old] = value
    return words


@pytest.mark.parametrize("method", Method)
def test_a_bare_word_has_the_defaults_of_its_method(method: Method) -> None:
    by_word, in_full = TrainerConfig(method=method.value), TrainerConfig(method={"type": method.value})
    assert by_word == in_full == TrainerConfig(method=method.settings())
    assert (by_word.method.type, str(by_word.method), by_word.method.facts) == (method, method.value, method.facts)


def test_settings_without_a_word_are_those_of_the_usual_method() -> None:
    assert TrainerConfig(method={"rank": 8}).method == Method.LORA.settings(rank=8)
    (reason,) = reasons(source(), node("trainer", method={"blocks": 2}))
    assert reason.instead == "`blocks` is a setting of method freeze."


def test_a_word_survives_what_leaves_defaults_out() -> None:
    config = TrainerConfig(method=Method.DORA.settings(rank=8))
    assert config.model_dump(mode="json", exclude_unset=True) == {"method": {"type": "dora", "rank": 8}}


def test_the_schema_tells_the_variants_apart() -> None:
    schema = TrainerConfig.model_json_schema()
    word, variants = schema["properties"]["method"]["anyOf"]
    assert schema["$defs"][word["$ref"].rpartition("/")[2]]["enum"] == list(Method)
    mapping = variants["discriminator"]["mapping"]
    assert (variants["discriminator"]["propertyName"], set(mapping)) == ("type", set(Method))
    freeze = schema["$defs"][mapping["freeze"].rpartition("/")[2]]
    assert (set(freeze["properties"]), freeze["additionalProperties"]) == ({"type", "blocks", "head"}, False)
    assert schema["properties"]["method"]["default"] == "lora"


@pytest.mark.parametrize("method", Method)
def test_what_earlier_versions_had_in_groups_is_the_same(method: Method) -> None:
    for settings in written(method):
        config = TrainerConfig(method={"type": method.value, **settings})
        assert TrainerConfig.model_validate(in_earlier_form(method, settings)) == config, settings


@pytest.mark.parametrize("method", Method)
def test_a_script_reads_the_groups_and_they_are_read_back(method: Method) -> None:
    for settings in written(method):
        config = TrainerConfig(method={"type": method.value, **settings})
        groups = in_groups(config.model_dump(mode="json"))
        assert groups["method"] == method.value
        assert TrainerConfig.model_validate(groups) == config, settings


def test_both_forms_of_a_chain_have_one_digest() -> None:
    old = chain(source(), node("trainer", method="lora_plus", lora={"rank": 8, "lora_plus_ratio": 4}))
    new = chain(source(), node("trainer", method={"type": "lora_plus", "rank": 8, "ratio": 4}))
    assert resolve(old).digest == resolve(new).digest


WRITTEN_OUT = {
    "lora": {
        "profile": "platform", "rank": 32, "alpha": 64.0, "dropout": 0.0, "target_modules": "all-linear",
        "modules_to_save": [], "layers": None, "rslora": False, "lora_plus_ratio": 16.0,
    },
    "engine": {"freeze_blocks": 2, "freeze_head": False, "oft_block_size": 32, "too_long": "drop"},
}  # fmt: skip
"""What an earlier version stored of a trainer without settings of its own."""


@pytest.mark.parametrize("method", Method)
def test_defaults_that_were_written_out_are_left_where_they_do_not_belong(method: Method) -> None:
    config = TrainerConfig.model_validate({"method": method.value, **WRITTEN_OUT})
    assert (config.method.type, config.engine.too_long) == (method, "drop")


@pytest.mark.parametrize(
    ("given", "because"),
    [
        ({"method": "full", "lora": {"rank": 8}}, "Only method lora, qlora, dora, lora_plus reads lora.rank"),
        ({"method": "oft", "lora": {"profile": "classic", "rank": 32}}, "reads lora.rank; here it would be ignored"),
        ({"engine": {"freeze_blocks": 3}}, "Only method freeze reads engine.freeze_blocks"),
        ({"method": {"type": "lora", "rank": 8}, "lora": {"rank": 16}}, "lora.rank is 16, and method.rank is 8"),
    ],
)
def test_an_earlier_setting_that_does_not_fit_is_refused(given: dict[str, Any], because: str) -> None:
    with pytest.raises(ValidationError, match=because):
        TrainerConfig.model_validate(given)


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
    said: list[str] = []
    job = {"dataset": {"path": "rows.jsonl"}, "lora": {"rank": 8}}
    plan(PlanInput(target="training-job", parameters=job), Context(load_settings(), say=said.append))
    assert said == ["lora.rank is deprecated: write method.rank."]


def test_parameters_are_laid_over_a_word() -> None:
    assert merged({"method": "dora"}, {"method": {"rank": 8}}) == {"method": {"type": "dora", "rank": 8}}
    below = {"method": {"type": "lora", "rank": 8}}
    assert merged(below, {"method": {"alpha": 4}}) == {"method": {"type": "lora", "rank": 8, "alpha": 4}}
    assert merged(below, {"method": {"type": "freeze", "blocks": 1}}) == {"method": {"type": "freeze", "blocks": 1}}
    assert merged(below, {"method": "full"}) == {"method": "full"}


def test_a_job_that_is_started_says_its_method_in_full() -> None:
    job = {"dataset": {"path": "rows.jsonl"}, "method": {"rank": 8}}
    assert asked("training-job", job).parameters["job"]["method"] == {"type": "lora", "rank": 8}


def test_words_alone_are_left_as_they_are() -> None:
    assert trainer_words({"method": "dora", "engine": {"head": "full"}}) == {
        "method": "dora",
        "engine": {"head": "full"},
    }


@pytest.mark.parametrize("backend", BackendName)
def test_every_setting_that_a_backend_limits_exists(backend: BackendName) -> None:
    facts = backend.facts
    named = {*facts.settings, *facts.sharded, *facts.default_only, *facts.whole_numbers}
    configs = [TrainerConfig(method=method.settings()) for method in Method]
    assert all(any(value_at(config, setting) is not ABSENT for config in configs) for setting in named)
