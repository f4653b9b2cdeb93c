"""The table of refused combinations: one file that trips each row, and the nearest chains that do not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.spec.chains import GOLDEN, RESOURCES, chain, codes, node, reasons, source
from trainyard.errors import Reason, Refused
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import Device
from trainyard.spec.compat.context import RunFacts
from trainyard.spec.compat.table import ROWS, run_reasons
from trainyard.spec.estimate.bases import BaseFacts
from trainyard.spec.graph import check, resolve
from trainyard.spec.load.files import load_chain, load_value

BAD = sorted((RESOURCES / "chains_bad").glob("*.yaml"))
AT_RUN = sorted((RESOURCES / "chains_at_run").glob("*.yaml"))
OK = sorted((RESOURCES / "chains_ok").glob("*"))
REFUSALS = GOLDEN / "refusals.txt"
DROP = object()
"""An edit that removes the key."""

Edit = tuple[str, Any]


def outside(path: str) -> Reason | None:
    because = f"The path {path!r} leads out of the data roots."
    instead = f'Use a path inside /work, or write the line `data_roots = ["{Path(path).parent}"]` into trainyard.toml.'
    return Reason("R-PATH-ROOT", None, "", because, instead) if path.startswith(("..", "/")) else None


FACTS = RunFacts(
    endpoints=frozenset({"known"}),
    path_problem=outside,
    backends={BackendName.NATIVE: None, BackendName.TRL: None, BackendName.UNSLOTH: "Not installed."},
    devices=frozenset({Device.CPU}),
    embedded=False,
    may_mirror=lambda address: address.startswith("gs://bucket/"),
    has_module=lambda name: name != "pytorch_optimizer",
)
"""A small machine: one CPU, the native and the trl backend, one endpoint, no server, no GaLore."""
WITH_GPU = RunFacts(devices=frozenset({Device.CPU, Device.CUDA}), vllm_install="pip install vllm")
T5 = BaseFacts.from_config({"model_type": "t5", "is_encoder_decoder": True, "vocab_size": 32_128})
PADDED = BaseFacts.from_config({"model_type": "llama", "vocab_size": 32_000}, tokens=32_001)
FACTS_OF = {
    "r-backend-setting-cuda": RunFacts(devices=frozenset({Device.CPU})),
    "r-vllm-missing": WITH_GPU,
    "r-base-layout": RunFacts(base=lambda name: T5),
    "r-base-vocabulary": RunFacts(base=lambda name: PADDED),
}
"""Files that another machine than the small one refuses."""


def expected_code(path: Path) -> str:
    """The first line of each file is a comment with the code."""
    return path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def reasons_of(path: Path) -> list[Reason]:
    try:
        return check(load_value(path))
    except Refused as refused:
        return list(refused.reasons)


def at_run(value: Any, facts: RunFacts = FACTS) -> list[Reason]:
    return run_reasons(resolve(value), facts)


def at_run_file(path: Path) -> list[Reason]:
    return at_run(load_chain(path), FACTS_OF.get(path.stem, FACTS))


def run_codes(*nodes: dict[str, Any], facts: RunFacts = FACTS) -> list[str]:
    return [reason.code for reason in at_run(chain(*nodes), facts)]


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_each_bad_chain_is_refused_with_its_code(path: Path) -> None:
    assert expected_code(path) in [reason.code for reason in reasons_of(path)]


@pytest.mark.parametrize("path", AT_RUN, ids=lambda path: path.stem)
def test_what_only_a_run_can_know_is_refused_at_run(path: Path) -> None:
    assert reasons_of(path) == []
    assert [reason.code for reason in at_run_file(path)] == [expected_code(path)]
    assert at_run(load_chain(path), RunFacts()) == []


@pytest.mark.parametrize("path", OK, ids=lambda path: path.name)
def test_good_chains_are_accepted(path: Path) -> None:
    assert reasons_of(path) == []
    assert resolve(load_chain(path)).digest


def test_every_row_has_its_file() -> None:
    files = {"spec": {expected_code(path) for path in BAD}, "run": {expected_code(path) for path in AT_RUN}}
    for scope, codes_of_files in files.items():
        scopes = {scope, "words"} if scope == "spec" else {scope}
        assert {row.code for row in ROWS if row.scope in scopes} == {
            code for code in codes_of_files if code.startswith("R-")
        }
    assert len({row.code for row in ROWS}) >= 20


def test_the_wording_of_every_refusal_is_as_agreed() -> None:
    """`GOLDEN=write` writes the file anew, for a person to read."""
    told = [f"{path.stem}: {reason.line()}" for path in BAD for reason in reasons_of(path)]
    told += [f"{path.stem}: {reason.line()}" for path in AT_RUN for reason in at_run_file(path)]
    text = "\n".join(told) + "\n"
    if os.environ.get("GOLDEN") == "write":
        REFUSALS.write_text(text, encoding="utf-8")
    assert text == REFUSALS.read_text(encoding="utf-8")


def test_rows_read_alike() -> None:
    for row in ROWS:
        assert row.because.rstrip("}").endswith((".", "why")), row.code
        assert row.instead.endswith("."), row.code
        assert row.field, row.code


NEAR: list[tuple[str, str, list[Edit]]] = [
    ("r-data-worker", "a path of this machine", [("0.config.data_worker", DROP)]),
    ("r-source-repository", "commits", [("0.config.format", "documents"), ("1.config", {"stage": "cpt"})]),
    ("r-source-repository-set", "documents", [("0.config.sets", {"documents": {"repository": "code"}}),
                                              ("1.config", {"stage": "cpt"})]),
    ("r-reward-evaluate", "dpo", [("2.config.stage", "dpo")]),
    ("r-setting-unused-generator", "defaults", [("1.config", {"template": "code", "wordings": 3})]),
    ("r-setting-unused-generator", "model", [("1.config.model", "m"), ("1.config.wordings", DROP)]),
    ("r-setting-unused-generator", "qa", [("1.config", {"wordings": 2})]),
    ("r-setting-unused-target", "vllm", [("4.config.targets.0.type", "vllm"), ("4.config.targets.1.type", "vllm"),
                                         ("2.config", {"lora": {"rank": 8}})]),
    ("r-setting-unused-target", "registry", [("4.config.targets", [{"type": "registry", "max_lora_rank": 32}])]),
    ("r-port-documents", "documents", [("0.config.path", "docs")]),
    ("r-port-rows", "rows", [("0.config.path", "rows.jsonl")]),
    ("r-port-sft", "rows", [("0.config.path", "rows.jsonl")]),
    ("r-port-sft", "pretraining", [("1.config", {"stage": "cpt"})]),
    ("r-port-preference", "pairs", [("0.config.format", "preference")]),
    ("r-port-preference", "sft", [("1.config.stage", "sft")]),
    ("r-port-labelled", "labels", [("0.config.format", "labelled")]),
    ("r-port-text", "text", [("0.config.format", "text")]),
    ("r-port-candidate", "trainer", [("1.type", "trainer"), ("2.config", {"benchmarks": [{"name": "forgetting"}]})]),
    ("r-port-adapter", "trainer", [("0.config.path", "a.jsonl"), ("1.type", "trainer"), ("1.config", DROP)]),
    ("r-port-two", "one", [("2.needs", ["one"])]),
    ("r-engine-model", "no model", [("1.config.model", DROP)]),
    ("r-engine-model", "no engine", [("1.config.engine", DROP)]),
    ("r-engine-model", "openai", [("1.config.engine", "openai")]),
    ("r-engine-no-model", "model", [("1.config.model", "m")]),
    ("r-engine-no-model", "local", [("1.config.engine", "local")]),
    ("r-engine-no-model", "none", [("1.config.engine", DROP)]),
    ("r-engine-url", "openai", [("1.config.engine", "openai"), ("1.config.model", "m")]),
    ("r-engine-url", "by the address", [("1.config.engine", DROP), ("1.config.model", "m")]),
    ("r-engine-url", "no address", [("1.config.base_url", DROP)]),
    ("r-endpoint-url", "the endpoint", [("1.config.base_url", DROP)]),
    ("r-endpoint-url", "without a key", [("1.config.endpoint", DROP)]),
    ("r-extractive-preference", "qa", [("1.config.template", "qa")]),
    ("r-extractive-preference", "model", [("1.config.model", "m")]),
    ("r-extractive-prompt", "model", [("1.config.model", "m")]),
    ("r-extractive-prompt", "no prompt", [("1.config.prompt", DROP)]),
    ("r-self-label", "other model", [("1.config.model", "default/other")]),
    ("r-self-label", "other role", [("5.config", {"role": "writer"})]),
    ("r-self-label", "other tenant", [("5.config", {"tenant": "guests"})]),
    ("r-grounding", "off", [("1.config.grounding", DROP)]),
    ("r-grounding", "documents", [("0.config.path", DROP), ("0.config.sets", {
        "sft": {"path": "a.jsonl"}, "documents": {"path": "docs"}})]),
    ("r-token-range", "equal", [("1.config.min_tokens", 100)]),
    ("r-backend-setting-native", "dpo", [("1.config.stage", "dpo")]),
    ("r-backend-setting-native", "elsewhere", [("1.config.backend", "script"), ("1.config.launch", {
        "script": "mine"})]),
    ("r-backend-setting-trl", "elsewhere", [("1.config.backend", "native")]),
    ("r-backend-setting-trl", "left out", [("1.config.lora.target_modules", ["q_proj"])]),
    ("r-backend-setting-grpo", "trl", [("1.config.backend", "trl")]),
    ("r-backend-setting-grpo", "sft", [("1.config.stage", "sft"), ("1.config.rollouts", DROP)]),
    ("r-backend-setting-sharded", "ddp", [("1.config.launch.strategy", "ddp")]),
    ("r-backend-setting-sharded", "full", [("1.config.method", "full")]),
    ("r-backend-setting-sharded", "elsewhere", [("1.config.backend", "native"), ("1.config.launch", {
        "strategy": "fsdp_hybrid", "processes": 4})]),
    ("r-backend-setting-unsloth", "lora", [("1.config.method", "lora"), ("1.config.device", "cuda")]),
    ("r-backend-setting-unsloth", "qlora", [("1.config.method", "qlora"), ("1.config.device", "auto")]),
    ("r-backend-setting-cuda", "cuda", [("1.config.device", "cuda")]),
    ("r-backend-setting-cuda", "lora", [("1.config.method", "lora")]),
    ("r-backend-setting-axolotl", "cosine", [("1.config.hyperparameters.schedule", "cosine")]),
    ("r-backend-setting-deepspeed", "full", [("1.config.method", "full")]),
    ("r-backend-setting-mlx", "lion", [("1.config.hyperparameters.optimizer", "lion")]),
    ("r-backend-setting-llamacpp", "left out", [("1.config.hyperparameters", {"epochs": 2, "weight_decay": 0.1})]),
    ("r-backend-setting-llamacpp", "elsewhere", [("1.config.backend", "native")]),
    ("r-backend-setting-script", "own", [("1.config.launch", {"script": "mine"})]),
    ("r-launch-launcher", "ddp", [("1.config.launch", {"strategy": "ddp", "processes": 2, "launcher": "torchrun"})]),
    ("r-launch-launcher", "auto", [("1.config.launch.launcher", "auto")]),
    ("r-script-unused", "script", [("1.config.backend", "script")]),
    ("r-script-unused", "left out", [("1.config.launch", DROP)]),
    ("r-fp16-cpu", "bf16", [("1.config.hyperparameters.precision", "bf16")]),
    ("r-fp16-cpu", "cuda", [("1.config.device", "cuda")]),
    ("r-fp16-cpu", "auto", [("1.config.device", "auto")]),
    ("r-quant-method", "qlora", [("1.config.method", "qlora")]),
    ("r-quant-method", "qlora elsewhere", [("1.config.method", "qlora"), ("1.config.backend", "unsloth")]),
    ("r-quant-method", "none", [("1.config.quantization", DROP)]),
    ("r-quant-export", "nf4", [("1.config.quantization", "nf4")]),
    ("r-quant-export", "none", [("1.config.quantization", DROP)]),
    ("r-grpo-reward", "named", [("1.config.rollouts", {"rewards": [{"type": "length", "max_tokens": 9}]}),
                                ("1.config.hyperparameters", {"batch_size": 8})]),
    ("r-grpo-batch", "accumulation", [("1.config.hyperparameters.gradient_accumulation", 2)]),
    ("r-grpo-batch", "group", [("1.config.rollouts.num_generations", 6)]),
    ("r-grpo-batch", "processes", [("1.config.launch", {"strategy": "ddp", "processes": 2})]),
    ("r-rollouts-unused", "left out", [("1.config.rollouts", DROP)]),
    ("r-rollouts-unused", "grpo", [("1.config.stage", "grpo"), ("1.config.hyperparameters", {"batch_size": 8})]),
    ("r-kto-batch", "two", [("1.config.hyperparameters.batch_size", 2)]),
    ("r-lora-layers", "attention", [("1.config.lora.target_modules", "attention-only")]),
    ("r-lora-layers", "named", [("1.config.lora.target_modules", ["q_proj"])]),
    ("r-lora-layers", "all layers", [("1.config.lora.layers", DROP)]),
    ("r-lora-unused", "default", [("1.config.lora.rank", 32)]),
    ("r-lora-unused", "lora", [("1.config.method", "lora")]),
    ("r-preference-unused", "default", [("1.config.preference.beta", 0.1)]),
    ("r-preference-unused", "dpo", [("1.config.stage", "dpo")]),
    ("r-preference-unused", "kto", [("1.config.stage", "kto")]),
    ("r-smoothing-loss", "sigmoid", [("1.config.preference.loss", "sigmoid")]),
    ("r-smoothing-loss", "none", [("1.config.preference.label_smoothing", 0)]),
    ("r-schedule-free", "constant", [("1.config.hyperparameters.schedule", "constant")]),
    ("r-schedule-free", "warmup", [("1.config.hyperparameters.schedule", "constant_with_warmup")]),
    ("r-schedule-free", "adamw", [("1.config.hyperparameters.optimizer", "adamw")]),
    ("r-galore-method", "full", [("1.config.method", "full")]),
    ("r-galore-method", "freeze", [("1.config.method", "freeze")]),
    ("r-galore-method", "adamw", [("1.config.hyperparameters.optimizer", "adamw")]),
    ("r-adapter-method", "same", [("1.config", {"method": "dora"})]),
    ("r-adapter-method", "merge", [("2.config", {"adapter": "merge"})]),
    ("r-adapter-method", "merge into the weights", [("2.config", {"method": "full", "adapter": "merge"})]),
    ("r-adapter-method", "after full", [("1.config", {"method": "full"})]),
    ("r-adapter-shape", "same", [("2.config.lora.rank", 16)]),
    ("r-adapter-shape", "left out", [("2.config.lora", DROP)]),
    ("r-adapter-shape", "stack", [("2.config.adapter", "stack")]),
    ("r-adapter-compose", "continue", [("2.config", {"method": "dora"})]),
    ("r-adapter-compose", "lora", [("1.config.method", "lora")]),
    ("r-adapter-compose", "lora and qlora", [("1.config.method", "lora"), ("2.config.method", "qlora")]),
    ("r-adapter-compose", "lora and lora_plus", [("1.config.method", "lora"), ("2.config.method", "lora_plus")]),
    ("r-adapter-compose", "whole", [("2.config", {"method": "full", "adapter": "merge"})]),
    ("r-adapter-stack", "merge", [("2.config.adapter", "merge")]),
    ("r-adapter-stack", "merge and freeze", [("2.config", {"method": "freeze", "adapter": "merge"})]),
    ("r-adapter-stack", "lora", [("2.config.method", "lora")]),
    ("r-adapter-merge", "continue", [("2.config", {"method": "qlora", "quantization": "gptq"})]),
    ("r-adapter-merge", "stack", [("2.config", {"method": "qlora", "quantization": "gptq", "adapter": "stack"})]),
    ("r-adapter-merge", "nf4", [("1.config.quantization", "nf4")]),
    ("r-adapter-none", "continue", [("1.config.adapter", "continue")]),
    ("r-engine-unused", "none", [("1.config.engine", DROP)]),
    ("r-engine-unused", "default", [("1.config.engine.batching", "auto")]),
    ("r-engine-unused", "native", [("1.config.backend", "native")]),
    ("r-engine-unused", "by default", [("1.config.backend", DROP)]),
    ("r-setting-unused", "none", [("1.config.engine", DROP), ("1.config.lora", DROP)]),
    ("r-setting-unused", "freeze", [("1.config", {"method": "freeze", "engine": {"freeze_blocks": 4}})]),
    ("r-setting-unused", "oft", [("1.config", {"method": "oft", "engine": {"oft_block_size": 64}})]),
    ("r-setting-unused", "lora_plus", [("1.config", {"method": "lora_plus", "lora": {"lora_plus_ratio": 8}})]),
    ("r-batching", "auto", [("1.config.engine.batching", "auto")]),
    ("r-batching", "buckets", [("1.config.engine.batching", "buckets")]),
    ("r-batching", "padded", [("1.config.engine.batching", "padded")]),
    ("r-batching", "sft", [("1.config.stage", "sft")]),
    ("r-engine-cuda", "cuda", [("1.config.device", "cuda")]),
    ("r-engine-cuda", "any", [("1.config.device", DROP)]),
    ("r-engine-cuda", "auto", [("1.config.engine", {"attention": "auto", "head": "auto", "fp8": "auto"})]),
    ("r-engine-cuda", "others", [("1.config.engine", {"attention": "eager", "head": "chunked", "fp8": "off"})]),
    ("r-base-made", "lora", [("2.config", {"method": "lora"})]),
    ("r-base-made", "registry", [("5.config.targets", [{"type": "registry"}])]),
    ("r-base-made", "llama_server", [("5.config.targets", [{"type": "llama_server"}])]),
    ("r-repository-url", "folder", [("0.config.repository", "code")]),
    ("r-repository-url", "colon", [("0.config.repository", "a:b")]),
    ("r-mirror-store", "file", [("1.config.engine.mirror", "file:///backup")]),
    ("r-mirror-store", "gs", [("1.config.engine.mirror", "gs://bucket/checkpoints")]),
    ("r-fp8-msamp", "auto", [("1.config.engine.fp8", "auto")]),
    ("r-fp8-msamp", "torchao", [("1.config.engine.fp8", "torchao")]),
    ("r-fp8-qlora", "lora", [("1.config.method", "lora")]),
    ("r-fp8-qlora-auto", "lora", [("1.config.method", "lora")]),
    ("r-fp8-qlora", "off", [("1.config.engine.fp8", "off")]),
    ("r-optimizer-device", "adamw", [("1.config.hyperparameters.optimizer", "adamw")]),
    ("r-optimizer-device", "cpu", [("1.config.device", "cpu")]),
    ("r-optimizer-device", "cuda", [("1.config.device", "cuda")]),
    ("r-optimizer-device", "any", [("1.config.device", DROP)]),
    ("r-quant-device", "lora", [("1.config.method", "lora")]),
    ("r-quant-device", "cpu", [("1.config.device", "cpu")]),
    ("r-quant-device", "cuda", [("1.config.device", "cuda")]),
    ("r-quant-device", "any", [("1.config.device", DROP)]),
    ("r-launch-processes", "ddp", [("1.config.launch.strategy", "ddp")]),
    ("r-launch-processes", "one", [("1.config.launch.processes", 1)]),
    ("r-launch-processes-one", "two", [("1.config.launch.processes", 2)]),
    ("r-launch-shard", "two", [("1.config.launch.shard_size", 2)]),
    ("r-launch-shard", "half", [("1.config.launch.shard_size", DROP)]),
    ("r-launch-shard-unused", "left out", [("1.config.launch.shard_size", DROP)]),
    ("r-launch-shard-unused", "hybrid", [("1.config.launch.strategy", "fsdp_hybrid")]),
    ("r-launch-shard-one-replica", "two replicas", [("1.config.launch.processes", 4)]),
    ("r-launch-device", "cpu", [("1.config.device", "cpu")]),
    ("r-launch-device", "one process", [("1.config.launch", DROP)]),
    ("r-shard-quantised", "ddp", [("1.config.launch.strategy", "ddp")]),
    ("r-shard-quantised", "lora", [("1.config.method", "lora")]),
    ("r-base-mismatch", "left out", [("2.config.base_model", DROP)]),
    ("r-base-mismatch", "same", [("2.config.base_model", "org/one")]),
    ("r-base-mismatch-target", "same", [("4.config.targets.0.base_model", "starter")]),
    ("r-base-mismatch-target", "not said", [("4.config.targets.0.base_model", DROP)]),
    ("r-reward-continue", "sft", [("1.config.stage", "sft")]),
    ("r-reward-continue", "beside", [("2.needs", ["data-source"])]),
    ("r-reward-continue", "ppo", [("0.config.format", "auto"), ("2.config", {
        "stage": "ppo", "backend": "script", "launch": {"script": "mine"}})]),
    ("r-control-line", "beside", [("3.needs", ["validator"]), ("4.needs", ["trainer", "trainer-2"])]),
    ("r-control-unused", "evaluated", [("3", {"type": "evaluator", "needs": ["trainer", "trainer-2"],
                                              "config": {"benchmarks": [{"name": "forgetting"}]}})]),
    ("r-control-alone", "no control", [("2.config.control", DROP)]),
    ("r-control-deploy", "no control", [("2.config.control", DROP)]),
    ("r-no-heldout", "validator", [("0.config.path", "docs"), ("1", {"type": "ai_generator"}),
                                   ("2", {"type": "validator"}), ("3", {"type": "trainer"})]),
    ("r-no-heldout", "own file", [("2.config", {"benchmarks": [{"name": "f1", "path": "tasks.jsonl"}]})]),
    ("r-no-heldout", "own rows", [("2.config", {"benchmarks": [{"name": "forgetting"}, {"name": "lm_eval:piqa"}]})]),
    ("r-no-set", "documents", [("3.config.benchmarks.0.set", "unseen_documents")]),
    ("r-no-set", "any", [("3.config.benchmarks.0.set", DROP)]),
    ("r-no-set", "heldout", [("3.config.benchmarks.0.set", "heldout")]),
    ("r-primary", "listed", [("3.config.primary", "f1")]),
    ("r-primary", "not said", [("3.config.primary", DROP)]),
    ("r-primary", "by default", [("3.config.benchmarks", DROP)]),
    ("r-unevaluated", "said", [("2.config", {"unevaluated": True})]),
    ("r-report-mismatch", "beside", [("4.needs", ["validator"]), ("5.needs", ["evaluator"])]),
    ("r-reward-deploy", "dpo", [("1.config.stage", "dpo")]),
    ("r-full-hotload", "registry", [("4.config.targets.0.type", "registry")]),
    ("r-full-hotload", "lora", [("2.config.method", "lora")]),
    ("r-target-adapter-vllm", "embedded", [("4.config.targets.0.type", "embedded")]),
    ("r-target-adapter-vllm", "lora", [("2.config", {"lora": {"rank": 16}})]),
    ("r-rank-server", "16", [("2.config.lora.rank", 16)]),
    ("r-rank-server", "said", [("4.config.targets.0.max_lora_rank", 17)]),
    ("r-rank-server", "embedded", [("4.config.targets.0.type", "embedded")]),
    ("r-target-url", "url", [("4.config.targets.0.url", "http://127.0.0.1:8000")]),
    ("r-target-url", "embedded", [("4.config.targets.0.type", "embedded")]),
    ("r-target-url", "endpoint", [("4.config.targets.0.endpoint", "house")]),
    ("r-endpoint-url-target", "the endpoint", [("4.config.targets.0.url", DROP)]),
    ("r-target-adapter", "embedded", [("4.config.targets.0.type", "embedded")]),
    ("r-target-adapter", "mlx", [("4.config.targets.0.type", "mlx")]),
    ("r-target-own", "registry", [("4.config.targets.0", {"type": "llama_server"})]),
    ("r-role-twice", "other role", [("5.config", {"role": "other"})]),
    ("r-role-twice", "other tenant", [("5.config", {"tenant": "other"})]),
    ("r-control-stage", "sft", [("0.config.path", "rows.jsonl"), ("1.config.stage", "sft")]),
    ("e-spec-cycle", "straight", [("1.needs", ["data-source"])]),
    ("e-spec-id", "own", [("1.id", "other")]),
    ("e-spec-value", "256", [("1.config.lora.rank", 256)]),
    ("e-spec-optimizer", "adafactor", [("1.config.hyperparameters.optimizer", "adafactor")]),
]  # fmt: skip
STILL = {"r-control-stage", "r-no-heldout"}
"""Files whose nearest good chain still has another, unrelated reason."""


def edited(value: Any, edits: list[Edit]) -> Any:
    for path, replacement in edits:
        *parents, last = ["nodes", *path.split(".")]
        place = value
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if isinstance(place, list):
            place[int(last) : int(last) + 1] = [replacement]
        elif replacement is DROP:
            del place[last]
        else:
            place[last] = replacement
    return value


@pytest.mark.parametrize(("name", "way", "edits"), NEAR, ids=lambda part: part if isinstance(part, str) else "")
def test_the_nearest_chain_that_is_not_refused(name: str, way: str, edits: list[Edit]) -> None:
    path = RESOURCES / "chains_bad" / f"{name}.yaml"
    found = check(edited(load_value(path), edits))
    assert expected_code(path) not in [reason.code for reason in found], way
    if name not in STILL:
        assert found == [], way


CHAINS = [path for path in BAD if path.stem.startswith("r-") and "nodes" in load_value(path)]


@pytest.mark.parametrize("path", CHAINS, ids=lambda path: path.stem)
def test_below_a_node_that_cannot_be_read_only_what_a_node_says_itself_is_told(path: Path) -> None:
    value = load_value(path)
    value["nodes"][0] = {"type": "zzz"}
    alone = [reason for reason in reasons_of(path) if not chained(reason) and reason.node != "data-source"]
    found = [reason for reason in check(value) if reason.code.startswith("R-")]
    assert [(reason.code, reason.node) for reason in found] == [(reason.code, reason.node) for reason in alone]


def chained(reason: Reason) -> bool:
    """Whether the row of a reason looks at other nodes too."""
    rows = [row for row in ROWS if row.code == reason.code and row.scope in ("spec", "words")]
    return all(row.chained for row in rows)


def test_every_row_of_the_spec_has_a_nearest_good_chain() -> None:
    covered = {expected_code(RESOURCES / "chains_bad" / f"{name}.yaml") for name, _, _ in NEAR}
    assert {row.code for row in ROWS if row.scope == "spec"} <= covered


# Rows with more than one way in; those on trainers are in test_refusals_trainer.py


def six(*, generator: dict[str, Any], validator: dict[str, Any], evaluator: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        source("docs"), node("ai_generator", **generator), node("validator", **validator), node("trainer"),
        node("evaluator", **evaluator),
    ]  # fmt: skip


WORDING = {"benchmarks": [{"name": "f1", "set": "unseen_wording"}]}
DOCUMENTS = {"benchmarks": [{"name": "f1", "set": "unseen_documents"}]}


@pytest.mark.parametrize(
    ("generator", "validator", "evaluator", "expected"),
    [
        ({}, {}, WORDING, []),
        ({"wordings": 2}, {}, WORDING, []),
        ({"wordings": 1}, {}, WORDING, ["R-NO-SET"]),
        ({"template": "instruction"}, {}, WORDING, ["R-NO-SET"]),
        ({}, {"holdout": {"wording": False}}, WORDING, ["R-NO-SET"]),
        ({}, {"holdout": {"documents": 0}}, WORDING, []),
        ({}, {"holdout": {"documents": 0}}, DOCUMENTS, ["R-NO-SET"]),
        ({}, {"holdout": {"documents": 0, "wording": False}}, {}, ["R-NO-HELDOUT"]),
        ({}, {"holdout": {"documents": 0, "wording": False}}, WORDING, ["R-NO-HELDOUT"]),
        ({"wordings": 1}, {"holdout": {"documents": 0}}, {}, ["R-NO-HELDOUT"]),
        ({"wordings": 1}, {}, {"primary": "heldout_loss/unseen_wording"}, ["R-NO-SET"]),
        ({}, {}, {"primary": "heldout_loss/unseen_wording"}, []),
        ({}, {}, {"primary": "heldout_loss/general"}, []),
    ],
)
def test_sets_have_to_be_held_out_to_be_evaluated(
    generator: dict[str, Any], validator: dict[str, Any], evaluator: dict[str, Any], expected: list[str]
) -> None:
    assert codes(*six(generator=generator, validator=validator, evaluator=evaluator)) == expected


def test_wordings_are_seen_through_a_second_validator() -> None:
    nodes = six(generator={}, validator={}, evaluator=WORDING)
    nodes.insert(2, node("validator", "first"))
    assert codes(*nodes) == []


def test_the_field_of_a_missing_set_is_named() -> None:
    given = {"benchmarks": [{"name": "f1"}, {"name": "f1", "set": "unseen_wording"}], "primary": "f1/unseen_wording"}
    found = reasons(*six(generator={"wordings": 1}, validator={}, evaluator=given))
    assert [reason.field for reason in found] == ["config.benchmarks.1.set", "config.primary"]
    assert found[0].because == "No set unseen_wording is held out; there is unseen_documents."


def test_rows_that_training_saw_are_no_evaluation() -> None:
    benchmarks = [{"name": "f1", "path": "tasks.jsonl"}, {"name": "f1"}]
    assert codes(source(), node("trainer"), node("evaluator", benchmarks=benchmarks)) == ["R-NO-HELDOUT"]
    benchmarks = [{"name": "lm_evals"}]
    assert codes(source(), node("trainer"), node("evaluator", benchmarks=benchmarks)) == ["R-NO-HELDOUT"]


@pytest.mark.parametrize(
    ("primary", "benchmarks", "fine"),
    [
        ("f1", [{"name": "f1", "set": "unseen_documents"}], True),
        ("f1/unseen_documents", [{"name": "f1", "set": "unseen_documents"}], True),
        ("f1/unseen_documents", [{"name": "f1"}], True),
        ("f1/heldout", [{"name": "f1", "set": "unseen_documents"}], False),
        ("f2", [{"name": "f1"}, {"name": "f2"}], True),
        ("f3", [{"name": "f1"}, {"name": "f2"}], False),
        ("f1/tasks", [{"name": "f1", "path": "tasks.jsonl"}], True),
    ],
)
def test_the_primary_metric_has_to_be_listed(primary: str, benchmarks: list[dict[str, str]], fine: bool) -> None:
    found = codes(
        source(), node("validator"), node("trainer"), node("evaluator", benchmarks=benchmarks, primary=primary)
    )
    assert found == ([] if fine else ["R-PRIMARY"])


def deployed(trainer: dict[str, Any], *targets: dict[str, Any]) -> list[Reason]:
    return reasons(
        source(), node("validator"), node("trainer", **trainer), node("evaluator"),
        node("deployer", targets=list(targets)),
    )  # fmt: skip


VLLM = {"type": "vllm", "url": "http://127.0.0.1:8000"}


def test_each_target_is_judged_by_itself() -> None:
    found = deployed({"lora": {"rank": 32}}, {"type": "registry"}, VLLM, {**VLLM, "max_lora_rank": 32})
    assert [(reason.code, reason.field) for reason in found] == [("R-RANK-SERVER", "config.targets.1.max_lora_rank")]
    assert found[0].because == "The adapter has rank 32, and the server takes at most 16."


def test_a_stated_limit_counts_for_every_kind_of_target() -> None:
    found = deployed({"lora": {"rank": 9}}, {"type": "embedded", "max_lora_rank": 8})
    assert [reason.code for reason in found] == ["R-RANK-SERVER"]
    assert deployed({"lora": {"rank": 8}}, {"type": "embedded", "max_lora_rank": 8}) == []


def test_rank_means_nothing_for_full_weights_and_for_oft() -> None:
    assert [r.code for r in deployed({"method": "full"}, VLLM)] == ["R-FULL-HOTLOAD"]
    assert [r.code for r in deployed({"method": "oft", "backend": "native"}, VLLM)] == ["R-TARGET-ADAPTER"]
    assert [r.code for r in deployed({"method": "freeze", "backend": "native"}, VLLM)] == ["R-FULL-HOTLOAD"]


def test_all_reasons_of_a_target_are_told_at_once() -> None:
    found = deployed(
        {"method": "dora", "lora": {"rank": 64, "modules_to_save": ["lm_head", "embed_tokens"]}},
        {"type": "vllm", "base_model": "org/other"},
    )
    assert [reason.code for reason in found] == [
        "R-TARGET-ADAPTER", "R-TARGET-ADAPTER", "R-RANK-SERVER", "R-BASE-MISMATCH", "R-TARGET-URL",
    ]  # fmt: skip
    assert "(lm_head, embed_tokens)" in found[1].because


@pytest.mark.parametrize(
    ("kind", "method", "codes"),
    [
        ("llama_server", "lora", []),
        ("llama_server", "dora", ["R-TARGET-ADAPTER"]),
        ("llama_server", "full", []),
        ("ollama", "qlora", []),
        ("ollama", "oft", ["R-TARGET-ADAPTER"]),
        ("mlx", "dora", []),
        ("mlx", "oft", ["R-TARGET-ADAPTER"]),
    ],
)
def test_what_the_files_of_a_target_have_no_words_for(kind: str, method: str, codes: list[str]) -> None:
    assert [reason.code for reason in deployed({"method": method, "backend": "native"}, {"type": kind})] == codes


def test_a_server_that_the_deployer_starts_has_no_address_to_give() -> None:
    own = {"type": "mlx", "url": "http://127.0.0.1:8080"}
    assert [reason.code for reason in deployed({}, own)] == ["R-TARGET-OWN"]


def test_a_report_must_be_about_what_is_deployed() -> None:
    found = reasons(
        source(), node("validator"), node("trainer"), node("evaluator"), node("trainer", "later"), node("deployer")
    )
    assert [reason.code for reason in found] == ["R-REPORT-MISMATCH"]
    assert found[0].because == "The report judges 'trainer', and 'later' would be deployed."


def test_a_deployer_may_be_unevaluated_with_an_evaluator_too() -> None:
    nodes = source(), node("validator"), node("trainer"), node("evaluator"), node("deployer", unevaluated=True)
    assert codes(*nodes) == []
