"""A training that has moved nothing fails, and the shortest ones with default settings move something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.small_jobs import Jobs, conversation, train_as_child, train_here
from trainyard.backends.results import BEST_FOLDER
from trainyard.data.rows import write_rows
from trainyard.errors import Refused, TrainyardError
from trainyard.spec.axes.data import Port
from trainyard.stores.tensors import has_changed

pytestmark = pytest.mark.integration

NO_RATE = 1e-50
"""A learning rate that float32 cannot add to any weight."""
STILL: dict[str, dict[str, Any]] = {
    "lora": {"backend": "native"},
    "decay": {"backend": "native", "hyperparameters": {"weight_decay": 1.0}},
    "full": {"backend": "native", "method": "full"},
    "trl": {"backend": "trl"},
}


@pytest.mark.parametrize("settings", STILL.values(), ids=STILL)
def test_a_training_without_effect_fails(jobs: Jobs, tmp_path: Path, settings: dict[str, Any]) -> None:
    hyper = {"max_steps": 2, "learning_rate": NO_RATE, **settings.get("hyperparameters", {})}
    with pytest.raises(TrainyardError, match="E-UNCHANGED: The training has ended and moved no weight") as caught:
        train_here(jobs(**{**settings, "hyperparameters": hyper}), tmp_path)
    assert "below their precision" in caught.value.why
    assert not (tmp_path / "result").exists()


def test_a_continued_training_is_compared_with_its_first_step(jobs: Jobs, tmp_path: Path) -> None:
    hyper = {"max_steps": 4, "save_steps": 1, "schedule": "cosine", "learning_rate": 1e-2}
    ran = train_here(jobs(backend="native", hyperparameters=hyper), tmp_path)
    assert ran.record["steps"] == 4
    again = train_here(jobs(backend="native", hyperparameters=hyper), tmp_path)
    assert again.record["final_loss"] == ran.record["final_loss"]


def test_rewards_that_teach_nothing_fail_the_training(jobs: Jobs, tmp_path: Path) -> None:
    stage = {
        "type": "grpo", "num_generations": 2, "max_completion_length": 4, "beta": 0.0,
        "rewards": [{"type": "contains", "text": "never in an answer"}],
    }  # fmt: skip
    job = jobs(backend="native", stage=stage, hyperparameters={"max_steps": 2, "batch_size": 2})
    with pytest.raises(TrainyardError, match="E-UNCHANGED") as caught:
        train_here(job, tmp_path)
    assert "same reward in every step" in caught.value.why


@pytest.mark.parametrize("backend", ["native", "trl"])
@pytest.mark.parametrize("hyper", [{"max_steps": 1}, {"epochs": 0.001}], ids=["steps", "epochs"])
def test_one_step_with_default_settings_learns(jobs: Jobs, tmp_path: Path, backend: str, hyper: dict[str, Any]) -> None:
    write_rows(tmp_path / "rows" / "rows.arrow", Port.SFT, [conversation(f"Tell {n}", f"Node {n}.") for n in range(8)])
    job = jobs(backend=backend, hyperparameters={"batch_size": 8, **hyper})
    ran = train_here(job.model_copy(update={"data": {Port.SFT: str(tmp_path / "rows")}}), tmp_path)
    assert [point[2] for point in ran.record["losses"]] == [pytest.approx(1e-2)]
    second = [value for name, value in load_file(ran.folder / "adapter_model.safetensors").items() if "lora_B" in name]
    assert second
    assert all(value.abs().max() > 0 for value in second)


@pytest.mark.parametrize("backend", ["native", "trl"])
def test_a_warm_up_beyond_the_rows_is_refused_before_the_first_step(jobs: Jobs, tmp_path: Path, backend: str) -> None:
    """`check` cannot know the steps of epochs; the run does."""
    job = jobs(backend=backend, hyperparameters={"epochs": 1, "warmup_steps": 1000})
    with pytest.raises(Refused, match="The warm-up of 1000 steps is not over when the run ends after 7"):
        train_here(job, tmp_path)


def test_an_interval_above_the_run_is_reported(jobs: Jobs, tmp_path: Path) -> None:
    ran = train_here(jobs(backend="native", hyperparameters={"epochs": 1, "save_steps": 500}), tmp_path)
    assert any("save_steps is 500 and the run has 7 steps" in event["text"] for event in ran.of("warning"))


def test_a_short_run_leaves_its_last_checkpoint_and_its_best_ones(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs(
        backend="native",
        hyperparameters={"max_steps": 5},
        engine={"mirror": (tmp_path / "mirror").as_uri()},
        eval={"share": 0.2, "steps": 1, "keep_best": 2},
    )
    train_as_child(job, tmp_path)
    (work,) = (tmp_path / "home" / "runs" / "training").iterdir()
    best = sorted(path.name for path in (work / BEST_FOLDER).iterdir())
    assert len(best) == 2
    assert not (work / "checkpoints").exists()
    assert "gemm_4bit" not in (work / "child.log").read_text()
    mirrored = {path.name for path in (tmp_path / "mirror" / job.work_name).iterdir()}
    assert mirrored >= {"step-0000000005", *best}


def tensors(path: Path, **values: torch.Tensor) -> Path:
    save_file({f"base_model.model.q_proj.{name}.weight": value for name, value in values.items()}, path)
    return path


def test_files_of_an_adapter_are_compared(tmp_path: Path) -> None:
    full, zeros = torch.ones(4, 2), torch.zeros(2, 4)
    still = tensors(tmp_path / "still", lora_A=full, lora_B=zeros)
    moved = tensors(tmp_path / "moved", lora_A=full, lora_B=zeros + 1e-30)
    wider = tensors(tmp_path / "wider", lora_A=torch.ones(8, 2), lora_B=torch.zeros(2, 8))
    with_head = tensors(tmp_path / "head", lora_A=full, lora_B=zeros, modules_to_save=full.clone())
    assert [has_changed(path) for path in (still, moved, wider, with_head)] == [False, True, False, True]
    assert [has_changed(path, still) for path in (still, moved, wider)] == [False, True, True]
    large = tensors(tmp_path / "large", lora_A=full, lora_B=torch.zeros(2, 1 << 19))
    last = torch.zeros(2, 1 << 19)
    last[-1, -1] = 1.0
    assert not has_changed(large)
    assert has_changed(tensors(tmp_path / "last", lora_A=full, lora_B=last))
