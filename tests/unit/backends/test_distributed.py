"""Jobs in several processes, as a chain starts them: torchrun or accelerate below one supervised child."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM

from tests.small_jobs import Jobs, Ran, train_as_child
from trainyard.backends import programs
from trainyard.backends.job import TrainingJob
from trainyard.backends.native.backend import SHARED_PROGRAM
from trainyard.backends.programs import environment
from trainyard.backends.results import TrainingStopped
from trainyard.compute.events import Event
from trainyard.compute.rank_process import read_notes
from trainyard.compute.supervise import DesiredState
from trainyard.errors import TrainyardError

LAUNCHES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp", "processes": 2},
    "zero1": {"strategy": "zero1", "processes": 2},
    "zero2": {"strategy": "zero2", "processes": 2},
    "fsdp": {"strategy": "fsdp", "processes": 2},
    "fsdp_hybrid": {"strategy": "fsdp_hybrid", "processes": 4},
    "diloco": {"strategy": "ddp", "processes": 2, "diloco": {"num_islands": 2, "inner_steps": 5}},
}
STEPS = 12


def several(jobs: Jobs, strategy: str, launch: dict[str, Any] | None = None, **config: Any) -> TrainingJob:
    """A job that takes the same rows at each step in any number of processes: eight."""
    launch_settings = {**LAUNCHES.get(strategy, {}), **(launch or {})}
    hyper = {
        "batch_size": 8 // launch_settings.get("processes", 1), "max_steps": STEPS, "epochs": None, "save_steps": 3,
        **config.pop("hyperparameters", {}),
    }  # fmt: skip
    return jobs(launch=launch_settings, hyperparameters=hyper, **{"backend": "native", **config})


def weights(ran: Ran) -> dict[str, torch.Tensor]:
    name = "adapter_model.safetensors" if ran.folder.name == "adapter" else "model.safetensors"
    return load_file(ran.folder / name)


def same_bits(first: Ran, second: Ran) -> bool:
    first_weights, second_weights = weights(first), weights(second)
    return first.record["losses"] == second.record["losses"] and all(
        torch.equal(first_weights[k], second_weights[k]) for k in second_weights
    )


def work(folder: Path) -> Path:
    return next((folder / "home" / "runs" / "training").iterdir())


def living(folder: Path) -> list[psutil.Process]:
    """Processes that were started for a job, below whoever."""
    processes = []
    for process in psutil.process_iter(["cmdline"]):
        if str(folder) in " ".join(process.info["cmdline"] or []) and process.pid != os.getpid():
            processes.append(process)
    return processes


class Interrupted:
    """Asks for a pause once a step has been reported, or kills a process then."""

    def __init__(self, folder: Path, step: int = 4, kill: int | None = None) -> None:
        self.folder, self.step, self.kill = folder, step, kill
        self.reached = False

    def note(self, event: Event) -> None:
        if event["event"] != "progress" or event["step"] < self.step or self.reached:
            return
        self.reached = True
        if self.kill is not None:
            os.kill(read_notes(work(self.folder))[self.kill]["pid"], signal.SIGKILL)

    def read_desired_state(self) -> DesiredState:
        return DesiredState.PAUSE if self.reached and self.kill is None else DesiredState.RUN


def train_interrupted(job: TrainingJob, folder: Path, kill: int | None = None) -> None:
    by = Interrupted(folder, kill=kill)
    train_as_child(job, folder, by.note, desired_state=by.read_desired_state, poll_s=0.02)


# How they are started


def test_one_process_is_started_without_a_launcher(jobs: Jobs, tmp_path: Path) -> None:
    argv = programs.command(jobs(backend="native"), SHARED_PROGRAM, tmp_path)
    assert argv[1:5] == ["-P", "-m", "trainyard.compute.launch", SHARED_PROGRAM]


def test_the_launchers_need_no_port(jobs: Jobs, tmp_path: Path) -> None:
    argv = programs.command(several(jobs, "ddp"), SHARED_PROGRAM, tmp_path)
    assert argv[1:6] == ["-P", "-m", "trainyard.compute.launcher_supervisor", str(tmp_path), "2"]
    assert argv[argv.index("--") + 2 :][:2] == ["-m", "torch.distributed.run"]
    assert f"--rdzv-endpoint={tmp_path}/ranks/launcher" in argv
    assert argv[-3:] == ["trainyard.compute.rank_process", SHARED_PROGRAM, str(tmp_path)]
    argv = programs.command(several(jobs, "ddp", {"launcher": "accelerate"}), SHARED_PROGRAM, tmp_path)
    assert argv[argv.index("--rdzv_conf") + 1] == "store_type=file"


def test_threads_and_devices_are_shared_out(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    job = several(jobs, "fsdp_hybrid").model_copy(update={"threads": 8})
    assert environment(job)["OMP_NUM_THREADS"] == "2"
    assert environment(job)["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert environment(job.model_copy(update={"devices": (1, 2, 3, 5)}))["CUDA_VISIBLE_DEVICES"] == "1,2,3,5"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert "CUDA_VISIBLE_DEVICES" not in environment(job)


# The native backend


@pytest.mark.slow
def test_a_pause_reaches_all_processes_and_leaves_none_of_them(jobs: Jobs, tmp_path: Path) -> None:
    job = several(jobs, "zero2", hyperparameters={"max_steps": 5000, "save_steps": 5000})
    with pytest.raises(TrainingStopped, match=r"The training stopped at step \d+; its checkpoint is kept"):
        train_interrupted(job, tmp_path)
    assert {note["status"] for note in read_notes(work(tmp_path)).values()} == {"stopped", "done"}
    assert len(list((work(tmp_path) / "checkpoints").glob("step-*"))) == 1
    assert not living(work(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "fsdp_hybrid", "diloco"])
def test_a_paused_run_ends_as_one_that_was_not(strategy: str, jobs: Jobs, tmp_path: Path) -> None:
    job = several(jobs, strategy, method={"type": "lora", "dropout": 0.1}, hyperparameters={"gradient_accumulation": 2})
    whole = train_as_child(job, tmp_path / "whole")
    with pytest.raises(TrainingStopped):
        train_interrupted(job, tmp_path / "parts")
    parts = train_as_child(job, tmp_path / "parts")
    assert parts.of("begin")[0]["restarted_from"]["step"] >= 4
    assert len(parts.record["losses"]) == STEPS
    assert same_bits(parts, whole)


@pytest.mark.slow
def test_several_processes_evaluate_as_one_does_and_find_the_same_best_step(jobs: Jobs, tmp_path: Path) -> None:
    eval_settings = {"share": 0.2, "steps": 3, "load_best": True}
    alone = train_as_child(several(jobs, "single", eval=eval_settings), tmp_path / "alone")
    ran = train_as_child(several(jobs, "zero1", eval=eval_settings), tmp_path / "zero1")
    ran_evaluation, alone_evaluation = (training.record["evaluation"] for training in (ran, alone))
    assert [row["step"] for row in ran_evaluation["found"]] == [3, 6, 9, 12]
    for ran_row, alone_row in zip(ran_evaluation["found"], alone_evaluation["found"], strict=True):
        assert ran_row["loss"] == pytest.approx(alone_row["loss"], abs=1e-4)
    assert ran_evaluation["result_step"] == alone_evaluation["result_step"]
    for name, value in weights(alone).items():
        assert torch.allclose(weights(ran)[name], value, atol=1e-3)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_job_and_the_next_start_ends_in_the_same_bits(
    rank: int, jobs: Jobs, tmp_path: Path
) -> None:
    job = several(jobs, "zero2", method={"type": "lora", "dropout": 0.1})
    whole = train_as_child(job, tmp_path / "whole")
    with pytest.raises(TrainyardError, match=f"E-RANK-LOST: Process {rank} of 2 that trained together was ended"):
        train_interrupted(job, tmp_path / "parts", kill=rank)
    assert not living(work(tmp_path / "parts"))
    parts = train_as_child(job, tmp_path / "parts")
    assert parts.of("begin")[0]["restarted_from"] == {"step": 3}
    assert same_bits(parts, whole)


@pytest.mark.slow
def test_an_error_of_the_first_process_is_the_error_of_the_run(jobs: Jobs, tmp_path: Path) -> None:
    job = several(jobs, "ddp", hyperparameters={"learning_rate": 1.0, "max_grad_norm": 1e6, "max_steps": 200})
    job = job.model_copy(update={"data": {}})
    with pytest.raises(TrainyardError, match="E-DATA-EMPTY: Stage sft needs sft rows, and none arrived"):
        train_as_child(job, tmp_path)


# The trl backend


@pytest.fixture(scope="module")
def untied(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with an output layer of its own."""
    folder = tmp_path_factory.mktemp("untied")
    config = AutoConfig.from_pretrained(tiny_model)
    config.tie_word_embeddings = False
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    return folder


def make_trl_job(jobs: Jobs, strategy: str, base: Path, launcher: str = "auto", steps: int = 3) -> TrainingJob:
    """Three steps: as many full batches as the rows give, so that nothing is filled up."""
    launch = {"launcher": launcher} if strategy in LAUNCHES else {}
    hyper = {"max_steps": steps, "save_steps": 2}
    return several(jobs, strategy, launch, backend="trl", method="full", base=base, hyperparameters=hyper)


@pytest.mark.slow
def test_trl_trains_in_several_processes_as_in_one(jobs: Jobs, untied: Path, tmp_path: Path) -> None:
    alone = train_as_child(make_trl_job(jobs, "single", untied), tmp_path / "single")
    expected = weights(alone)
    for strategy, launcher in (("ddp", "torchrun"), ("ddp", "accelerate"), ("fsdp", "auto"), ("fsdp_hybrid", "auto")):
        ran = train_as_child(make_trl_job(jobs, strategy, untied, launcher), tmp_path / f"{strategy}-{launcher}")
        assert [point[1] for point in ran.record["losses"]] == pytest.approx(
            [point[1] for point in alone.record["losses"]], abs=1e-5
        ), strategy
        ran_weights = weights(ran)
        assert max(float((ran_weights[name] - expected[name]).abs().max()) for name in expected) < 1e-4, strategy


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_trl_goes_on_in_several_processes_to_the_same_bits(
    strategy: str, jobs: Jobs, untied: Path, tmp_path: Path
) -> None:
    job = make_trl_job(jobs, strategy, untied, steps=8)
    whole = train_as_child(job, tmp_path / "whole")
    with pytest.raises(TrainingStopped):
        train_interrupted(job, tmp_path / "parts")
    assert not living(work(tmp_path / "parts"))
    assert same_bits(train_as_child(job, tmp_path / "parts"), whole)


@pytest.mark.slow
def test_trl_does_not_cut_a_model_with_tied_embeddings(jobs: Jobs, tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainyardError, match="E-LAUNCH: This model of type llama cannot be sharded"):
        train_as_child(make_trl_job(jobs, "fsdp", tiny_model), tmp_path)
