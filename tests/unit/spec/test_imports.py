"""Configs of other tools as chains: the tables, whole configs, and inputs that are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainyard.errors import InvalidInput
from trainyard.spec.axes.methods import METHOD_SETTINGS
from trainyard.spec.axes.stages import STAGE_SETTINGS, Stage
from trainyard.spec.chain import ChainSpec
from trainyard.spec.imports.conversion import Imported, find_row, import_config
from trainyard.spec.imports.data_sets import DataPlace, assemble_source, first_rows
from trainyard.spec.imports.keys import Config, KeyAnswer, KeyStatus, occurrences
from trainyard.spec.imports.tools import TOOLS, find_tool
from trainyard.spec.load.files import load_value, read_chain
from trainyard.spec.nodes import DataSourceConfig
from trainyard.spec.training import TrainerConfig, TrainingSettings

OWN = Path(__file__).parents[2] / "resources" / "imports"


def import_own(
    tool: str, overrides: dict[str, Any] | None = None, without: tuple[str, ...] = (), **keys: Any
) -> Imported:
    """The own config of a tool with some keys changed."""
    value = {**load_value(OWN / f"{tool}.yaml"), **keys}
    return import_config(value, "own", (tool, TOOLS[tool]), overrides or {}, without)


def trainer(import_result: Imported) -> dict[str, Any]:
    assert import_result.chain is not None, [(refusal.key, refusal.because) for refusal in import_result.refusals]
    return dict(import_result.value["nodes"][1]["config"])


def find_line(import_result: Imported, key: str) -> Any:
    return next(key_result for key_result in import_result.keys if key_result.key == key)


def has_setting(path: str) -> bool:
    """Whether a trainer or a data source has a setting, in one of its stages and methods at least."""
    group, _, name = path.partition(".")
    if group == "data_source":
        return name in DataSourceConfig.model_fields
    variants: dict[str, Any] = {"stage": STAGE_SETTINGS, "method": METHOD_SETTINGS}
    if group in variants:
        return name in ("", "type") or any(name in model.model_fields for model in variants[group].values())
    if group in ("eval", "rope"):  # settings that are None unless they are used
        return True
    info = TrainerConfig.model_fields.get(group)
    return info is not None and (not name or name in getattr(info.annotation, "model_fields", {}))


# The tables


@pytest.mark.parametrize("tool", TOOLS)
def test_every_row_answers_its_test_value(tool: str) -> None:
    for key, (converter, example) in TOOLS[tool].keys.items():
        answer = converter.convert(example, Config({}))
        assert isinstance(answer, KeyAnswer), key
        assert all(has_setting(path) for path in (*answer.settings, *filter(None, [converter.setting]))), key
        assert answer.do if answer.status is KeyStatus.REFUSED else answer.settings or answer.because, key


@pytest.mark.parametrize("tool", TOOLS)
def test_defaults_are_settings_of_a_trainer(tool: str) -> None:
    assert all(has_setting(row.setting) for row in TOOLS[tool].defaults)
    assert all(row.value.do for row in TOOLS[tool].defaults if isinstance(row.value, KeyAnswer))


@pytest.mark.parametrize("tool", TOOLS)
def test_every_key_of_an_own_config_has_an_answer_and_most_are_mapped(tool: str) -> None:
    import_result = import_own(tool)
    value = load_value(OWN / f"{tool}.yaml")
    assert [key.key for key in import_result.keys] == [key.written for key in occurrences(value)]
    assert import_result.refusals == ()
    assert import_result.count(KeyStatus.MAPPED) / len(import_result.keys) >= 0.8
    assert all(key.because for key in import_result.keys if key.status is KeyStatus.NOTED)


@pytest.mark.parametrize("tool", TOOLS)
def test_an_own_config_is_found_by_its_keys(tool: str) -> None:
    assert find_tool(load_value(OWN / f"{tool}.yaml"))[0] == tool


@pytest.mark.parametrize("tool", TOOLS)
def test_the_written_chain_is_read_again(tool: str) -> None:
    import_result = import_own(tool)
    spec, reasons = read_chain(import_result.value)
    assert reasons == []
    assert spec == import_result.chain
    assert isinstance(spec, ChainSpec)


# Whole configs


def test_axolotl() -> None:
    import_result = import_own("axolotl")
    assert import_result.value["nodes"][0]["config"] == {"sets": {"sft": {"path": "rows.jsonl"}}}
    assert trainer(import_result) == {
        "stage": "sft",
        "method": {"type": "lora", "rank": 4, "alpha": 8, "dropout": 0.0, "target_modules": ["q_proj", "v_proj"]},
        "base_model": "acme/small-base",
        "hyperparameters": {
            "epochs": 2, "batch_size": 2, "gradient_accumulation": 1, "max_length": 64, "schedule": "cosine",
            "warmup_ratio": 0.1, "optimizer": "adamw", "learning_rate": 0.002, "gradient_checkpointing": False,
            "weight_decay": 0.0, "seed": 7, "max_grad_norm": 1.0, "precision": "fp32",
        },
        "engine": {"batching": "packed", "attention": "sdpa", "mirror": "file:outputs/own"},
    }  # fmt: skip


def test_llamafactory() -> None:
    import_result = import_own("llamafactory")
    (source,) = import_result.value["nodes"][0]["config"]["sets"].values()
    assert source == {"path": "my_data", "include": ["pairs.*", "pairs/*"], "max_rows": 40}
    config = trainer(import_result)
    assert config["stage"] == {"type": "dpo", "beta": 0.2, "loss": "hinge"}
    assert config["method"]["target_modules"] == "all-linear"
    assert config["hyperparameters"]["save_steps"] == 500
    assert config["engine"]["template"] == "qwen3"


def test_trl() -> None:
    config = trainer(import_own("trl"))
    hyper = config["hyperparameters"]
    assert (hyper["warmup_steps"], hyper["max_steps"], hyper["optimizer"]) == (2, 20, "adafactor")
    assert hyper["precision"] == "fp32"
    assert "epochs" not in hyper


def test_unsloth_with_all_weights_has_no_rank() -> None:
    import_result = import_own("unsloth")
    config = trainer(import_result)
    assert config["method"] == "full"
    assert config["hyperparameters"]["warmup_steps"] == 5
    assert find_line(import_result, "lora.lora_r").because == "The method full does not read it, here as there."


def test_oumi() -> None:
    config = trainer(import_own("oumi"))
    assert config["hyperparameters"]["gradient_checkpointing"] is True
    assert config["method"] == {
        "type": "lora", "rank": 4, "alpha": 8, "dropout": 0.0, "target_modules": ["q_proj", "v_proj"],
    }  # fmt: skip


def test_torchtune() -> None:
    import_result = import_own("torchtune")
    config = trainer(import_result)
    assert config["base_model"] == "/tmp/base"
    assert config["method"]["target_modules"] == ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert config["hyperparameters"]["max_steps"] == 100
    assert config["hyperparameters"]["warmup_steps"] == 10
    assert config["engine"]["head"] == "chunked"


@pytest.mark.parametrize(
    ("tool", "keys", "expected"),
    [
        ("axolotl", {"adapter": "qlora", "load_in_4bit": True}, {"method": "qlora"}),
        ("axolotl", {"adapter": "lora", "load_in_8bit": True}, {"method": "qlora", "quantization": "int8"}),
        ("axolotl", {"adapter": None, "lora_r": None}, {"method": "full"}),
        ("axolotl", {"peft_use_dora": True}, {"method": "dora"}),
        ("axolotl", {"rl": "simpo", "simpo_gamma": 0.7, "cpo_alpha": 0.0}, {"stage": {"type": "dpo", "beta": 0.1,
            "gamma": 0.7, "loss": "simpo"}}),
        ("axolotl", {"rl": "kto"}, {"stage": "kto"}),
        ("axolotl", {"reward_model": True}, {"stage": "reward"}),
        ("llamafactory", {"stage": "pt", "pref_beta": None, "pref_loss": None}, {"stage": "cpt"}),
        ("llamafactory", {"stage": "kto", "pref_loss": None}, {"stage": {"type": "kto", "beta": 0.2,
            "desirable_weight": 1.0, "undesirable_weight": 1.0}}),
        ("llamafactory", {"finetuning_type": "freeze", "freeze_trainable_layers": 3}, {"method": {"type": "freeze",
            "blocks": 3}}),
        ("llamafactory", {"quantization_bit": 4}, {"method": "qlora"}),
        ("trl", {"desirable_weight": 2.0}, {"stage": {"type": "kto", "desirable_weight": 2.0,
            "undesirable_weight": 1.0, "beta": 0.1}}),
        ("trl", {"use_peft": False}, {"method": "full"}),
    ],
)  # fmt: skip
def test_stages_and_methods(tool: str, keys: dict[str, Any], expected: dict[str, Any]) -> None:
    config = trainer(import_own(tool, **keys))
    for name, value in expected.items():
        value_in_config = (
            config[name] if isinstance(value, dict) or isinstance(config[name], str) else config[name]["type"]
        )
        assert value_in_config == value


def test_set_wins_and_answers_a_refused_key() -> None:
    keys = {"rl": "grpo", "trl": {"reward_funcs": ["module.reward"], "num_generations": 4, "max_completion_length": 64}}
    refused = import_own("axolotl", **keys)
    assert [refusal.key for refusal in refused.refusals] == ["trl.reward_funcs"]
    rewards = [{"type": "exact_match"}]
    import_result = import_own("axolotl", {"stage": {"rewards": rewards}, "base_model": "here"}, **keys)
    assert find_line(import_result, "trl.reward_funcs").because == "Given by --set."
    config = trainer(import_result)
    assert config["stage"]["rewards"] == rewards
    assert (config["base_model"], config["backend"]) == ("here", "trl")
    assert "engine" not in config


def test_without_leaves_a_key_out() -> None:
    keys = {"use_eaft": True, "plugins": ["axolotl.integrations.spectrum.SpectrumPlugin"]}
    assert {refusal.key for refusal in import_own("axolotl", **keys).refusals} == {"use_eaft", "plugins"}
    import_result = import_own("axolotl", without=("use_eaft", "plugins"), **keys)
    assert import_result.chain is not None
    assert all(key.key not in keys for key in import_result.keys)


OPTIONS: list[tuple[str, dict[str, Any], str, Any]] = [
    ("axolotl", {"neftune_noise_alpha": 5}, "stage", {"type": "sft", "neftune_alpha": 5}),
    ("axolotl", {"peft_init_lora_weights": "pissa_niter_16"}, "method.init", "pissa_niter_16"),
    ("axolotl", {"load_in_4bit": True, "peft": {"loftq_config": {"loftq_bits": 4}}}, "method.init", "loftq"),
    ("axolotl", {"adapter": None, "lisa_n_layers": 4, "lisa_step_interval": 20}, "method",
     {"type": "freeze", "blocks": 4, "interval": 20}),
    ("axolotl", {"adapter": None, "tokens": ["<a>", "<b>"]}, "added_tokens", ["<a>", "<b>"]),
    ("llamafactory", {"stage": "sft", "pissa_init": True, "pissa_iter": -1}, "method.init", "pissa"),
    ("llamafactory", {"stage": "sft", "pissa_init": True}, "method.init", "pissa_niter_16"),
    ("llamafactory", {"stage": "sft", "mask_history": True}, "stage.turns", "last"),
    ("llamafactory", {"finetuning_type": "full", "resize_vocab": True, "add_tokens": "<a>,<b>"}, "added_tokens",
     ["<a>", "<b>"]),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "keys", "setting", "value"), OPTIONS)
def test_options_of_a_training_are_mapped(tool: str, keys: dict[str, Any], setting: str, value: Any) -> None:
    import_result = import_own(tool, **keys)
    config: Any = trainer(import_result)
    for name in setting.split("."):
        config = config[name]
    assert config == value
    assert {find_line(import_result, key).status for key in keys if not isinstance(keys[key], dict)} == {
        KeyStatus.MAPPED
    }


def test_noise_that_another_stage_would_add_is_noted_as_such() -> None:
    import_result = import_own("llamafactory", neftune_noise_alpha=5)
    line = find_line(import_result, "neftune_noise_alpha")
    assert (line.status, line.because) == (KeyStatus.NOTED, "Noise on the embeddings is a setting of stage sft.")


def test_positions_of_oumi() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    own_config = load_value(OWN / "oumi.yaml")
    model = {**own_config["model"], "model_kwargs": {"rope_scaling": rope}}
    training = {key: value for key, value in own_config["training"].items() if key != "use_peft"}
    import_result = import_own("oumi", model=model, training={**training, "use_peft": False})
    assert trainer(import_result)["rope"] == {"type": "yarn", "factor": 4.0, "original_length": 32768}


def test_without_a_key_that_is_not_there() -> None:
    with pytest.raises(InvalidInput, match="E-IMPORT-KEY: There is no key 'lora_x'"):
        import_own("axolotl", without=("lora_x",))


def test_processes_make_a_strategy() -> None:
    keys = {"fsdp": ["full_shard"], "fsdp_config": {"reshard_after_forward": True, "offload_params": True}}
    alone = import_own("axolotl", **keys)
    assert find_line(alone, "fsdp").status is KeyStatus.NOTED
    assert "launch" not in trainer(alone)
    shared = import_own("axolotl", {"launch": {"processes": 4}}, **keys)
    assert trainer(shared)["launch"] == {"strategy": "fsdp_hybrid", "processes": 4}
    assert find_line(shared, "fsdp_config.reshard_after_forward").status is KeyStatus.MAPPED
    assert find_line(shared, "fsdp_config.offload_params").status is KeyStatus.NOTED


def test_evaluation_is_mapped_where_a_trainer_has_it() -> None:
    import_result = import_own("axolotl", val_set_size=0.1, early_stopping_patience=3)
    if "eval" in TrainingSettings.model_fields:
        assert trainer(import_result)["eval"] == {"share": 0.1, "patience": 3}
    else:
        assert find_line(import_result, "val_set_size").status is KeyStatus.NOTED


# Data


@pytest.mark.parametrize(
    ("data_places", "expected"),
    [
        ([DataPlace("./rows/a.jsonl", "alpaca")], {"path": "rows/a.jsonl", "format": "alpaca"}),
        (
            [DataPlace("https://example.org/a.jsonl", "alpaca")],
            {"url": "https://example.org/a.jsonl", "format": "alpaca"},
        ),
        (
            [DataPlace("a/x.jsonl", "alpaca"), DataPlace("a/b/y.jsonl", "alpaca", max_rows=5)],
            {
                "mix": {
                    "sets": {
                        "x-jsonl": {"path": "a/x.jsonl", "format": "alpaca"},
                        "y-jsonl": {"path": "a/b/y.jsonl", "format": "alpaca", "max_rows": 5},
                    },
                    "exhausted": "continue",
                    "port": "sft",
                }
            },
        ),
        (
            [DataPlace("a/x.jsonl", "alpaca"), DataPlace("a/b/y.jsonl", "alpaca")],
            {"path": "a", "include": ["x.jsonl", "b/y.jsonl"], "format": "alpaca"},
        ),
        ([DataPlace("d", "alpaca", ("x.*",), local=True)], {"path": "d", "include": ["x.*"], "format": "alpaca"}),
        ([DataPlace("d", "auto", local=True)], {"sets": {"sft": {"path": "d"}}}),
    ],
)
def test_places(data_places: list[DataPlace], expected: dict[str, Any]) -> None:
    assert assemble_source(data_places, Stage.SFT, {}) == expected


def test_a_data_set_of_the_hub_is_read_there() -> None:
    alpaca = {"data_source": {"format": "alpaca"}}
    import_result = import_own(
        "axolotl", alpaca, datasets=[{"path": "acme/rows", "type": "alpaca", "split": "train[:50]"}]
    )
    source = import_result.value["nodes"][0]["config"]
    assert source == {"hub": {"name": "acme/rows"}, "max_rows": 50, "format": "alpaca"}
    assert import_result.notes == ()
    other = import_own("axolotl", alpaca, datasets=[{"path": "acme/rows", "type": "alpaca", "split": "test"}])
    assert other.value["nodes"][0]["config"]["hub"] == {"name": "acme/rows", "split": "test"}
    with_files = import_own(
        "axolotl", alpaca, datasets=[{"path": "acme/rows", "type": "alpaca", "data_files": ["a.jsonl"]}]
    )
    assert with_files.value["nodes"][0]["config"]["path"] == "data/acme/rows"
    assert any(
        "hf download --repo-type dataset acme/rows --local-dir data/acme/rows" in note for note in with_files.notes
    )
    answered = import_own(
        "axolotl",
        {"data_source": {"path": "mine.jsonl", "format": "alpaca"}},
        datasets=[{"path": "acme/rows", "type": "alpaca"}],
    )
    assert answered.value["nodes"][0]["config"] == {"path": "mine.jsonl", "format": "alpaca"}
    assert answered.notes == ()


def test_first_rows() -> None:
    assert [first_rows(split) for split in ("train[:100]", "train[:1%]", "train", None)] == [100, None, None, None]


def test_a_group_answers_for_its_keys() -> None:
    table = TOOLS["oumi"].keys
    assert find_row("deepspeed.offload_optimizer.device", table) is table["deepspeed.*"][0]
    assert find_row("nothing.of.this", table) is None


# Wrong inputs


def test_a_tracker_says_what_of_its_project_is_kept() -> None:
    for project, trackers, because in ((None, None, "No tracker."), ("mine", ["wandb"], "'mine' is not kept")):
        import_result = import_own("axolotl", wandb_project=project)
        assert find_line(import_result, "wandb_project").because.startswith(because)
        assert trainer(import_result).get("engine", {}).get("trackers") == trackers


def test_two_trackers_are_both_kept() -> None:
    assert trainer(import_own("axolotl", wandb_project="mine", use_tensorboard=True))["engine"]["trackers"] == [
        "wandb", "tensorboard",
    ]  # fmt: skip


def test_a_config_of_no_tool() -> None:
    for value in ({"learning_rate": 1e-4}, {}, [1], None, "text"):
        with pytest.raises(InvalidInput, match="E-IMPORT-TOOL: This is not a config of a tool"):
            find_tool(value)


def test_a_config_of_two_tools() -> None:
    with pytest.raises(InvalidInput, match="--from llamafactory or --from trl"):
        find_tool({"model_name_or_path": "x", "learning_rate": 1e-4})
    assert find_tool({"model_name_or_path": "x"}, "trl")[0] == "trl"


@pytest.mark.parametrize(
    ("tool", "value", "match"),
    [
        ("llamafactory", {"model_name_or_path": "x", "export_dir": "y"}, "merging and exporting of LLaMA-Factory"),
        ("oumi", {"model": {"model_name": "x"}, "engine": "VLLM"}, "an inference config of Oumi"),
        ("torchtune", {"model": {"_component_": "x"}, "tasks": ["mmlu"]}, "an evaluation config of torchtune"),
    ],
)
def test_a_config_that_is_no_training(tool: str, value: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        import_config(value, "x", (tool, TOOLS[tool]), {})


@pytest.mark.parametrize(
    ("tool", "keys", "code", "because"),
    [
        ("axolotl", {"lora_rr": 8}, "E-IMPORT-KEY", "Did you mean 'lora_r'?"),
        ("axolotl", {"learning_rate": "fast"}, "E-IMPORT-VALUE", "'fast' is not a number."),
        ("axolotl", {"learning_rate": 5.0}, "E-IMPORT-VALUE", "5.0 does not fit"),
        ("axolotl", {"micro_batch_size": 0}, "E-IMPORT-VALUE", "0 does not fit"),
        ("axolotl", {"lora_r": 1000}, "E-IMPORT-VALUE", "1000 does not fit"),
        ("axolotl", {"sample_packing": "perhaps"}, "E-IMPORT-VALUE", "'perhaps' is not true or false."),
        ("axolotl", {"optimizer": "lomo"}, "E-IMPORT-KEY", "There is no 'lomo' here."),
        ("axolotl", {"optimizer": ["adamw"]}, "E-IMPORT-VALUE", "is not a word."),
        ("axolotl", {"datasets": "rows"}, "E-IMPORT-KEY", "It is not a key"),
        ("trl", {"seed": "seven"}, "E-IMPORT-VALUE", "'seven' is not a whole number."),
        ("trl", {"max_steps": 1.5}, "E-IMPORT-VALUE", "1.5 is not a whole number."),
        ("oumi", {"training": {"trainer_type": "TRL_GOLD"}}, "E-IMPORT-KEY", "Distillation from a teacher"),
    ],
)
def test_wrong_keys_and_values(tool: str, keys: dict[str, Any], code: str, because: str) -> None:
    import_result = import_own(tool, **keys)
    assert import_result.chain is None
    refusals = [refusal for refusal in import_result.refusals if because in refusal.because]
    assert [refusal.code for refusal in refusals] == [code], [
        (refusal.key, refusal.because) for refusal in import_result.refusals
    ]
    assert all(refusal.do for refusal in import_result.refusals)


def test_an_override_that_is_no_setting() -> None:
    import_result = import_own("axolotl", {"hyperparameters": {"learning": 1}})
    assert [(refusal.code, refusal.key) for refusal in import_result.refusals] == [
        ("E-SPEC-KEY", "config.hyperparameters.learning")
    ]


def test_two_data_sets_of_the_hub_are_one_mixture() -> None:
    sets = [
        {"path": "acme/rows", "type": "chat_template"},
        {"path": "acme/chats", "type": "chat_template", "split": "test"},
    ]
    import_result = import_own(
        "axolotl", datasets=[*sets, {"path": "acme/rows", "type": "chat_template", "split": "train[:50]"}]
    )
    assert import_result.chain is not None, import_result.refusals
    source = import_result.value["nodes"][0]["config"]
    assert set(source) == {"mix"}
    assert source["mix"]["sets"]["rows"] == {"hub": {"name": "acme/rows"}}
    assert source["mix"]["sets"]["rows-2"]["max_rows"] == 50
    assert source["mix"]["sets"]["chats"]["hub"] == {"name": "acme/chats", "split": "test"}
    assert (source["mix"]["exhausted"], source["mix"]["port"]) == ("continue", "sft")
    assert not any("hf download" in note for note in import_result.notes)
