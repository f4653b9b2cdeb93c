"""mlx-lm and llama.cpp in their own environments: each really trains, stops, continues, converts and hands over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.conftest import REPOSITORY
from tests.small_jobs import Jobs, Ran, train_as_child
from tests.unit.backends.test_external_trainers import Stopper, adapter_loss, losses
from trainyard.backends.base import Probe, load_program, probe
from trainyard.backends.environments import pins
from trainyard.backends.llamacpp.build import PROGRAMS, ask_version, read_own_version
from trainyard.backends.llamacpp.plan import ContextWindows
from trainyard.backends.llamacpp.program import LINE, LogCurve
from trainyard.backends.results import TrainingStopped
from trainyard.errors import InvalidInput
from trainyard.loading import load_object as load_late
from trainyard.serve.conversion.gguf import peft_to_gguf
from trainyard.serve.conversion.to_gguf import find_tokenizer_rule
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import Port

real = pytest.mark.backends
ENVIRONMENTS = REPOSITORY / ".trainyard" / "envs"
TOOLS = ("mlx", "llamacpp")
DEV_VERSION = "0.5.0-dev (build 1, commit 0c1e570)"
CONVERTER = ENVIRONMENTS / "llamacpp" / "llama.cpp" / "convert_lora_to_gguf.py"


@pytest.fixture
def environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cached environments of the checkout, named as an operator would name his own."""
    missing = [name for name in TOOLS if not (ENVIRONMENTS / name / "bin" / "python").exists()]
    if missing:
        pytest.skip(f"no environment for {', '.join(missing)}: run `trainyard backends install {missing[0]}`")
    monkeypatch.setenv("TRAINYARD_BACKEND_ENVS", json.dumps({name: str(ENVIRONMENTS / name) for name in TOOLS}))


def run(jobs: Jobs, folder: Path, stopper: Stopper | None = None, port: Port = Port.SFT, **config: Any) -> Ran:
    stopper = stopper or Stopper()
    return train_as_child(
        jobs(port, **config), folder, note=stopper, desired_state=stopper.read_desired_state, poll_s=0.02
    )


# mlx


@real
@pytest.mark.usefixtures("environments")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("method", ["lora", "dora"])
def test_mlx_trains_an_adapter_that_peft_loads(method: str, jobs: Jobs, tmp_path: Path, tiny_model: Path) -> None:
    watch = Stopper()
    ran = run(jobs, tmp_path, watch, backend="mlx", method=method)
    record = ran.record
    assert any(str(ENVIRONMENTS / "mlx") in command for command in watch.commands), watch.commands
    assert (record["backend"], record["tool"]["name"], record["tool"]["version"]) == ("mlx", "mlx-lm", "0.32.2")
    assert "train_loss" in record["tool"]["log_head"]
    assert losses(ran)[-1] < losses(ran)[0] - 0.3
    assert [step for step, _, _ in record["losses"]] == list(range(1, 15))
    assert record["data"]["tokens"]["trained"] == 371
    assert (record["tokens"]["trained"], record["counted"]) == (2 * 371, "plan")
    config = json.loads((ran.folder / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["use_dora"]) == (str(tiny_model), method == "dora")
    assert adapter_loss(tiny_model, ran.folder) != adapter_loss(tiny_model, None)


@real
@pytest.mark.usefixtures("environments")
def test_mlx_trains_whole_weights_into_a_model_of_transformers(jobs: Jobs, tmp_path: Path, tiny_model: Path) -> None:
    ran = run(jobs, tmp_path, backend="mlx", method="full", hyperparameters={"learning_rate": 1e-3})
    assert losses(ran)[-1] < losses(ran)[0] - 0.5
    base, trained = (load_file(folder / "model.safetensors") for folder in (tiny_model, ran.folder))
    assert {name: value.shape for name, value in trained.items()} == {name: value.shape for name, value in base.items()}
    assert not any(torch.equal(trained[name], base[name]) for name in base)
    assert AutoModelForCausalLM.from_pretrained(ran.folder).config.model_type == "llama"


@real
@pytest.mark.usefixtures("environments")
def test_mlx_continues_an_adapter_of_the_native_engine_from_the_same_loss(jobs: Jobs, tmp_path: Path) -> None:
    """What crosses the border means the same on both sides, and so do rows, masks and loss."""
    engine = {"batching": "padded"}
    first = run(jobs, tmp_path / "first", backend="native", engine=engine)
    hyperparameters = {"max_steps": 1, "batch_size": 28}
    native_run = run(
        jobs, tmp_path / "ours", backend="native", engine=engine, adapter=first.folder, hyperparameters=hyperparameters
    )
    mlx_run = run(jobs, tmp_path / "theirs", backend="mlx", adapter=first.folder, hyperparameters=hyperparameters)
    assert losses(mlx_run)[0] == pytest.approx(losses(native_run)[0], abs=1e-4)


@real
@pytest.mark.usefixtures("environments")
@pytest.mark.parametrize("method", ["lora", "full"])
def test_stopped_mlx_goes_on_to_the_same_bits(method: str, jobs: Jobs, tmp_path: Path) -> None:
    shape: dict[str, Any] = {"method": {"type": "lora", "dropout": 0.1}} if method == "lora" else {}
    job: dict[str, Any] = {"backend": "mlx", "method": method, **shape}
    job["hyperparameters"] = {"max_steps": 40, "save_steps": 30, "gradient_accumulation": 2, "learning_rate": 1e-3}
    whole = run(jobs, tmp_path / "whole", **job)
    with pytest.raises(TrainingStopped, match=r"stopped at step \d+; its checkpoint is kept"):
        run(jobs, tmp_path / "cut", Stopper(at=3), **job)
    rest = run(jobs, tmp_path / "cut", **job)
    assert rest.of("begin")[0]["restarted_from"]["step"] >= 3
    assert losses(rest) == losses(whole)
    name = "adapter_model.safetensors" if method == "lora" else "model.safetensors"
    resumed_weights, whole_weights = (load_file(ran.folder / name) for ran in (rest, whole))
    assert all(torch.equal(resumed_weights[key], whole_weights[key]) for key in whole_weights)


@real
@pytest.mark.usefixtures("environments")
@pytest.mark.parametrize("optimizer", ["sgd", "lion", "adafactor"])
def test_mlx_has_other_optimizers_and_plain_text(optimizer: str, jobs: Jobs, tmp_path: Path) -> None:
    rate = {"sgd": 1.0, "lion": 3e-3, "adafactor": 1e-2}[optimizer]
    hyper = {"optimizer": optimizer, "learning_rate": rate, "epochs": 4}
    ran = run(jobs, tmp_path, port=Port.TEXT, backend="mlx", stage="cpt", hyperparameters=hyper)
    assert losses(ran)[-1] < losses(ran)[0]


# llama.cpp


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("version: 0.5.0-dev (build 1, commit 0c1e570)\nbuilt with GNU 12.2.0 for Linux x86_64\n", DEV_VERSION),
        ("load_backend: loaded CPU backend\nversion: 4567 (a1b2c3d)\nbuilt with cc 13", "4567 (a1b2c3d)"),
        ("error: unknown argument: --version\n", ""),
    ],
)
def test_its_version_is_read_from_what_the_program_prints(output: str, version: str, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "llama-finetune"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'END' >&2\n{output}\nEND\n")
    program.chmod(0o755)
    assert read_own_version(tmp_path) == ask_version(tmp_path) == version


@pytest.mark.parametrize("recorded", [DEV_VERSION, f"version: {DEV_VERSION} built with GNU 12.2.0 for Linux x86_64"])
def test_the_backend_s_version_is_llama_cpp_s_own(recorded: str, home: Path) -> None:
    environment_folder = home / "envs" / "llamacpp"
    info = f"gguf-{pins(BackendName.LLAMACPP)['gguf']}.dist-info"
    for folder in (f"lib/python3.11/site-packages/{info}", "bin", "llama.cpp/bin"):
        (environment_folder / folder).mkdir(parents=True)
    (environment_folder / "bin" / "python").touch()
    for name in PROGRAMS:
        (environment_folder / "llama.cpp" / "bin" / name).touch()
    (environment_folder / "llama.cpp" / "build.json").write_text(json.dumps({"version": recorded}))
    assert probe(BackendName.LLAMACPP) == Probe(True, version=DEV_VERSION)


@real
@pytest.mark.usefixtures("environments")
def test_llamacpp_trains_whole_weights_and_leaves_both_formats(jobs: Jobs, tmp_path: Path, tiny_model: Path) -> None:
    watch = Stopper()
    config = {"hyperparameters": {"learning_rate": 1e-3, "epochs": 3}, "quantization": "gguf"}
    ran = run(jobs, tmp_path, watch, backend="llamacpp", method="full", **config)
    record = ran.record
    assert any("llama-finetune" in event["argv"][0] for event in ran.of("program"))
    assert (record["tool"]["name"], record["steps"], record["context"]) == ("llama-finetune", 18, 256)
    program = ENVIRONMENTS / "llamacpp" / "llama.cpp" / "bin" / "llama-finetune"
    version_output = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert f"version: {record['tool_version']}\n" in version_output.stdout + version_output.stderr
    assert record["tool"]["version"] == record["tool_version"]
    assert record["final_loss"] < record["first_loss"] - 0.15
    tokens = record["data"]["tokens"]
    assert tokens["read"] == tokens["trained"] + tokens["masked"] + tokens["truncated"] + tokens["dropped"]
    assert sorted(path.name for path in (ran.folder / "gguf").iterdir()) == ["model-f32.gguf", "model-q8_0.gguf"]
    assert (
        (ran.folder / "chat_template.jinja").read_text().startswith("{% for message in messages %}{{ message.role }}:")
    )
    base, trained = (load_file(folder / "model.safetensors") for folder in (tiny_model, ran.folder))
    assert {name: value.shape for name, value in trained.items()} == {name: value.shape for name, value in base.items()}
    still = [name for name in base if torch.equal(trained[name], base[name])]
    assert still == ["model.embed_tokens.weight"]  # which is what the record says
    assert record["frozen"] == ["token embeddings"]
    assert AutoModelForCausalLM.from_pretrained(ran.folder).config.max_position_embeddings == 2048


@real
@pytest.mark.usefixtures("environments")
def test_stopped_llamacpp_goes_on_from_its_last_epoch_to_the_same_bits(jobs: Jobs, tmp_path: Path) -> None:
    job: dict[str, Any] = {"backend": "llamacpp", "method": "full"}
    job["hyperparameters"] = {"learning_rate": 1e-3, "epochs": 12}
    whole = run(jobs, tmp_path / "whole", **job)
    with pytest.raises(TrainingStopped):
        run(jobs, tmp_path / "cut", Stopper(at=13), **job)
    rest = run(jobs, tmp_path / "cut", **job)
    assert rest.of("begin")[0]["restarted_from"]["step"] >= 12
    assert losses(rest) == losses(whole)
    assert (rest.folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()


@real
@pytest.mark.usefixtures("environments")
def test_text_that_fills_no_window_is_refused_with_the_numbers(jobs: Jobs, tmp_path: Path) -> None:
    config = {"hyperparameters": {"max_length": 2048}}
    with pytest.raises(
        InvalidInput, match=r"E-DATA-EMPTY: The text has 1132 tokens, and llama-finetune needs at least"
    ):
        run(jobs, tmp_path, backend="llamacpp", method="full", **config)


@real
@pytest.mark.usefixtures("environments")
def test_our_gguf_adapter_is_that_of_llama_cpp(jobs: Jobs, tmp_path: Path, tiny_model: Path) -> None:
    """Tensor for tensor what llama.cpp's own converter writes."""
    adapter = run(jobs, tmp_path, backend="native", hyperparameters={"max_steps": 3}).folder
    peft_to_gguf(adapter, tmp_path / "ours.gguf", tiny_model)
    options = ["--outtype", "f32", "--outfile", str(tmp_path / "theirs.gguf"), "--base", str(tiny_model)]
    argv = [sys.executable, str(CONVERTER), *options, str(adapter)]
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    readers = [load_late("gguf").GGUFReader(str(tmp_path / f"{name}.gguf")) for name in ("ours", "theirs")]
    our_tensors, their_tensors = (
        {tensor.name: tensor.data.tobytes() for tensor in reader.tensors} for reader in readers
    )
    assert our_tensors == their_tensors
    alphas = [reader.get_field("adapter.lora.alpha").contents() for reader in readers]
    assert alphas[0] == alphas[1] == 64.0


def test_windows_are_counted_as_llama_cpp_counts_them() -> None:
    account = ContextWindows.of(1132, 40)
    assert (account.context, account.windows) == (256, 6)
    tokens = account.ledger(30, 0).tokens()
    assert tokens == {"read": 1132, "trained": 896, "masked": 1, "truncated": 0, "dropped": 235}
    assert ContextWindows.of(257, 40).windows == 0
    assert ContextWindows.of(10_000, 257).context == 512


def test_the_loss_of_a_step_is_read_from_means() -> None:
    curve = LogCurve()
    assert [curve.see(step, mean) for step, mean in ((1, 6.0), (2, 5.0), (3, 5.0))] == pytest.approx([6.0, 4.0, 5.0])
    line = b"\rtrain: [\xe2\x96\x8f] data=0000012/0000040 loss=5.51109\xc2\xb10.02 acc=1.00% t=00:00:00 ETA=00:00:01 \n"
    assert LINE.findall(line) == [(b"12", b"40", b"5.51109")]


@pytest.mark.parametrize(
    ("rule", "normalizer", "is_gpt2"),
    [
        ({"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}, None, True),
        ({"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}, None, False),
        ({"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}, None, False),
        ({"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}, {"type": "NFC"}, False),
        ({"type": "Whitespace"}, None, False),
        (None, None, False),
    ],
)
def test_only_the_rule_of_gpt2_is_declared_as_that(rule: Any, normalizer: Any, is_gpt2: bool, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"pre_tokenizer": rule, "normalizer": normalizer}))
    if is_gpt2:
        assert find_tokenizer_rule(tmp_path) == "gpt-2"
        return
    with pytest.raises(InvalidInput, match=r"E-CONVERT: llama\.cpp does not know the tokenizer"):
        find_tokenizer_rule(tmp_path)


@pytest.mark.parametrize("name", [BackendName.MLX, BackendName.LLAMACPP])
def test_an_absent_tool_says_how_it_is_installed(name: BackendName) -> None:
    with pytest.raises(Exception, match=f"R-BACKEND-MISSING.*trainyard backends install {name.value}"):
        load_program(name)
