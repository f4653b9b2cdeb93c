"""The refused combinations of a trainer: settings that exclude each other, adapters and controls."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.spec.chains import get_row_name, list_row_names, node, reasons, source
from tests.unit.spec.test_refusals import run_names


def native(**config: Any) -> list[str]:
    """What a trainer of the default backend is refused for."""
    refusal_names = list_row_names(source(), node("trainer", **config))
    assert refusal_names == list_row_names(source(), node("trainer", backend="native", **config))
    return refusal_names


def trl(**config: Any) -> list[str]:
    return list_row_names(source(), node("trainer", backend="trl", **config))


EXACT = {"rewards": [{"type": "exact_match"}]}
"""Rollouts with one reward."""
DRAWING: dict[str, Any] = {"backend": "trl", "stage": "grpo", "hyperparameters": {"batch_size": 8}}
"""A trainer whose steps are whole groups of the usual size."""


def drawing(**settings: Any) -> dict[str, Any]:
    return {**DRAWING, "stage": {"type": "grpo", **EXACT, **settings}}


def test_trl_carries_out_grpo_with_rewards_and_whole_groups() -> None:
    assert trl(stage={"type": "grpo", **EXACT}, hyperparameters={"batch_size": 8}) == []
    assert trl(method="grpo", stage={"type": "grpo", **EXACT, "num_generations": 2}) == []
    assert trl(stage="grpo") == ["grpo-reward"]
    assert trl(stage={"type": "grpo", **EXACT}) == []
    assert trl(stage={"type": "grpo", **EXACT}, hyperparameters={"batch_size": 6}) == ["grpo-batch"]
    lora = {"target_modules": ["q_proj", "lm_head"]}
    assert trl(stage={"type": "grpo", **EXACT, "num_generations": 4}, method={"type": "lora", **lora}) == [
        "backend-setting"
    ]


def test_epsilon_is_taken_where_several_steps_learn_from_one_drawing() -> None:
    assert reasons(source(), node("trainer", **drawing(epsilon=0.1, num_iterations=2))) == []
    assert reasons(source(), node("trainer", **drawing(epsilon=0.2))) == []


@pytest.mark.parametrize(
    ("rollouts", "message"),
    [
        ({"rewards": []}, "R-REWARD"),
        ({}, "such as `stage: {type: grpo, rewards: [{type: exact_match}]}`"),
        ({**EXACT, "num_generations": 1}, "at least 2"),
        ({**EXACT, "temperature": 0}, "above 0"),
        ({**EXACT, "loss": "vespo"}, "Write one of: grpo, dr_grpo, dapo, bnpo"),
        ({"rewards": [{"type": "length", "target_tokens": 3, "max_tokens": 3}]}, "either target_tokens or max_tokens"),
        ({"rewards": [{"type": "regex", "pattern": "("}]}, "unclosed group"),
        ({"rewards": [{"type": "regex", "pattern": r"(a)\1"}]}, "backreferences are not supported"),
        ({"rewards": [{"type": "regex", "pattern": "(?:" * 40 + "a" + "){1,9}" * 40}]}, "exceeds size limit"),
        ({"rewards": [{"type": "regex", "pattern": "a" * 513}]}, "at most 512 characters"),
        ({"rewards": [{"type": "code", "path": "reward.py"}]}, "Use exact_match, contains, text_similarity"),
    ],
)
def test_rollouts_that_cannot_be_are_told(rollouts: dict[str, Any], message: str) -> None:
    (reason,) = reasons(source(), node("trainer", **{**DRAWING, "stage": {"type": "grpo", **rollouts}}))
    assert message in reason.line()


@pytest.mark.parametrize("stage", ["sft", "reward", "dpo", "kto"])
@pytest.mark.parametrize("method", ["full", "lora", "qlora", "dora", "lora_plus", "oft", "freeze"])
def test_the_native_engine_takes_every_stage_with_every_method(stage: str, method: str) -> None:
    assert native(stage=stage, method=method) == []
    assert native(stage=stage, method=method, hyperparameters={"gradient_checkpointing": True}) == []
    assert list_row_names(source("docs"), node("trainer", stage="cpt", method=method)) == []


@pytest.mark.parametrize("schedule", ["linear", "wsd", "reduce_on_plateau", "one_cycle", "inverse_sqrt"])
def test_a_schedule_free_optimizer_takes_constant_schedules_alone(schedule: str) -> None:
    assert native(hyperparameters={"optimizer": "schedule_free_adamw", "schedule": schedule}) == ["schedule-free"]


@pytest.mark.parametrize("method", ["qlora", "dora", "lora_plus", "oft"])
def test_galore_needs_whole_weights(method: str) -> None:
    assert native(method=method, hyperparameters={"optimizer": "galore"}) == ["galore-method"]


@pytest.mark.parametrize("name", ["lomo", "AdaLomo", "galore_adamw_layerwise", "sophia"])
def test_an_optimizer_without_a_step_of_its_own_is_refused_with_the_reason(name: str) -> None:
    (reason,) = reasons(source(), node("trainer", hyperparameters={"optimizer": name}))
    assert (get_row_name(reason), reason.field) == ("E-SPEC-VALUE", "config.hyperparameters.optimizer")
    assert "backward pass" in reason.because
    assert reason.instead == "Use adafactor or adamw_8bit, which save memory too."


def test_a_script_of_your_own_is_judged_at_run_only() -> None:
    settings = {"stage": "ppo", "method": "oft", "device": "mps", "launch": {"script": "mine"}}
    nodes = source(), node("trainer", backend="script", **settings)
    assert list_row_names(*nodes) == []
    assert "script-off" in run_names(*nodes)
    assert "backend-setting" in list_row_names(source(), node("trainer", backend="script", stage="ppo"))


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "mps"])
def test_the_native_engine_is_judged_by_the_spec_and_its_devices_at_run(device: str) -> None:
    nodes = source(), node("trainer", method="oft", device=device)
    assert list_row_names(*nodes) == []
    assert run_names(*nodes) == ([] if device in ("auto", "cpu") else ["device-missing"])


@pytest.mark.parametrize("quantization", ["fp8", "gguf"])
def test_what_is_no_base_to_train_through(quantization: str) -> None:
    assert native(method="qlora", quantization=quantization) == ["quant-export"]


@pytest.mark.parametrize("quantization", ["nf4", "fp4", "int8", "hqq_int4", "torchao_int8", "gptq", "awq"])
def test_formats_that_an_adapter_can_be_trained_through(quantization: str) -> None:
    assert native(method="qlora", quantization=quantization) == []


def test_a_kto_stage_with_other_batches_and_other_stages_with_batches_of_one() -> None:
    assert native(hyperparameters={"batch_size": 1}) == []
    assert native(stage="kto", hyperparameters={"batch_size": 1}) == ["kto-batch"]
    assert native(stage="kto", hyperparameters={"batch_size": 1, "gradient_accumulation": 8}) == ["kto-batch"]


@pytest.mark.parametrize("method", ["full", "freeze"])
def test_the_shape_of_an_adapter_means_nothing_to_whole_weights(method: str) -> None:
    (rank,) = reasons(source(), node("trainer", method={"type": method, "rank": 16}))
    assert (rank.code, rank.field) == ("E-SPEC-KEY", "config.method.rank")
    assert rank.instead == "`rank` is a setting of method lora, qlora, dora, lora_plus, auto."
    (ratio,) = reasons(source(), node("trainer", method={"type": method, "ratio": 8}))
    assert ratio.instead == "`ratio` is a setting of method lora_plus."


@pytest.mark.parametrize(
    ("axis", "word", "setting", "readers"),
    [
        ("method", "lora", "blocks", "freeze"), ("method", "full", "head", "freeze"),
        ("method", "lora", "block_size", "oft"), ("method", "lora", "ratio", "lora_plus"),
        ("method", "oft", "rank", "lora, qlora, dora, lora_plus, auto"),
        ("method", "oft", "alpha", "lora, qlora, dora, lora_plus"),
        ("method", "oft", "rslora", "lora, qlora, dora, lora_plus"),
        ("method", "freeze", "dropout", "lora, qlora, dora, lora_plus, oft"),
        ("stage", "sft", "beta", "dpo, kto, grpo, distill"), ("stage", "cpt", "centering", "reward"),
        ("stage", "dpo", "centering", "reward"), ("stage", "kto", "loss", "dpo, grpo"),
        ("stage", "kto", "label_smoothing", "dpo"), ("stage", "dpo", "desirable_weight", "kto"),
        ("stage", "kto", "gamma", "ppo, dpo"), ("stage", "dpo", "rewards", "ppo, grpo"),
    ],
)  # fmt: skip
def test_a_setting_of_another_value_is_refused_with_those_that_have_it(
    axis: str, word: str, setting: str, readers: str
) -> None:
    (reason,) = reasons(source(), node("trainer", **{axis: {"type": word, setting: 1}}))
    assert (reason.code, reason.field) == ("E-SPEC-KEY", f"config.{axis}.{setting}")
    assert reason.instead == f"`{setting}` is a setting of {axis} {readers}."


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        ({"engine": {"batching": "padded", "token_budget": 512}}, "engine.token_budget"),
        ({"stage": "kto", "engine": {"token_budget": 512}}, "engine.token_budget"),
        ({"stage": "reward", "engine": {"head": "chunked"}}, "engine.head"),
        ({"stage": {"type": "dpo", "gamma": 1}}, "stage.gamma"),
        (drawing(epsilon=0.1), "stage.epsilon"),
    ],
)
def test_a_setting_that_nothing_reads_is_refused(config: dict[str, Any], setting: str) -> None:
    (reason,) = reasons(source(), node("trainer", **config))
    assert (get_row_name(reason), reason.field) == ("setting-unused", f"config.{setting}")
    assert f" reads {setting}; here it would be ignored." in reason.because
    assert reason.instead.startswith(f"Remove {setting}, or use ")


def test_too_long_says_nothing_to_running_text() -> None:
    refusal_names = list_row_names(source("docs"), node("trainer", stage="cpt", engine={"too_long": "drop"}))
    assert refusal_names == ["setting-unused"]


@pytest.mark.parametrize(
    "config",
    [
        {"method": {"type": "freeze", "blocks": 3, "head": True}},
        {"method": {"type": "oft", "block_size": 16}},
        {"method": {"type": "oft", "profile": "classic"}},
        {"method": {"type": "oft", "dropout": 0.1, "target_modules": "attention-only", "layers": [0]}},
        {"stage": {"type": "reward", "centering": 0.01}},
        {"engine": {"token_budget": 512}},
        {"stage": "dpo", "engine": {"batching": "buckets", "token_budget": 512, "head": "chunked"}},
        {"engine": {"batching": "packed", "token_budget": 512, "too_long": "refuse"}},
        {"method": {"type": "lora_plus", "ratio": 8, "rank": 8}},
        {"stage": {"type": "kto", "desirable_weight": 2, "undesirable_weight": 0.5, "beta": 0.2}},
        {"stage": {"type": "dpo", "loss": "sigmoid", "label_smoothing": 0.1}},
        {"stage": {"type": "dpo", "loss": "simpo", "gamma": 1.6}},
        {"stage": "sft", "engine": {"head": "liger", "fp8": "torchao", "attention": "fa3"}},
        {"method": {"type": "freeze"}, "hyperparameters": {"optimizer": "galore"}},
    ],
)
def test_a_setting_that_is_read_is_taken(config: dict[str, Any]) -> None:
    assert native(**config) == []


def test_a_group_that_nothing_reads_is_told_as_one() -> None:
    """Not once more for each of its settings."""
    assert trl(engine={"fp8": "ms-amp"}) == ["engine-unused"]
    assert trl(stage="dpo", engine={"batching": "packed"}) == ["engine-unused"]


@pytest.mark.parametrize(
    ("stage", "batching", "instead"),
    [
        ("reward", "packed", "buckets"), ("kto", "packed", "padded"), ("kto", "buckets", "padded"),
    ],
)  # fmt: skip
def test_a_batching_that_a_loss_cannot_use(stage: str, batching: str, instead: str) -> None:
    (reason,) = reasons(source(), node("trainer", stage=stage, engine={"batching": batching}))
    row = "batching" if batching == "packed" else "batching-buckets"
    assert (reason.row, reason.field) == (row, "config.engine.batching")
    assert reason.instead == f"Use `batching: auto` or `{instead}`."
    assert native(stage=stage, engine={"batching": instead}) == []


@pytest.mark.parametrize("shared", [True, False])
def test_a_shared_prompt_where_nobody_shares_it(shared: bool) -> None:
    for stage in ("dpo", "kto"):
        assert native(stage={"type": stage, "shared_prompt": shared}) == []
        assert trl(stage={"type": stage, "shared_prompt": shared}) == ["setting-unused"]
        assert trl(stage={"type": stage, "shared_prompt": "auto"}) == []
    rewarded = {"type": "grpo", "rewards": [{"type": "exact_match"}]}
    hyper = {"batch_size": 8}
    assert trl(stage={**rewarded, "shared_prompt": shared}, hyperparameters=hyper) == []


GPUS = "cuda and rocm"
KERNELS = [
    ("attention", "fa2", GPUS), ("attention", "fa3", "cuda"), ("head", "liger", GPUS), ("kernels", "liger", GPUS),
    ("fp8", "torchao", GPUS), ("compile", True, GPUS),
]  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "mps"])
@pytest.mark.parametrize(("name", "value", "written"), KERNELS)
def test_kernels_of_gpus(device: str, name: str, value: str | bool, written: str) -> None:
    trainer = node("trainer", device=device, engine={name: value})
    (reason,) = reasons(source(), trainer)
    assert (get_row_name(reason), reason.field) == ("engine-cuda", f"config.engine.{name}")
    word = str(value).lower()
    assert reason.because == f"The kernels of `{name}: {word}` are written for {written}, and the device is {device}."
    portable = {"kernels": "torch", "compile": "false"}.get(name, "auto")
    assert reason.instead.startswith(f"Use `{name}: {portable}`")
    assert list_row_names(source(), node("trainer", backend="trl", device=device, engine={name: value})) == [
        "engine-unused"
    ]
    assert native(device="cuda", engine={name: value}) == []
    assert native(device="rocm", engine={name: value}) == ([] if written == GPUS else ["engine-cuda"])


def test_a_format_without_rocm_is_refused_there() -> None:
    assert native(device="rocm", method="qlora", quantization="hqq_int4") == ["quant-device"]
    assert native(device="rocm", method="qlora", quantization="nf4") == []
    assert native(device="rocm", hyperparameters={"optimizer": "adamw_8bit"}) == []


@pytest.mark.parametrize("optimizer", ["paged_adamw_8bit", "lion", "ademamix"])
def test_the_optimizers_of_bitsandbytes_do_not_run_on_apple_s_gpu(optimizer: str) -> None:
    assert native(device="mps", hyperparameters={"optimizer": optimizer}) == ["optimizer-device"]
    assert trl(device="mps", hyperparameters={"optimizer": optimizer}) == ["optimizer-device"]


@pytest.mark.parametrize("optimizer", ["sgd", "adafactor", "muon"])
def test_other_optimizers_run_everywhere(optimizer: str) -> None:
    assert native(device="mps", hyperparameters={"optimizer": optimizer}) == []


@pytest.mark.parametrize("quantization", ["nf4", "fp4", "int8", "hqq_int4", "torchao_int8", "gptq", "awq"])
def test_no_format_runs_on_apple_s_gpu(quantization: str) -> None:
    assert native(device="mps", method="qlora", quantization=quantization) == ["quant-device"]


@pytest.mark.parametrize("quantization", ["gptq", "awq"])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_base_that_is_only_stored_quantised_takes_nothing_in(quantization: str, method: str) -> None:
    first = {"method": "qlora", "quantization": quantization}
    assert twice(first, {"method": method, "adapter": "merge"}) == ["adapter-merge"]


def twice(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    return list_row_names(source(), node("trainer", **first), node("trainer", **second))


@pytest.mark.parametrize("way", ["stack", "merge"])
@pytest.mark.parametrize(("old", "new"), [("dora", "lora"), ("lora", "dora"), ("oft", "lora"), ("lora", "oft")])
def test_only_low_rank_sums_are_written_as_one_adapter(way: str, old: str, new: str) -> None:
    assert twice({"method": old}, {"method": new, "adapter": way}) == ["adapter-compose"]


@pytest.mark.parametrize("way", ["stack", "merge"])
def test_two_adapters_cannot_hold_one_whole_module(way: str) -> None:
    head, both = {"modules_to_save": ["lm_head"]}, {"modules_to_save": ["embed_tokens", "lm_head"]}
    alone = {"type": "lora", "modules_to_save": ["embed_tokens"]}
    first, second = {"method": {"type": "lora", **head}}, {"type": "lora", **both}
    assert twice(first, {"method": second, "adapter": way}) == ["adapter-compose-module"]
    assert twice(first, {"method": alone, "adapter": way}) == []
    assert twice(first, {"adapter": way}) == []


@pytest.mark.parametrize("method", ["full", "freeze"])
@pytest.mark.parametrize("old", ["lora", "qlora", "dora", "oft"])
def test_whole_weights_take_an_earlier_adapter_in_and_stack_nothing(method: str, old: str) -> None:
    assert twice({"method": old}, {"method": method, "adapter": "stack"}) == ["adapter-stack"]
    assert twice({"method": old}, {"method": method, "adapter": "merge"}) == []
    assert twice({"method": old}, {"method": method}) == ["adapter-method"]


def test_a_continued_rotation_keeps_its_blocks() -> None:
    first = {"method": {"type": "oft", "block_size": 16}}
    assert twice(first, {"method": "oft"}) == []
    (reason,) = reasons(source(), node("trainer", **first), node("trainer", method={"type": "oft", "block_size": 64}))
    assert (get_row_name(reason), reason.field) == ("adapter-shape", "config.method.block_size")
    assert reason.instead == "Write `block_size: 16`, or `method: oft` without settings."


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alpha", 8), ("dropout", 0.1), ("target_modules", "attention-only"), ("modules_to_save", ["lm_head"]),
        ("rslora", True), ("layers", [0]),
    ],
)  # fmt: skip
def test_a_continued_adapter_keeps_every_part_of_its_shape(name: str, value: object) -> None:
    modules = {"target_modules": ["q_proj"]} if name == "layers" else {}
    shape = {"rank": 32, **modules, name: value}
    refusals = reasons(
        source(), node("trainer", method={"type": "lora", **modules}), node("trainer", method={"type": "lora", **shape})
    )
    assert [(get_row_name(reason), reason.field) for reason in refusals] == [("adapter-shape", f"config.method.{name}")]
    assert refusals[0].instead.startswith(f"Write `{name}: ")
    continued = node("trainer", method={"type": "lora", **shape})
    assert list_row_names(source(), continued, continued) == []


def test_full_weights_after_an_adapter_cannot_continue_it() -> None:
    assert list_row_names(source(), node("trainer"), node("trainer", method="full")) == ["adapter-method"]


def test_merging_needs_an_adapter_and_not_a_model() -> None:
    nodes = source(), node("trainer", method="full"), node("trainer", adapter="merge")
    assert list_row_names(*nodes) == ["adapter-none"]


def test_a_base_model_may_be_named_later_than_first() -> None:
    nodes = source(), node("trainer"), node("trainer", base_model="org/two")
    assert list_row_names(*nodes) == ["base-mismatch"]
    assert list_row_names(source(), node("trainer", base_model="org/two"), node("trainer", base_model="org/two")) == []
    full = source(), node("trainer", method="full", base_model="org/one"), node("trainer", base_model="org/two")
    assert list_row_names(*full) == ["base-mismatch"]


def test_a_control_of_another_stage_may_continue_an_adapter() -> None:
    refusal_names = list_row_names(
        source(), node("validator"), node("trainer"), node("trainer", "tuned", stage="dpo"),
        node("trainer", "shuffled", ["trainer"], stage="dpo", control="shuffled_answers"),
        node("evaluator", None, ["tuned", "shuffled"]),
    )  # fmt: skip
    assert refusal_names == []


def test_a_control_with_pauses_may_continue_the_words_that_the_thoughts_continue() -> None:
    stage = {"type": "sft", "latent": "coconut"}
    refusal_names = list_row_names(
        source(), node("validator"), node("trainer"), node("trainer", "tuned", stage=stage),
        node("trainer", "paused", ["trainer"], stage=stage, control="pauses"),
        node("evaluator", None, ["tuned", "paused"]),
    )  # fmt: skip
    assert refusal_names == []
    refusal_names = list_row_names(
        source(), node("validator"), node("trainer", "tuned", stage=stage),
        node("trainer", "paused", ["tuned"], stage=stage, control="pauses"),
        node("evaluator", None, ["tuned", "paused"]),
    )  # fmt: skip
    assert refusal_names == ["control-line"]


@pytest.mark.parametrize("stage", ["cpt", "ppo", "kto", "reward"])
def test_a_control_needs_answers_to_shuffle(stage: str) -> None:
    nodes = source(), node("trainer", stage=stage, backend="native", control="shuffled_answers")
    assert "control-stage" in list_row_names(*nodes)


TWO_HOSTS: dict[str, Any] = {"strategy": "ddp", "processes": 2, "hosts": ["gpu-a", "gpu-b"]}
PLACED: dict[str, Any] = {
    "strategy": "ddp", "processes": 2, "nodes": 2, "node_rank": 1, "rendezvous": "gpu-a:29500",
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"launch": {**TWO_HOSTS, "node_rank": 1}}, "hosts and nodes both name the hosts"),
        ({"launch": {**TWO_HOSTS, "hosts": ["gpu-a", "gpu-a"]}}, "a host is alone or named twice"),
        ({"launch": {**TWO_HOSTS, "hosts": ["gpu-a"]}}, "a host is alone or named twice"),
        ({"launch": {**PLACED, "node_rank": None}}, "each of several hosts has a number"),
        ({"launch": {**PLACED, "node_rank": 2}}, "each of several hosts has a number"),
        ({"launch": {**PLACED, "rendezvous": None}}, "each of several hosts has a number"),
        ({"launch": {**PLACED, "rendezvous": "gpu-a:70000"}}, "gpu-a:70000 has no port from 1 to 65535"),
        ({"launch": {**PLACED, "rendezvous": "gpu-a:0"}}, "gpu-a:0 has no port from 1 to 65535"),
        ({"launch": {"node_rank": 0, "rendezvous": "gpu-a:29500"}}, "one host has no number and no rendezvous"),
        ({"launch": {"wait_s": 60}}, "one host waits for no other"),
        ({"launch": {**TWO_HOSTS, "processes": 3}}, "3 processes are not as many on each of 2"),
        ({"launch": {**TWO_HOSTS, "launcher": "accelerate"}}, "accelerate starts the processes of one host"),
        ({"launch": TWO_HOSTS, "backend": "trl"}, "the trl backend trains on one host"),
    ],
)
def test_hosts_that_do_not_fit_are_refused(config: dict[str, Any], why: str) -> None:
    (reason,) = [reason for reason in reasons(source(), node("trainer", **config)) if reason.row == "launch-hosts"]
    assert reason.code == "R-LAUNCH"
    assert why in reason.because


@pytest.mark.parametrize("launch", [{**TWO_HOSTS, "wait_s": 60}, PLACED, {**TWO_HOSTS, "launcher": "torchrun"}])
def test_hosts_that_fit_are_accepted_by_both_backends(launch: dict[str, Any]) -> None:
    assert native(launch=launch) == []
    assert list_row_names(source(), node("trainer", backend="deepspeed", launch=launch)) == []
    deepspeed = {**launch, "launcher": "deepspeed"}
    assert list_row_names(source(), node("trainer", backend="deepspeed", launch=deepspeed)) == []
