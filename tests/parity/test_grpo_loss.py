"""Our GRPO loss against TRL's trainer: the same completions through both, the same value and the same gradient."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.small_jobs import Jobs, conversation
from trainyard.backends.trl.data import prepare
from trainyard.backends.trl.loading import load_base
from trainyard.backends.trl.program import build_trainer
from trainyard.compute.child import Events
from trainyard.data.rows import write_rows
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.devices import Precision
from trainyard.spec.axes.stages import Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Head
from trainyard.train.losses.table import STAGES
from trainyard.train.rl.drawing import DrawnRow, Rollout

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")
PROMPTS = [[11, 12, 13, 14, 15]] * 2 + [[16, 17, 18]] * 2
ANSWERS = [[21, 22, 23, 24], [25], [26, 27, 28], [21, 29]]
ADVANTAGES = [1.3, -0.7, 0.4, -1.1]
TEMPERATURE = 0.8
MOST = 6


def make_trainer(model: Path, folder: Path, **stage: Any) -> Any:
    """TRL's trainer with whole weights."""
    write_rows(folder / "rows" / "rows.arrow", Port.SFT, [conversation(f"Is node {n} up?", "yes") for n in range(8)])
    grpo_settings = {
        "type": "grpo",
        "num_generations": 2,
        "max_completion_length": MOST,
        "temperature": TEMPERATURE,
        **stage,
    }
    job = Jobs(model, {Port.SFT: folder / "rows"}, folder / "locks")(
        stage={**grpo_settings, "rewards": [{"type": "exact_match"}]}, method="full",
        hyperparameters={"batch_size": 4, "max_steps": 1, "learning_rate": 1e-3},
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare(job, "cpu", Events(folder / "events.jsonl"))
        return build_trainer(prepared, load_base(job, "cpu"), folder, Precision.FP32)


def completions(model: Any) -> tuple[Rollout, dict[str, torch.Tensor]]:
    """Four completions as a rollout of ours and as TRL's inputs; the policy that drew them was a little different."""
    torch.manual_seed(3)
    old = [(torch.randn(len(ids)) * 0.3).tolist() for ids in ANSWERS]
    reference = [(torch.randn(len(ids)) * 0.3).tolist() for ids in ANSWERS]
    shapes = {"prompt_ids": (4, 5), "prompt_mask": (4, 5), "completion_ids": (4, 4), "completion_mask": (4, 4)}
    trl_batch = {name: torch.zeros(shape, dtype=torch.long) for name, shape in shapes.items()}
    for at, (prompt, ids) in enumerate(zip(PROMPTS, ANSWERS, strict=True)):
        trl_batch["prompt_ids"][at, 5 - len(prompt) :] = torch.tensor(prompt)
        trl_batch["prompt_mask"][at, 5 - len(prompt) :] = 1
        trl_batch["completion_ids"][at, : len(ids)] = torch.tensor(ids)
        trl_batch["completion_mask"][at, : len(ids)] = 1
    now = compute_logps(model, trl_batch)
    offsets = {"old_per_token_logps": old, "ref_per_token_logps": reference}
    rows = [DrawnRow(prompt, ids, [True] * len(ids)) for prompt, ids in zip(PROMPTS, ANSWERS, strict=True)]
    for name, row_offsets in offsets.items():
        trl_batch[name] = now.clone()
        for at, values in enumerate(row_offsets):
            trl_batch[name][at, : len(values)] += torch.tensor(values)
            field = "old" if name.startswith("old") else "reference"
            setattr(rows[at], field, trl_batch[name][at, : len(values)].tolist())
    for row, advantage in zip(rows, ADVANTAGES, strict=True):
        row.advantages = [advantage] * len(row.ids)
    trl_batch |= {"advantages": torch.tensor(ADVANTAGES), "num_items_in_batch": torch.tensor(sum(map(len, ANSWERS)))}
    return Rollout("0:0", rows, {}), trl_batch


def compute_logps(model: Any, trl_batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Log-probabilities by transformers alone."""
    ids = torch.cat([trl_batch["prompt_ids"], trl_batch["completion_ids"]], 1)
    mask = torch.cat([trl_batch["prompt_mask"], trl_batch["completion_mask"]], 1)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits[:, 4:-1] / TEMPERATURE
    return logits.log_softmax(-1).gather(2, trl_batch["completion_ids"][..., None])[..., 0]


def gradient(loss: torch.Tensor, model: Any) -> torch.Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


@pytest.mark.parametrize("beta", [0.0, 0.2])
@pytest.mark.parametrize("loss", ["grpo", "dapo", "bnpo", "dr_grpo"])
def test_value_and_gradient_are_those_of_trl(loss: str, beta: float, tiny_model: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"loss": loss, "beta": beta, "num_iterations": 2, "epsilon": 0.1}
    trainer = make_trainer(tiny_model, tmp_path, **options)
    model = trainer.model.eval()
    rollout, inputs = completions(model)
    trl_loss = trainer._compute_loss(model, inputs)
    stage = Stage.GRPO.settings(**options, num_generations=2, max_completion_length=MOST, temperature=TEMPERATURE)
    config = TrainerConfig(stage=stage)
    stage_spec = STAGES[Stage.GRPO].chosen(config)
    batch = rollout.batch(range(4), 0)
    reference = {"logprobs_N": batch["reference/logprobs_N"]} if beta else None
    total, metrics = stage_spec.loss(batch, stage_spec.score(model, batch, Head.FULL), reference, config)
    our_loss = total / stage_spec.units(batch)
    assert our_loss.item() == pytest.approx(trl_loss.item(), abs=1e-6)
    assert 0 < float(metrics["clipped"]) / stage_spec.units(batch) < 1
    torch.testing.assert_close(gradient(our_loss, model), gradient(trl_loss, model), atol=1e-6, rtol=1e-4)
