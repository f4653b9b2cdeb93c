"""DeepSpeed, unsloth and axolotl in their own environments: each really trains, stops, continues and hands over."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.conftest import REPOSITORY
from tests.small_jobs import Jobs, Ran, train_as_child
from trainyard.backends.axolotl import program as axolotl_program
from trainyard.backends.deepspeed.program import is_rank
from trainyard.backends.environments import WORKERS
from trainyard.backends.results import TrainingStopped
from trainyard.compute.events import Event
from trainyard.compute.supervise import DesiredState
from trainyard.errors import Corrupt, InvalidInput, TrainyardError
from trainyard.spec.axes.data import Port

pytestmark = [pytest.mark.backends, pytest.mark.timeout(600)]

ENVIRONMENTS = REPOSITORY / ".trainyard" / "envs"
TOOLS = ("deepspeed", "unsloth", "axolotl")
DISTRIBUTIONS = {"deepspeed": "deepspeed", "unsloth": "unsloth", "axolotl": "axolotl"}
SHORT = {"max_steps": 14, "save_steps": 5}
"""Two epochs: single batches are too different to show that a loss falls."""


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cached environments of the checkout, named as an operator would name his own."""
    missing = [name for name in TOOLS if not (ENVIRONMENTS / name / "bin" / "python").exists()]
    if missing:
        pytest.skip(f"no environment for {', '.join(missing)}: run `trainyard backends install {missing[0]}`")
    monkeypatch.setenv("TRAINYARD_BACKEND_ENVS", json.dumps({name: str(ENVIRONMENTS / name) for name in TOOLS}))


def read_command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


class Stopper:
    """Asks for a pause once a step is told; notes what runs below us at that moment."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.seen = at, 0
        self.commands: list[str] = []

    def __call__(self, event: Event) -> None:
        if event["event"] == "progress":
            self.seen = max(self.seen, int(event["step"]))
            if not self.commands:
                self.commands = [" ".join(read_command(child)) for child in psutil.Process().children(recursive=True)]

    def read_desired_state(self) -> DesiredState:
        return DesiredState.PAUSE if self.at and self.seen >= self.at else DesiredState.RUN


def run(jobs: Jobs, folder: Path, stopper: Stopper | None = None, *, port: Port = Port.SFT, **config: Any) -> Ran:
    hyper = {**SHORT, **config.pop("hyperparameters", {})}
    stopper = stopper or Stopper()
    job = jobs(port, hyperparameters=hyper, **config)
    return train_as_child(job, folder, note=stopper, desired_state=stopper.read_desired_state, poll_s=0.05)


def losses(ran: Ran) -> list[float]:
    return [loss for _, loss, _ in ran.record["losses"]]


def adapter_loss(base: Path, adapter: Path | None) -> float:
    """How well a model predicts one of the rows."""
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter)
    ids = torch.arange(10, 30)[None]
    with torch.no_grad():
        return float(model(input_ids=ids, labels=ids).loss)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("tool", TOOLS)
def test_tool_trains_an_adapter_that_peft_loads(tool: str, jobs: Jobs, tmp_path: Path, tiny_model: Path) -> None:
    watch = Stopper()
    ran = run(jobs, tmp_path, watch, backend=tool)
    record = ran.record
    prefixes = (str(ENVIRONMENTS / tool), str((ENVIRONMENTS / tool).resolve()))
    assert any(command.startswith(prefixes) for command in watch.commands), watch.commands
    assert record["backend"] == tool
    assert record["tool"]["version"] == record["versions"][DISTRIBUTIONS[tool]]
    assert record["tool"]["log_head"].strip()
    assert sum(losses(ran)[7:]) < sum(losses(ran)[:7]) - 1
    assert [step for step, _, _ in record["losses"]] == list(range(1, 15))
    tokens = record["data"]["tokens"]
    assert tokens["read"] == tokens["trained"] + tokens["masked"] + tokens["truncated"] + tokens["dropped"]
    assert (record["lora"]["rank"], record["lora"]["alpha"]) == (32, 64.0)
    assert [event["step"] for event in ran.of("progress")] == list(range(1, 15))
    assert [event["step"] for event in ran.of("checkpoint")] == [5, 10]
    config = json.loads((ran.folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tiny_model)
    assert adapter_loss(tiny_model, ran.folder) != adapter_loss(tiny_model, None)


@pytest.mark.parametrize("tool", TOOLS)
def test_stopped_run_continues_where_it_was(tool: str, jobs: Jobs, tmp_path: Path) -> None:
    """Between two regular checkpoints, so that the stop has to save by itself."""
    whole = run(jobs, tmp_path / "whole", backend=tool, hyperparameters={"max_steps": 30, "save_steps": 20})
    stopper = Stopper(at=3)
    with pytest.raises(TrainingStopped, match=r"stopped at step \d+; its checkpoint is kept"):
        run(jobs, tmp_path / "cut", stopper, backend=tool, hyperparameters={"max_steps": 30, "save_steps": 20})
    ran = run(jobs, tmp_path / "cut", backend=tool, hyperparameters={"max_steps": 30, "save_steps": 20})
    restart = ran.of("begin")[-1]["restarted_from"]
    assert restart is not None
    assert 3 <= restart["step"] < 30
    assert ran.of("progress")[0]["step"] == restart["step"] + 1
    assert losses(ran) == pytest.approx(losses(whole), abs=1e-6)
    ran_weights, whole_weights = (load_file(training.folder / "adapter_model.safetensors") for training in (ran, whole))
    assert all(torch.equal(ran_weights[name], whole_weights[name]) for name in whole_weights)


@pytest.fixture(scope="module")
def curve(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[float]]:
    """Losses of one process on ZeRO-0, four rows a step, for a method; computed once."""
    curves: dict[str, list[float]] = {}

    def of(method: str) -> list[float]:
        if method not in curves:
            ran = run(jobs, tmp_path_factory.mktemp(method), **configure_deepspeed(method, "single", 1, 4, 1))
            curves[method] = losses(ran)
        return curves[method]

    return of


def configure_deepspeed(method: str, strategy: str, processes: int, rows: int, accumulation: int) -> dict[str, Any]:
    rate = {"learning_rate": 1e-3} if method == "full" else {}
    return {
        "backend": "deepspeed",
        "method": method,
        "launch": {"strategy": strategy, "processes": processes},
        "hyperparameters": {"batch_size": rows, "gradient_accumulation": accumulation, **rate},
    }


@pytest.mark.parametrize(
    ("method", "strategy", "processes", "rows", "accumulation"),
    [
        ("lora", "ddp", 2, 1, 2),
        ("lora", "zero1", 2, 2, 1),
        ("lora", "zero2", 4, 1, 1),
        ("lora", "zero3", 2, 2, 1),
        ("full", "zero2", 2, 1, 2),
        ("full", "zero3", 4, 1, 1),
    ],
)
def test_every_sharing_has_the_curve_of_one_process(  # noqa: PLR0917 (one row of the table each)
    method: str,
    strategy: str,
    processes: int,
    rows: int,
    accumulation: int,
    curve: Callable[[str], list[float]],
    jobs: Jobs,
    tmp_path: Path,
) -> None:
    ran = run(jobs, tmp_path, **configure_deepspeed(method, strategy, processes, rows, accumulation))
    assert losses(ran) == pytest.approx(curve(method), abs=1e-4)  # rounding, after 14 steps at a high rate
    sharding = ran.record["sharding"]
    share = {"ddp": 1, "zero1": processes, "zero2": processes, "zero3": processes}[strategy]
    assert sharding["optimizer_here"] == pytest.approx(sharding["trained"] / share, rel=0.01)
    assert sharding["weights_here"] == pytest.approx(
        sharding["weights"] / (share if strategy == "zero3" else 1), rel=0.01
    )
    if method == "full":
        model = AutoModelForCausalLM.from_pretrained(ran.folder)
        assert all(torch.isfinite(weight).all() for weight in model.parameters())


def test_processes_agree_on_a_step_and_resume_in_the_same_number(jobs: Jobs, tmp_path: Path) -> None:
    job_config = configure_deepspeed("lora", "zero3", 2, 2, 1)
    job_config["hyperparameters"] |= {"max_steps": 30, "save_steps": 20}
    whole = run(jobs, tmp_path / "whole", **job_config)
    with pytest.raises(TrainingStopped, match="its checkpoint is kept"):
        run(jobs, tmp_path / "cut", Stopper(at=3), **job_config)
    (checkpoint,) = (tmp_path / "cut").glob("home/runs/training/*/checkpoints/step-*")
    made_by = json.loads((checkpoint / "manifest.json").read_text())
    assert (made_by["processes"], made_by["strategy"]) == (2, "zero3")
    assert (checkpoint / (checkpoint / "latest").read_text().strip()).is_dir()
    ran = run(jobs, tmp_path / "cut", **job_config)
    assert losses(ran) == pytest.approx(losses(whole), abs=1e-6)
    ran_weights, whole_weights = (load_file(training.folder / "adapter_model.safetensors") for training in (ran, whole))
    assert all(torch.equal(ran_weights[name], whole_weights[name]) for name in whole_weights)


def test_checkpoint_of_another_number_of_processes_is_refused(jobs: Jobs, tmp_path: Path) -> None:
    job_config = configure_deepspeed("lora", "zero1", 2, 2, 1)
    job_config["hyperparameters"] |= {"max_steps": 30}
    with pytest.raises(TrainingStopped):
        run(jobs, tmp_path, Stopper(at=2), **job_config)
    (manifest, *_) = (tmp_path).glob("home/runs/training/*/checkpoints/step-*/manifest.json")
    for path in (tmp_path).glob("home/runs/training/*/checkpoints/step-*/manifest.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "processes": 4}))
    with pytest.raises(Corrupt, match=r"E-CHECKPOINT-MISMATCH: .* made with processes 4, this run has 2"):
        run(jobs, tmp_path, **job_config)
    assert manifest.exists()


def test_damaged_checkpoint_is_put_aside_and_the_one_before_it_is_taken(jobs: Jobs, tmp_path: Path) -> None:
    job_config = configure_deepspeed("lora", "single", 1, 4, 1)
    job_config["hyperparameters"] |= {"max_steps": 30}
    with pytest.raises(TrainingStopped):
        run(jobs, tmp_path, Stopper(at=5), **job_config)
    newest = max(tmp_path.glob("home/runs/training/*/checkpoints/step-*"))
    (newest / "latest").write_text("global_step0")
    ran = run(jobs, tmp_path, **job_config)
    assert [event["code"] for event in ran.of("warning")] == ["E-CHECKPOINT-CORRUPT"]
    assert ran.of("begin")[-1]["restarted_from"]["step"] < int(newest.name.removeprefix("step-"))


def test_process_that_is_killed_fails_the_run_and_leaves_nothing_running(jobs: Jobs, tmp_path: Path) -> None:
    job_config = configure_deepspeed("lora", "zero2", 2, 2, 1)
    job_config["hyperparameters"] |= {"max_steps": 2000, "save_steps": 500}
    killed: list[psutil.Process] = []

    def kill_one(event: Event) -> None:
        if event["event"] == "progress" and not killed:
            ranks = [process for process in psutil.Process().children(recursive=True) if is_rank(process)]
            killed.extend(ranks)
            ranks[-1].kill()

    with pytest.raises(TrainyardError, match="E-RANK-LOST: One of the 2 processes of the training is gone"):
        train_as_child(jobs(**job_config), tmp_path, note=kill_one, poll_s=0.05)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in killed)


def test_launcher_of_deepspeed_itself_starts_the_same_processes(jobs: Jobs, tmp_path: Path) -> None:
    job_config = configure_deepspeed("lora", "zero2", 2, 2, 1)
    job_config["launch"]["launcher"] = "deepspeed"
    job_config["hyperparameters"] |= {"max_steps": 3}
    watch = Stopper()
    ran = run(jobs, tmp_path, watch, **job_config)
    assert any("deepspeed.launcher.launch" in command for command in watch.commands)
    assert len(losses(ran)) == 3


def test_stop_before_the_first_step_ends_every_process(jobs: Jobs, tmp_path: Path) -> None:
    begin_events: list[Event] = []

    def note(event: Event) -> None:
        begin_events.extend([event] if event["event"] == "program" else [])

    def read_desired_state() -> DesiredState:
        return DesiredState.PAUSE if begin_events else DesiredState.RUN

    job = jobs(**configure_deepspeed("lora", "zero1", 2, 2, 1))
    with pytest.raises(TrainingStopped, match="stopped while it waited for the device"):
        train_as_child(job, tmp_path, note=note, desired_state=read_desired_state, poll_s=0.05)
    assert train_as_child(job, tmp_path).record["steps"] == 14


@pytest.mark.parametrize(
    ("stage", "method"),
    [("sft", "full"), ("sft", "dora"), ("dpo", "lora"), ("kto", "lora"), ("reward", "lora"), ("reward", "full")],
)
def test_axolotl_carries_out_each_stage_and_method_on_a_cpu(
    stage: str, method: str, jobs: Jobs, tmp_path: Path
) -> None:
    port = {"sft": Port.SFT, "kto": Port.LABELLED}.get(stage, Port.PREFERENCE)
    hyper = {"max_steps": 3, "max_length": 64, **({"learning_rate": 1e-3} if method == "full" else {})}
    ran = run(jobs, tmp_path, port=port, backend="axolotl", stage=stage, method=method, hyperparameters=hyper)
    first = {"dpo": math.log(2), "kto": 0.5}.get(stage)
    if first is not None:  # the policy is still the reference
        assert ran.record["first_loss"] == pytest.approx(first, abs=1e-3)
    assert len(losses(ran)) == 3
    assert (ran.folder / ("model.safetensors" if method == "full" else "adapter_model.safetensors")).is_file()


def test_own_keys_of_axolotl_train_and_its_schema_refuses_wrong_ones(jobs: Jobs, tmp_path: Path) -> None:
    hyper = {"max_steps": 3, "max_length": 64}
    plain = run(jobs, tmp_path / "plain", backend="axolotl", hyperparameters=hyper)
    noisy = run(jobs, tmp_path / "noisy", backend="axolotl", hyperparameters=hyper, extra={"neftune_noise_alpha": 50.0})
    assert losses(noisy) != losses(plain)
    with pytest.raises(TrainyardError, match=r"E-BACKEND-CONFIG: Axolotl has no key 'neftune_noise_alfa'"):
        run(jobs, tmp_path / "wrong", backend="axolotl", hyperparameters=hyper, extra={"neftune_noise_alfa": 5})


def test_misspelt_key_of_axolotl_is_refused(tmp_path: Path) -> None:
    config = {"base_model": "tiny", "micro_batch_size": 1, "gradient_accumulation_steps": 1, "learning_rate": 1e-3}
    config |= {"datasets": [{"path": "rows.jsonl", "type": "alpaca"}], "adapter": "lora", "lora_rr": 8}
    (tmp_path / "axolotl.yaml").write_text(json.dumps(config))
    variables = axolotl_program.environments.variables()
    with pytest.raises(InvalidInput, match=r"E-BACKEND-CONFIG: Axolotl has no key 'lora_rr'.*Did you mean 'lora_r'"):
        axolotl_program.require_valid(tmp_path, variables)
    right = {"lora_r" if key == "lora_rr" else key: value for key, value in config.items()}
    (tmp_path / "axolotl.yaml").write_text(json.dumps(right | {"adapter": "dora"}))
    with pytest.raises(InvalidInput, match=r"E-BACKEND-CONFIG: Axolotl's schema refuses the configuration: .*adapter"):
        axolotl_program.require_valid(tmp_path, variables)


SCHEMA = """
import sys
from types import SimpleNamespace
from deepspeed.runtime.config import DeepSpeedConfig
from trainyard_worker.deepspeed_engine import engine_config
hyper = {"batch_size": 2, "gradient_accumulation": 1, "learning_rate": 1e-3, "max_grad_norm": 1.0}
for name in ("fp32", "bf16", "fp16"):
    read = DeepSpeedConfig(engine_config(SimpleNamespace(hyper=hyper), 0, 1, name))
    print(name, read.bfloat16_config.enabled, read.float16_config.enabled, read.float16_config.initial_scale_power)
"""


def test_deepspeed_reads_each_precision_as_it_is_meant() -> None:
    """fp16 is that of a GPU which only emulates bf16; its loss scale begins where the native engine's does."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "PYTHONPATH": str(WORKERS)}
    argv = [str(ENVIRONMENTS / "deepspeed" / "bin" / "python"), "-c", SCHEMA]
    ran = subprocess.run(argv, env={**os.environ, **alone}, capture_output=True, text=True, check=True)
    lines = [line for line in ran.stdout.splitlines() if line.startswith(("fp", "bf"))]
    assert lines == ["fp32 False False 10", "bf16 True False 10", "fp16 False True 10"]
