"""Bases whose tokenizer has no padding token, or no token for the end of text either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.small_jobs import Jobs, preference_rows, train_here, write_base_without
from trainyard.data.renderers.rendering import Renderer, build_turn
from trainyard.spec.axes.data import Port
from trainyard.train.rl.reward_model import RewardModelScorer, ScorerSource, load_reward_model

HYPER = {"max_steps": 3, "batch_size": 2, "learning_rate": 1e-4}


@pytest.mark.parametrize(("port", "stage"), [(Port.SFT, "sft"), (Port.PREFERENCE, "dpo"), (Port.PREFERENCE, "reward")])
@pytest.mark.parametrize("backend", ["native", "trl"])
def test_a_base_without_padding_and_end_of_text_is_trained(
    backend: str, port: Port, stage: str, jobs: Jobs, tmp_path: Path
) -> None:
    base = write_base_without(jobs.model, tmp_path / "base", "pad", "eos")
    ran = train_here(jobs(port, base=base, stage=stage, backend=backend, hyperparameters=HYPER), tmp_path / "bare")
    whole = train_here(jobs(port, stage=stage, backend=backend, hyperparameters=HYPER), tmp_path / "whole")
    assert ran.record["losses"][-1] == pytest.approx(whole.record["losses"][-1], abs=1e-5)


@pytest.mark.parametrize("backend", ["native", "trl"])
def test_a_reward_is_trained_where_completions_are_scored(backend: str, jobs: Jobs, tmp_path: Path) -> None:
    """Where the end of text pads, too, every row ends with the padding token, and its score is read there."""
    base = write_base_without(jobs.model, tmp_path / "base", "pad")
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    hyper = {"max_steps": 30, "batch_size": 4, "learning_rate": 1e-2}
    ran = train_here(
        jobs(Port.PREFERENCE, base=base, stage="reward", backend=backend, hyperparameters=hyper), tmp_path / "run"
    )
    renderer = Renderer(tokenizer)
    scorer = RewardModelScorer(load_reward_model(ScorerSource(str(base), str(ran.folder)), "cpu", 0), 0)
    margins = []
    for row in preference_rows():
        question, *sides = [[build_turn(turn) for turn in turns] for turns in (row.prompt, row.chosen, row.rejected)]  # type: ignore[union-attr]
        prompt, answers = renderer.answered(question, sides)
        chosen, rejected = scorer.score_rows([renderer.ids(prompt) + renderer.encode_answer(text) for text in answers])
        margins.append(chosen - rejected)
    assert ran.record["losses"][-1][1] < 0.1
    assert min(margins) > 1
