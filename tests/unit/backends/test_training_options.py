"""Options of a training through whole jobs: they run, resume to the same bits, and leave what a server can load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.selection import choose_by_default
from tests.small_jobs import Jobs, Ran, train_here
from trainyard.compute.child import Stopped
from trainyard.spec.training import TrainerConfig
from trainyard.stores.models import check_adapter_folder
from trainyard.train.model.positions import find_context

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks transformers
OPTIONS: dict[str, dict[str, Any]] = {
    "neftune": {"stage": {"type": "sft", "neftune_alpha": 5, "turns": "last"}},
    "pissa": {"method": {"type": "lora", "rank": 4, "init": "pissa"}},
    "base": {"method": "full", "rope": {"type": "yarn", "factor": 2}, "added_tokens": ["<|plan|>"]},
    "row": {"backend": "native", "stage": {"type": "sft", "average": "row"}},
    "lisa": {"backend": "native", "method": {"type": "freeze", "blocks": 1, "interval": 2}},
    "loftq": {"backend": "native", "method": {"type": "qlora", "rank": 4, "init": "loftq"}},
}
ON_TRL = ("neftune", "pissa", "base")
CASES = [("native", name) for name in OPTIONS] + [("trl", name) for name in ON_TRL]
QUICK = [("native", "row"), *(("trl", name) for name in ON_TRL)]
"""Of the native engine, the others are also in `test_native_proof.py`."""


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(next(folder.glob("*.safetensors")))


def train_with_options(jobs: Jobs, backend: str, name: str, folder: Path, *, stop_after: int | None = None) -> Ran:
    hyper = {"max_steps": 6, "save_steps": 2, "learning_rate": 5e-3}
    return train_here(jobs(**{**OPTIONS[name], "backend": backend, "hyperparameters": hyper}), folder, stop_after)


@pytest.mark.parametrize(("backend", "name"), choose_by_default(QUICK, CASES))
def test_a_stopped_job_ends_in_the_same_bits(backend: str, name: str, jobs: Jobs, tmp_path: Path) -> None:
    whole = train_with_options(jobs, backend, name, tmp_path / "whole")
    with pytest.raises(Stopped):
        train_with_options(jobs, backend, name, tmp_path / "parts", stop_after=3)
    parts = train_with_options(jobs, backend, name, tmp_path / "parts")
    whole_weights, parts_weights = weights_in(whole.folder), weights_in(parts.folder)
    assert whole_weights.keys() == parts_weights.keys()
    assert all(torch.equal(value, parts_weights[key]) for key, value in whole_weights.items())
    assert whole.record["losses"] == parts.record["losses"]


@pytest.mark.parametrize("backend", ["native", "trl"])
def test_an_adapter_that_began_with_the_base_serves_on_it(backend: str, jobs: Jobs, tmp_path: Path) -> None:
    ran = train_with_options(jobs, backend, "pissa", tmp_path)
    config = LoraConfig.from_pretrained(ran.folder)
    assert (config.r, config.init_lora_weights) == (8, True)
    base = AutoModelForCausalLM.from_pretrained(jobs.model)
    check_adapter_folder(ran.folder, [name for name, _ in base.named_modules()])
    before = {name: value.clone() for name, value in base.named_parameters()}
    ids_BT = torch.arange(12)[None] + 40
    plain = base(ids_BT).logits.detach()
    served = PeftModel.from_pretrained(base, ran.folder).eval()
    parameters = dict(served.get_base_model().named_parameters())
    assert all(
        torch.equal(value, parameters[name.replace("proj.", "proj.base_layer.")]) for name, value in before.items()
    )
    assert (served(ids_BT).logits - plain).abs().max() > 1e-3  # it learned


@pytest.mark.parametrize("backend", ["native", "trl"])
def test_a_model_has_its_positions_and_tokens(backend: str, jobs: Jobs, tmp_path: Path) -> None:
    ran = train_with_options(jobs, backend, "base", tmp_path)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(ran.folder), AutoTokenizer.from_pretrained(ran.folder)
    base = AutoModelForCausalLM.from_pretrained(jobs.model)
    (token,) = tokenizer("<|plan|>", add_special_tokens=False)["input_ids"]
    assert token == len(AutoTokenizer.from_pretrained(jobs.model)) < model.config.vocab_size
    assert find_context(model.config) == 2 * (find_context(base.config) or 0)


def test_by_row_the_loss_of_a_step_is_another_mean(jobs: Jobs, tmp_path: Path) -> None:
    by_row = train_with_options(jobs, "native", "row", tmp_path / "row").record["losses"][0]
    hyper = {"max_steps": 1, "learning_rate": 5e-3}
    by_token = train_here(jobs(backend="native", hyperparameters=hyper), tmp_path / "token").record["losses"][0]
    assert by_row != by_token


def test_a_config_without_options_has_the_digest_of_before() -> None:
    written = TrainerConfig().model_dump(mode="json")
    assert written["stage"] == {"type": "sft"}
    assert "init" not in written["method"]
    assert not {"rope", "added_tokens"} & written.keys()
