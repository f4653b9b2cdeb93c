"""Completions that share a prompt: TRL's own numbers and gradients, with the prompt computed once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.small_jobs import Jobs, conversation, train_here
from trainyard.backends.trl.data import prepare
from trainyard.backends.trl.loading import load_base, with_adapter
from trainyard.backends.trl.program import build_trainer
from trainyard.backends.trl.rollouts import (
    OurGRPOTrainer,
    PromptSharing,
    choose_sharing,
    collate_completions,
    group_completions,
)
from trainyard.compute.child import Events
from trainyard.data.rows import write_rows
from trainyard.errors import InvalidInput
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.devices import Precision

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks for it
REWARDS = [{"type": "regex", "pattern": "[a-e]"}, {"type": "regex", "pattern": "[n-r]"}]


def make_job(model: Path, folder: Path, **stage: Any) -> Any:
    rows = [conversation(f"Is node {n} up?", "yes") for n in range(8)]
    write_rows(folder / "rows" / "rows.arrow", Port.SFT, rows)
    grpo_settings = {"type": "grpo", "num_generations": 4, "max_completion_length": 6, "rewards": REWARDS, **stage}
    # Adam would make whole steps of the rounding where all completions of a group have the same reward.
    hyper = {"batch_size": 8, "max_steps": 3, "learning_rate": 0.1, "schedule": "constant", "optimizer": "sgd"}
    return Jobs(model, {Port.SFT: folder / "rows"}, folder / "locks")(stage=grpo_settings, hyperparameters=hyper)


def make_trainer(model: Path, folder: Path, **stage: Any) -> OurGRPOTrainer:
    job = make_job(model, folder, **stage)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare(job, "cpu", Events(folder / "events.jsonl"))
        built = build_trainer(prepared, with_adapter(load_base(job, "cpu"), job), folder, Precision.FP32)
    assert isinstance(built, OurGRPOTrainer)
    return built


def make_completions() -> tuple[torch.Tensor, torch.Tensor]:
    """Three completions of one prompt and two of another, of up to four tokens: ids and mask (5, 9)."""
    prompts = [[11, 12, 13, 14, 15]] * 3 + [[16, 17, 18]] * 2
    answers = [[21, 22, 23, 24], [25], [26, 27, 28], [21, 29], [30, 31, 32, 33]]
    ids_BT, shown_BT = torch.zeros(5, 9, dtype=torch.long), torch.zeros(5, 9, dtype=torch.long)
    for at, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        for start, tokens in ((5 - len(prompt), prompt), (5, answer)):
            ids_BT[at, start : start + len(tokens)] = torch.tensor(tokens)
            shown_BT[at, start : start + len(tokens)] = 1
    order = torch.tensor([3, 0, 4, 1, 2])  # TRL shuffles the completions of a step
    return ids_BT[order], shown_BT[order]


def test_completions_are_grouped_by_their_prompts() -> None:
    first, second = group_completions(*make_completions(), completion=4)
    assert first.prompt == [16, 17, 18]
    assert [at for at, _ in first.answers] == [0, 2]
    assert second.answers == [(1, [21, 22, 23, 24]), (3, [25]), (4, [26, 27, 28])]


@pytest.mark.parametrize("size", [None, 2])
def test_scores_and_gradients_are_those_of_rows_apart(size: int | None, tiny_model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tiny_model, tmp_path, shared_prompt=True)
    ids_BT, shown_BT = make_completions()
    scores = []
    for sharing in (PromptSharing(False, "not asked for"), trainer.sharing):
        trainer.sharing = sharing
        trainer.model.zero_grad()
        logps_BC, entropies_BC, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids_BT, shown_BT, 4, batch_size=size, compute_entropy=True
        )
        assert entropies_BC is not None
        shown_BC = shown_BT[:, -4:]
        (logps_BC * shown_BC).sum().backward()
        gradients = [parameter.grad.flatten() for parameter in trainer.model.parameters() if parameter.grad is not None]
        scores.append((logps_BC.detach() * shown_BC, entropies_BC.detach() * shown_BC, torch.cat(gradients)))
    for apart, together in zip(*scores, strict=True):
        torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_a_training_has_the_losses_of_rows_apart(beta: float, tiny_model: Path, tmp_path: Path) -> None:
    """The same completions are drawn; losses and gradients are the same to 1e-5, in the first step that uses the
    completions and in the second one."""
    apart, together = (
        train_here(
            make_job(tiny_model, tmp_path / str(shared), shared_prompt=shared, beta=beta, num_iterations=2),
            tmp_path / f"{shared}-run",
        )
        for shared in (False, True)
    )
    for name in ("loss", "grad_norm", "reward"):
        # A step that uses the completions of an earlier one reports no rewards.
        expected, shared = ([event[name] for event in run.of("progress") if name in event] for run in (apart, together))
        assert shared
        assert shared == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert max(event["grad_norm"] for event in apart.of("progress")) > 1e-3
    assert [(run.record["shared_prompt"], run.record["shared_prompt_why"]) for run in (apart, together)] == [
        (False, "not asked for"),
        (True, "asked for"),
    ]
    assert apart.record["tokens"] == together.record["tokens"]


def test_auto_shares_where_a_batch_gets_smaller(tiny_model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tiny_model, tmp_path)
    ids_BT, shown_BT = make_completions()
    long_BT, long_shown_BT = (torch.cat([part[:, :5].repeat(1, 8), part[:, 5:]], 1) for part in (ids_BT, shown_BT))
    for ids, mask, pays in ((long_BT, long_shown_BT, True), (ids_BT[:2], shown_BT[:2], False)):
        batch = collate_completions(group_completions(ids, mask, 4), ids.device)
        assert trainer.sharing.pays(ids.shape, batch) is pays


def test_a_model_that_cannot_share_is_refused_by_name(tiny_model: Path, tmp_path: Path) -> None:
    model: Any = load_base(make_job(tiny_model, tmp_path), "cpu")
    model.config._attn_implementation = "flash_attention_2"
    assert choose_sharing("auto", model, 16).used is False
    with pytest.raises(InvalidInput, match="E-BATCH: The prompts cannot be shared: the attention kernel"):
        choose_sharing(True, model, 16)
