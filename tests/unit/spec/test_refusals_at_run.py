"""What only a run can know: paths, endpoints, devices, programs and servers of the machine and its operator."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.spec.chains import chain, get_row_name, node, reasons, source
from tests.unit.spec.test_refusals import check_at_run, run_names
from trainyard.errors import Reason
from trainyard.spec.axes.devices import Device
from trainyard.spec.compat.context import RunFacts
from trainyard.spec.compat.run import length_advice
from trainyard.spec.estimate.shape import BaseFacts
from trainyard.spec.graph import resolve
from trainyard.spec.nodes import TrainerConfig


def test_every_path_of_a_chain_is_asked_about() -> None:
    sets = {"sft": {"path": "/a.jsonl"}, "preference": {"path": "b.jsonl"}, "documents": {"repository": "../code"}}
    refusals = check_at_run(
        chain(
            node("data_source", sets=sets),
            node("validator", evaluation_sets=["fine.jsonl", "../tasks.jsonl"]),
            node("trainer"),
            node("evaluator", benchmarks=[{"name": "f1", "path": "/t.jsonl"}, {"name": "f1"}, {"name": "forgetting"}]),
        )
    )
    assert [(get_row_name(reason), reason.node, reason.field) for reason in refusals] == [
        ("path-root", "data-source", "config.sets.sft.path"),
        ("path-root", "data-source", "config.sets.documents.repository"),
        ("path-root", "validator", "config.evaluation_sets.1"),
        ("path-root", "evaluator", "config.benchmarks.0.path"),
    ]
    assert refusals[0].because == "The path '/a.jsonl' leads out of the data roots."


def test_what_is_not_a_local_path_is_not_asked_about() -> None:
    everything = RunFacts(path_problem=lambda path: Reason("path-root", None, "", f"{path} is asked about.", "No."))
    assert run_names(node("data_source", url="https://host.example/a.jsonl"), facts=everything) == []
    assert run_names(node("data_source", repository="code"), facts=everything) == ["path-root"]


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("file:///backup/one", "/backup/one"), ("file:/backup", "/backup"), ("FILE:///backup", "/backup"),
        ("file://localhost/backup", "/backup"), ("file:///a/%2e%2e/b", "/a/../b"),
    ],
)  # fmt: skip
def test_a_mirror_on_this_machine_is_a_path_like_another(address: str, path: str) -> None:
    refusals = check_at_run(chain(source(), node("trainer", engine={"mirror": address})))
    assert [(get_row_name(reason), reason.field) for reason in refusals] == [("path-root", "config.engine.mirror")]
    assert refusals[0].because == f"The path {path!r} leads out of the data roots."


def test_the_file_of_a_chat_template_is_asked_about() -> None:
    refusals = check_at_run(chain(source(), node("trainer", engine={"template": "../chat.jinja"})))
    assert [(get_row_name(reason), reason.field) for reason in refusals] == [("path-root", "config.engine.template")]
    for engine in ({"template": "chat.jinja"}, {"template": "chatml"}, {"mirror": "gs://bucket/one"}, {}):
        assert run_names(source(), node("trainer", engine=engine)) == []


@pytest.mark.parametrize(
    ("device", "here", "expected"),
    [
        ("auto", {Device.CPU}, ["engine-cuda-here", "engine-cuda-here"]),
        ("auto", {Device.CPU, Device.CUDA}, []),
        ("auto", {Device.CPU, Device.ROCM}, []),
        ("auto", {Device.CPU, Device.MPS}, ["engine-cuda-here", "engine-cuda-here"]),
        ("cuda", {Device.CPU}, ["device-missing"]),
        ("auto", None, []),
    ],
)
def test_kernels_of_cuda_where_the_device_shows_at_run(
    device: str, here: set[Device] | None, expected: list[str]
) -> None:
    trainer = node("trainer", device=device, engine={"head": "liger", "fp8": "torchao"})
    assert run_names(source(), trainer, facts=RunFacts(devices=here)) == expected
    plain = node("trainer", device=device, engine={"head": "auto", "fp8": "auto"})
    assert run_names(source(), plain, facts=RunFacts(devices=here)) == [
        name for name in expected if name != "engine-cuda-here"
    ]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, []),
        ({"model": "known"}, []),
        ({"model": "unknown"}, ["engine-unresolved"]),
        ({"model": "unknown", "engine": "openai"}, ["engine-unresolved"]),
        ({"model": "unknown", "engine": "local"}, []),
        ({"model": "unknown", "base_url": "http://127.0.0.1:1/v1"}, []),
        ({"model": "unknown", "engine": "vllm"}, ["vllm-cuda"]),
    ],
)
def test_a_model_needs_somebody_who_answers(config: dict[str, Any], expected: list[str]) -> None:
    assert run_names(source("docs"), node("ai_generator", **config)) == expected


def test_vllm_needs_cuda_and_its_program() -> None:
    nodes = source("docs"), node("ai_generator", engine="vllm", model="m")
    assert run_names(*nodes, facts=RunFacts(devices=frozenset({Device.CPU, Device.CUDA}))) == []
    bare = RunFacts(devices=frozenset({Device.CPU}), vllm_install="pip install vllm")
    assert run_names(*nodes, facts=bare) == ["vllm-cuda", "vllm-missing"]
    assert run_names(source("docs"), node("ai_generator", engine="local", model="m"), facts=bare) == []


def test_a_missing_backend_says_why_and_what_is_here() -> None:
    (reason,) = check_at_run(chain(source(), node("trainer", backend="unsloth")))
    assert reason.because == "The backend unsloth is not available here: Not installed."
    assert reason.instead == "Use one of: native, trl."
    (reason,) = check_at_run(chain(source(), node("trainer", backend="mlx")), RunFacts(backends={}))
    assert reason.because == "The backend mlx is not available here: This version does not have it."
    assert reason.instead == "Use one of: none is available here."


@pytest.mark.parametrize(
    ("device", "here", "expected"),
    [
        ("auto", {Device.CPU}, []),
        ("cpu", {Device.CPU}, []),
        ("mps", {Device.CPU}, ["device-missing"]),
        ("mps", {Device.MPS, Device.CPU}, []),
        ("metal", {Device.MPS, Device.CPU}, []),
        ("wgpu", {Device.MPS, Device.CPU}, []),
        ("wgpu", {Device.CPU}, []),
        ("cuda:0", {Device.CPU}, ["device-missing"]),
        ("cuda:0", {Device.CPU, Device.CUDA}, []),
        ("cuda", {Device.CPU, Device.CUDA}, []),
    ],
)
def test_a_device_has_to_be_here(device: str, here: set[Device], expected: list[str]) -> None:
    assert run_names(source(), node("trainer", device=device), facts=RunFacts(devices=here)) == expected


@pytest.mark.parametrize(
    ("device", "precision", "here", "expected"),
    [
        ("auto", "fp16", {Device.CPU}, ["fp16-cpu-here"]),
        ("auto", "fp16", {Device.MPS, Device.CPU}, []),
        ("mps", "fp16", {Device.MPS, Device.CPU}, []),
        ("auto", "bf16", {Device.CPU}, []),
        ("auto", "fp16", {Device.CPU, Device.CUDA}, []),
        ("cuda", "fp16", {Device.CPU}, ["device-missing"]),
    ],
)
def test_half_precision_where_the_device_shows_at_run(
    device: str, precision: str, here: set[Device], expected: list[str]
) -> None:
    trainer = node("trainer", device=device, hyperparameters={"precision": precision})
    assert run_names(source(), trainer, facts=RunFacts(devices=here)) == expected


@pytest.mark.parametrize(("embedded", "expected"), [(False, ["target-down"]), (True, []), (None, [])])
def test_the_embedded_server_has_to_be_up(embedded: bool | None, expected: list[str]) -> None:
    nodes = [source(), node("validator"), node("trainer"), node("evaluator")]
    targets = [{"type": "registry"}, {"type": "embedded", "url": "http://127.0.0.1:1"}, {"type": "embedded"}]
    refusals = check_at_run(chain(*nodes, node("deployer", targets=targets)), RunFacts(embedded=embedded))
    assert [get_row_name(reason) for reason in refusals] == expected
    assert [reason.field for reason in refusals] == ["config.targets.2.type"] * len(expected)


def test_nothing_is_refused_for_what_is_not_known() -> None:
    nodes = [source("/docs"), node("ai_generator", model="m"), node("trainer", backend="mlx", device="mps")]
    assert run_names(*nodes, facts=RunFacts()) == []


def test_the_reasons_of_several_nodes_come_in_their_order() -> None:
    refusals = reasons(
        node("trainer", backend="trl", method="qlora", quantization="gguf"),
        source(),
        node("validator", min_tokens=600),
        node("trainer", backend="trl", stage="ppo", hyperparameters={"precision": "fp16"}, device="cpu"),
        node("deployer"),
    )  # fmt: skip
    assert [(reason.node, get_row_name(reason)) for reason in refusals] == [
        ("trainer", "port-sft"),
        ("trainer", "backend-setting"),
        ("trainer", "quant-export"),
        ("validator", "token-range"),
        ("trainer-2", "backend-setting"),
        ("trainer-2", "fp16-cpu"),
        ("trainer-2", "adapter-method"),
        ("trainer-2", "grpo-reward"),
        ("deployer", "unevaluated"),
    ]


@pytest.mark.parametrize("setting", ["head", "kernels"])
def test_a_package_is_missing_only_where_a_setting_asks_for_it(setting: str) -> None:
    without = RunFacts(has_module=lambda name: name != "liger_kernel")
    asking = node("trainer", engine={setting: "liger"})
    assert run_names(source(), asking, facts=without) == ["package-missing"]
    assert run_names(source(), asking, facts=RunFacts(has_module=lambda name: True)) == []
    assert run_names(source(), node("trainer"), facts=without) == []


FULL = {"method": {"type": "full"}}
"""Positions are scaled only where the whole model is trained."""


def describe_base(**config: Any) -> BaseFacts:
    return BaseFacts.from_config({"model_type": "llama", "vocab_size": 32_000, **config})


def resolve_trainer(**config: Any) -> TrainerConfig:
    resolved = resolve(chain(source(), node("trainer", **config)))
    (trainer,) = (each.config for each in resolved.nodes if isinstance(each.config, TrainerConfig))
    return trainer


@pytest.mark.parametrize(
    ("length", "rope", "facts", "words"),
    [
        (4096, None, {"max_position_embeddings": 4096}, []),
        (4097, None, {"max_position_embeddings": 4096}, ["longer than the 4096 positions"]),
        (8192, {"type": "linear", "factor": 2.0}, {"max_position_embeddings": 4096}, []),
        (8193, {"type": "linear", "factor": 2.0}, {"max_position_embeddings": 4096}, ["than the 8192 positions"]),
        (
            4097, {"type": "yarn", "factor": 2.0, "original_length": 2048}, {"max_position_embeddings": 4096},
            ["longer than the 4096 positions"],
        ),
        (128, None, {"model_type": "gpt2", "n_positions": 128}, ["the base has 128 positions"]),
        (127, None, {"model_type": "gpt2", "n_positions": 128}, []),
        (512, None, {"sliding_window": 511, "model_type": "mistral"}, ["sees the 511 tokens before it"]),
        (512, None, {"sliding_window": 512, "model_type": "mistral"}, []),
        (512, None, {}, []),
    ],
)  # fmt: skip
def test_advice_on_rows_that_are_long_for_the_base(
    length: int, rope: Any, facts: dict[str, Any], words: list[str]
) -> None:
    config = resolve_trainer(hyperparameters={"max_length": length}, **({"rope": rope, **FULL} if rope else {}))
    advice = length_advice(config, describe_base(**facts))
    assert len(advice) == len(words)
    assert all(word in text for word, text in zip(words, advice, strict=True))


@pytest.mark.parametrize(("original", "names"), [(4096, []), (4097, ["rope-original"])])
def test_a_scaling_begins_at_the_positions_of_the_base(original: int, names: list[str]) -> None:
    facts = RunFacts(base=lambda name: describe_base(max_position_embeddings=4096))
    rope = {"type": "yarn", "factor": 2.0, "original_length": original}
    assert run_names(source(), node("trainer", rope=rope, **FULL), facts=facts) == names
