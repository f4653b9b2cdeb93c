"""Keys that a config leaves out: an imported chain has the tool's own defaults, extracted from the installed tools."""

from __future__ import annotations

import dataclasses
import inspect
import os
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
import trl
from hypothesis import given
from hypothesis import strategies as st
from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as PEFT_TARGETS

from benchmarks.import_defaults import DECIDING, FACTS, VARIABLE, VERSIONS, compare_wheels
from trainyard.spec.imports.conversion import Imported, find_row, import_config
from trainyard.spec.imports.defaults import FAMILY_BY_NAME, TARGETS_OF_FAMILY
from trainyard.spec.imports.keys import Config, KeyStatus
from trainyard.spec.imports.tools import TOOLS

WHEELS = os.environ.get(VARIABLE)
CHAT = {"path": "rows.jsonl", "type": "chat_template"}
LEAST: dict[str, dict[str, Any]] = {
    "axolotl": {
        "base_model": "acme/base", "datasets": [CHAT], "adapter": "lora", "lora_r": 16, "lora_alpha": 32,
        "lora_target_linear": True, "learning_rate": 2e-4,
    },
    "llamafactory": {
        "model_name_or_path": "acme/base", "stage": "sft", "finetuning_type": "lora", "dataset": "rows.jsonl",
        "template": "qwen3",
    },
    "trl": {
        "model_name_or_path": "Qwen/Qwen3-0.6B", "dataset_name": "rows.jsonl", "use_peft": True,
        "completion_only_loss": True,
    },
    "unsloth": {"model": "acme/base", "data": {"local_dataset": ["rows.jsonl"]},
                "training": {"train_on_completions": True, "load_in_4bit": False}},
    "oumi": {
        "model": {"model_name": "Qwen/Qwen3-0.6B"},
        "data": {"train": {"datasets": [{"dataset_name": "text_sft_jsonl", "dataset_path": "rows.jsonl"}],
                           "collator_name": "text_completions_only_with_padding"}},
        "training": {"trainer_type": "TRL_SFT", "use_peft": True},
    },
    "torchtune": {
        "model": {"_component_": "torchtune.models.qwen2_5.lora_qwen2_5_0_5b", "lora_attn_modules": ["q_proj"]},
        "tokenizer": {"_component_": "torchtune.models.qwen2_5.qwen2_5_tokenizer", "max_seq_len": 64},
        "checkpointer": {"_component_": "torchtune.training.FullModelHFCheckpointer", "checkpoint_dir": "/tmp/base"},
        "dataset": {"_component_": "torchtune.datasets.chat_dataset", "source": "json", "data_files": "rows.jsonl"},
        "optimizer": {"_component_": "torch.optim.AdamW"}, "dtype": "bf16", "epochs": 1, "batch_size": 2,
        "gradient_accumulation_steps": 1, "loss": {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"},
    },
}  # fmt: skip
"""For each tool a config with nothing but what it needs."""


def import_least(tool: str, value: dict[str, Any] | None = None, overrides: dict[str, Any] | None = None,
             family: str | None = None) -> Imported:  # fmt: skip
    return import_config(value or LEAST[tool], "least", (tool, TOOLS[tool]), overrides or {}, family=family)


def setting_at(import_result: Imported, setting: str) -> Any:
    assert import_result.chain is not None, [(refusal.key, refusal.because) for refusal in import_result.refusals]
    value = import_result.value["nodes"][1]["config"]
    for part in setting.split("."):
        value = value[part] if isinstance(value, dict) else None
    return value


def in_our_words(tool: str, key: str, value: Any) -> dict[str, Any]:
    """What a converter makes of a default that was written into the config."""
    row = find_row(key, TOOLS[tool].keys)
    assert row is not None, key
    return dict(row.convert(getattr(value, "value", value), Config({})).settings)


def assert_written(tool: str, import_result: Imported, key: str, value: Any) -> None:
    """Check that a chain whose config leaves a key out has what the key with the tool's default would have given."""
    for setting, expected in in_our_words(tool, key, value).items():
        if setting == "hyperparameters.warmup_steps" and expected == 0:
            assert setting_at(import_result, "hyperparameters.warmup_ratio") == 0
        else:
            assert setting_at(import_result, setting) == expected, (key, value)


def list_defaults(settings: Any) -> dict[str, Any]:
    """The fields of a dataclass with their defaults; those that a factory makes, made."""
    factory_values = {
        field.name: field.default_factory()
        for field in dataclasses.fields(settings)
        if field.default_factory is not dataclasses.MISSING
    }
    return factory_values | {
        field.name: field.default for field in dataclasses.fields(settings) if field.default is not dataclasses.MISSING
    }


# The matrix


@pytest.mark.parametrize("tool", FACTS)
def test_what_a_config_leaves_out_is_the_default_of_the_tool(tool: str) -> None:
    import_result = import_least(tool)
    for fact in FACTS[tool]:
        assert_written(tool, import_result, fact.key, fact.value)


@pytest.mark.skipif(not WHEELS, reason=f"{VARIABLE} names no folder with the tools' wheels")
def test_the_defaults_are_those_of_the_tools_packages() -> None:
    compared = list(compare_wheels(Path(str(WHEELS))))
    assert len(compared) >= sum(len(FACTS[tool]) + len(DECIDING[tool]) for tool in VERSIONS)
    assert [(tool, fact.key, fact.value, default) for tool, fact, default in compared if default != fact.value] == []


ARGUMENTS = (
    "learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs",
    "lr_scheduler_type", "warmup_steps", "optim", "weight_decay", "max_grad_norm", "seed",
)  # fmt: skip
OF_STAGE: dict[str, tuple[type, dict[str, Any], tuple[str, ...]]] = {
    "sft": (trl.SFTConfig, {}, ("max_length", "packing", "gradient_checkpointing")),
    "dpo": (trl.DPOConfig, {"precompute_ref_log_probs": False},
            ("max_length", "beta", "label_smoothing", "gradient_checkpointing")),
    "reward": (trl.RewardConfig, {"center_rewards_coefficient": None}, ("max_length", "gradient_checkpointing")),
    "kto": (trl.KTOConfig, {"desirable_weight": 1.0}, ("max_length", "beta", "undesirable_weight")),
    "grpo": (trl.GRPOConfig, {"num_generations": 8}, (
        "beta", "max_completion_length", "temperature", "num_iterations", "epsilon", "scale_rewards", "loss_type",
    )),
}  # fmt: skip
"""Stage of TRL -> its arguments, keys by which it is known, and the keys that it has besides `ARGUMENTS`."""


@pytest.mark.parametrize("stage", OF_STAGE)
def test_trl_has_its_own_defaults_in_each_stage(stage: str) -> None:
    config_class, marks, keys = OF_STAGE[stage]
    defaults = list_defaults(config_class)
    rewards = {"stage": {"rewards": [{"type": "exact_match"}]}} if stage == "grpo" else {}
    import_result = import_least("trl", LEAST["trl"] | marks, rewards)
    assert setting_at(import_result, "stage") == stage or setting_at(import_result, "stage.type") == stage
    for key in (*ARGUMENTS, *keys):
        assert_written("trl", import_result, key, defaults[key])


def test_trl_adapts_as_its_model_config_says() -> None:
    defaults = list_defaults(trl.ModelConfig)
    for key in ("lora_r", "lora_alpha", "lora_dropout"):
        assert_written("trl", import_least("trl"), key, defaults[key])
    assert defaults["use_peft"] is False
    whole = {key: value for key, value in LEAST["trl"].items() if key != "use_peft"}
    assert setting_at(import_least("trl", whole), "method") == "full"


def test_llamafactory_trains_with_the_arguments_of_transformers() -> None:
    defaults = list_defaults(transformers.TrainingArguments)
    for key in ARGUMENTS:
        assert_written("llamafactory", import_least("llamafactory"), key, defaults[key])


def test_peft_chooses_modules_by_the_family_of_the_base() -> None:
    assert {name: PEFT_TARGETS[name] for name in TARGETS_OF_FAMILY} == {
        name: list(modules) for name, modules in TARGETS_OF_FAMILY.items()
    }
    assert {family for _, family in FAMILY_BY_NAME} <= TARGETS_OF_FAMILY.keys()
    fields = list_defaults(peft.LoraConfig)
    assert (fields["r"], fields["lora_alpha"], fields["lora_dropout"]) == (8, 8, 0.0)


@pytest.mark.parametrize(
    ("base", "family", "expected"),
    [
        ("Qwen/Qwen3-0.6B", None, ["q_proj", "v_proj"]),
        ("meta-llama/Llama-3.2-1B", None, ["q_proj", "v_proj"]),
        ("openai-community/gpt2", None, ["c_attn"]),
        ("acme/base", "phi", ["q_proj", "v_proj", "fc1", "fc2"]),
        ("acme/base", None, None),
        ("Qwen/Qwen3-30B-A3B", None, None),
        ("Qwen/Qwen2.5-VL-7B-Instruct", None, None),
        ("meta-llama/Llama-3.2-11B-Vision", None, None),
    ],
)
def test_modules_that_a_config_leaves_out(base: str, family: str | None, expected: list[str] | None) -> None:
    import_result = import_least("trl", LEAST["trl"] | {"model_name_or_path": base}, family=family)
    if expected is None:
        assert [refusal.key for refusal in import_result.refusals] == ["lora_target_modules"]
    else:
        assert setting_at(import_result, "method.target_modules") == expected


@given(rank=st.integers(1, 256))
def test_llamafactory_takes_twice_the_rank_as_alpha(rank: int) -> None:
    import_result = import_least("llamafactory", LEAST["llamafactory"] | {"lora_rank": rank})
    assert setting_at(import_result, "method.alpha") == 2 * rank


def test_torchtune_optimises_as_torch_does() -> None:
    parameters = inspect.signature(torch.optim.AdamW).parameters
    import_result = import_least("torchtune")
    assert setting_at(import_result, "hyperparameters.learning_rate") == parameters["lr"].default
    assert setting_at(import_result, "hyperparameters.weight_decay") == parameters["weight_decay"].default
    assert setting_at(import_result, "hyperparameters.max_grad_norm") == 1e6
    strange = LEAST["torchtune"] | {"optimizer": {"_component_": "torch.optim.RAdam"}}
    assert {"optimizer.lr", "optimizer.weight_decay"} <= {
        refusal.key for refusal in import_least("torchtune", strange).refusals
    }


def test_the_second_form_of_llamafactory_has_other_defaults() -> None:
    value = {"model": "acme/base", "train_dataset": "rows.jsonl", "template": "qwen3",
             "peft_config": {"name": "lora"}}  # fmt: skip
    import_result = import_least("llamafactory", value)
    assert [setting_at(import_result, f"method.{name}") for name in ("rank", "alpha", "dropout")] == [8, 16, 0.05]
    assert setting_at(import_result, "hyperparameters.learning_rate") == 1e-4
    assert setting_at(import_result, "hyperparameters.batch_size") == 1


def test_what_is_left_out_is_printed() -> None:
    import_result = import_least("llamafactory", LEAST["llamafactory"] | {"lora_rank": 64})
    line = next(default for default in import_result.defaults if default.key == "lora_alpha")
    assert (line.value, line.status, line.setting) == (128, KeyStatus.DEFAULT, "method.alpha")
    assert all(default.status is KeyStatus.DEFAULT and default.because for default in import_result.defaults)
    assert not {default.setting for default in import_result.defaults} & {"stage.beta", "method.blocks"}


def test_axolotl_warms_up_for_three_percent_and_at_most_100_steps() -> None:
    for steps, expected in ((10, 0), (1000, 30), (9000, 100)):
        import_result = import_least("axolotl", LEAST["axolotl"] | {"max_steps": steps})
        assert setting_at(import_result, "hyperparameters.warmup_steps") == expected
    assert setting_at(import_least("axolotl"), "hyperparameters.warmup_ratio") == 0.03


# What cannot be reproduced


def remove_key(value: dict[str, Any], key: str) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    return {k: remove_key(v, rest) if rest and k == first else v for k, v in value.items() if rest or k != first}


@pytest.mark.parametrize(
    ("tool", "key", "answer"),
    [
        ("axolotl", "learning_rate", {"hyperparameters": {"learning_rate": 1e-4}}),
        ("axolotl", "lora_r", {"method": {"rank": 8}}),
        ("axolotl", "lora_alpha", {"method": {"alpha": 8}}),
        ("axolotl", "lora_target_linear", {"method": {"target_modules": "all-linear"}}),
        ("unsloth", "training.train_on_completions", {"stage": "sft"}),
        ("oumi", "data.train.collator_name", {"stage": "sft"}),
        ("torchtune", "tokenizer.max_seq_len", {"hyperparameters": {"max_length": 64}}),
        ("torchtune", "model.lora_attn_modules", {"method": {"target_modules": "all-linear"}}),
        ("torchtune", "epochs", {"hyperparameters": {"epochs": 1}}),
        ("torchtune", "dtype", {"hyperparameters": {"precision": "auto"}}),
    ],
)
def test_a_key_whose_default_a_chain_does_not_have_is_refused_until_it_is_given(
    tool: str, key: str, answer: dict[str, Any]
) -> None:
    import_result = import_least(tool, remove_key(LEAST[tool], key))
    assert [(refusal.key, refusal.code) for refusal in import_result.refusals] == [(key, "E-IMPORT-KEY")]
    assert all(refusal.do and refusal.because.startswith("Left out.") for refusal in import_result.refusals)
    assert import_least(tool, remove_key(LEAST[tool], key), answer).chain is not None


def test_trl_learns_prompts_unless_it_is_told_not_to() -> None:
    silent = remove_key(LEAST["trl"], "completion_only_loss")
    assert [refusal.key for refusal in import_least("trl", silent).refusals] == ["assistant_only_loss"]
    for value, overrides in (
        (silent | {"assistant_only_loss": True}, {}),
        (silent, {"stage": "sft"}),
        (silent | {"beta": 0.1}, {}),
    ):
        assert import_least("trl", value, overrides).chain is not None


def test_unsloth_trains_on_a_base_of_four_bits_where_nothing_is_said() -> None:
    value = LEAST["unsloth"] | {"training": {"train_on_completions": True}}
    assert setting_at(import_least("unsloth", value), "method.type") == "qlora"


OTHERWISE: list[tuple[str, dict[str, Any]]] = [
    ("axolotl", {"train_on_inputs": True}),
    ("axolotl", {"datasets": [{"path": "rows.jsonl", "type": "alpaca"}]}),
    ("axolotl", {"datasets": [{"path": "rows.jsonl", "type": {"field_instruction": "question", "format": "x"}}]}),
    ("axolotl", {"datasets": [CHAT | {"roles_to_train": ["user"]}]}),
    ("axolotl", {"datasets": [CHAT | {"split": "train[10%:20%]"}]}),
    ("axolotl", {"cosine_min_lr_ratio": 0.1}),
    ("axolotl", {"adam_beta2": 0.95}),
    ("axolotl", {"chat_template": "falcon_h1"}),
    ("axolotl", {"tokenizer_config": "acme/other"}),
    ("llamafactory", {"template": "default"}),
    ("llamafactory", {"lr_scheduler_kwargs": {"min_lr": 1e-6}}),
    ("llamafactory", {"lr_scheduler_type": "cosine_with_min_lr"}),
    ("llamafactory", {"model_revision": "v2"}),
    ("trl", {"loss_type": "dft"}),
    ("trl", {"packing_strategy": "wrapped"}),
    ("trl", {"router_aux_loss_coef": 0.01}),
    ("trl", {"lora_target_modules": "model.layers.[0-3].*"}),
    ("unsloth", {"data": {"local_dataset": ["rows.jsonl"], "format_type": "alpaca"}}),
    ("torchtune", {"shuffle": False}),
]


@pytest.mark.parametrize(("tool", "keys"), OTHERWISE)
def test_what_trains_something_else_is_refused(tool: str, keys: dict[str, Any]) -> None:
    import_result = import_least(tool, LEAST[tool] | keys)
    assert import_result.chain is None
    assert len(import_result.refusals) == len({refusal.key for refusal in import_result.refusals})
    assert all(refusal.do for refusal in import_result.refusals)


@pytest.mark.parametrize("name", ["alpaca_dataset", "alpaca_cleaned_dataset", "grammar_dataset", "samsum_dataset"])
def test_a_prompt_text_of_torchtune_is_refused_until_another_is_wanted(name: str) -> None:
    value = LEAST["torchtune"] | {"dataset": {"_component_": f"torchtune.datasets.{name}", "train_on_input": False}}
    assert [refusal.key for refusal in import_least("torchtune", value).refusals] == ["dataset._component_"]
    assert import_least("torchtune", value, {"data_source": {"format": "auto"}}).chain is not None
    learned = LEAST["torchtune"] | {"dataset": {"_component_": "torchtune.datasets.alpaca_dataset"}}
    keys = [refusal.key for refusal in import_least("torchtune", learned).refusals]
    assert sorted(keys) == ["dataset._component_", "dataset.train_on_input"]


def test_a_part_of_a_data_set_of_the_hub_stays_named() -> None:
    import_result = import_least(
        "axolotl", LEAST["axolotl"] | {"datasets": [CHAT | {"path": "acme/rows", "name": "en"}]}
    )
    assert import_result.value["nodes"][0]["config"] == {
        "sets": {"sft": {"hub": {"name": "acme/rows", "config": "en"}}}
    }  # fmt: skip
