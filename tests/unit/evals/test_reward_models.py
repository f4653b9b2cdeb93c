"""Reward models in the evaluator: scores as in training, a base is chance, and the gate judges the pairs."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import AutoTokenizer

from trainyard.data.rows import Message, PreferenceRow, Row, write_rows
from trainyard.evals.benchmarks.preference import mean_reward, reward_accuracy
from trainyard.evals.job import EvaluationJob, HeldOutSet, Participant, job_from_inputs, listed_benchmarks
from trainyard.evals.reward_model import Chance, RewardModel, load_reward_participants
from trainyard.evals.runner import evaluate
from trainyard.evals.tasks import cases_of
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.stages import Stage
from trainyard.spec.nodes import EvaluatorConfig
from trainyard.spec.training import TrainerConfig
from trainyard.stores.artifacts import Reference
from trainyard.train.contracts import Head
from trainyard.train.losses.table import STAGES
from trainyard.train.methods.loading import load_model

WORDS = ("chain", "node", "trainer", "token", "document", "run", "job", "stage", "method", "backend")
PAIRS: list[Row] = [
    PreferenceRow(
        [Message("user", f"What is a {word}?")], [Message("assistant", f"A {word} is one part.")],
        [Message("assistant", f"I do not know {other}.")], source=f"p:{number}",
    )
    for number, (word, other) in enumerate(zip(WORDS, reversed(WORDS), strict=True))
]  # fmt: skip


@pytest.fixture(scope="module")
def trained_reward(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A random reward model, as an adapter folder with its score, and the model itself; pairs next to it."""
    folder = tmp_path_factory.mktemp("reward")
    write_rows(folder / "pairs.arrow", Port.PREFERENCE, PAIRS)
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries
        base = load_model(str(tiny_model), "reward", {"dtype": torch.float32})
        shape: dict[str, Any] = {"r": 4, "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["score"]}
        model: Any = get_peft_model(base, LoraConfig(**shape, init_lora_weights=False, task_type=TaskType.SEQ_CLS))
        model.save_pretrained(folder / "adapter")
    (folder / "adapter" / "training.json").write_text(
        json.dumps({"stage": "reward", "base_model": "tiny", "base_path": str(tiny_model)})
    )
    return folder, model.eval()


def job(folder: Path, base: Path, **config: Any) -> EvaluationJob:
    held = HeldOutSet(name="unseen_documents", port=Port.PREFERENCE, path=str(folder / "pairs.arrow"))
    return EvaluationJob(
        base_model="tiny",
        base_path=str(base),
        head="reward",
        candidate=Participant(name="candidate", path=str(folder / "adapter"), kind="adapter"),
        candidate_sha256="ab" * 32,
        baseline=Participant(name="chance"),
        heldout=(held,),
        config=EvaluatorConfig.model_validate({"resamples": 200, **config}),
    )


def rewards_of_training(model: Any, base: Path) -> tuple[list[float], list[float]]:
    """Chosen and rejected, as the stage computes them."""
    stage, config = STAGES[Stage.REWARD], TrainerConfig(stage=Stage.REWARD.settings())
    tokenizer = AutoTokenizer.from_pretrained(base)
    examples, _ = stage.encode(PAIRS, tokenizer, config)
    batch = stage.collate(list(examples), int(model.config.pad_token_id))
    with torch.no_grad():
        chosen_P, rejected_P = stage.score(model, batch, Head.FULL)["rewards_B"].chunk(2)
    return chosen_P.tolist(), rejected_P.tolist()


def test_scores_are_those_of_training(trained_reward: tuple[Path, Any], tiny_model: Path) -> None:
    model, evaluation_job = trained_reward[1], job(trained_reward[0], tiny_model)
    participants = load_reward_participants(evaluation_job)
    chosen, rejected = rewards_of_training(model, tiny_model)
    (line,) = listed_benchmarks(evaluation_job)
    assert (line.name, line.set) == ("reward_accuracy", "unseen_documents")
    cases = cases_of(line, evaluation_job)
    candidate = participants["candidate"]
    assert isinstance(candidate, RewardModel)
    answers = [(case, case.answer) for case in cases]
    assert candidate.rewards(answers) == pytest.approx(chosen, abs=1e-4)  # type: ignore[arg-type]
    right = [
        float(chosen_score > rejected_score) for chosen_score, rejected_score in zip(chosen, rejected, strict=True)
    ]
    assert 0 < sum(right) < len(right)
    assert reward_accuracy(candidate, cases) == right
    assert reward_accuracy(participants["baseline"], cases) == [0.5] * len(cases)
    assert mean_reward(candidate, cases) == pytest.approx(chosen, abs=1e-4)
    assert mean_reward(participants["baseline"], cases) == [0.0] * len(cases)
    assert isinstance(participants["baseline"], Chance)


def test_an_evaluation_compares_with_chance(trained_reward: tuple[Path, Any], tiny_model: Path, tmp_path: Path) -> None:
    chosen, rejected = rewards_of_training(trained_reward[1], tiny_model)
    evaluate(job(trained_reward[0], tiny_model), tmp_path)
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    (line,) = report["benchmarks"]
    right = sum(
        chosen_score > rejected_score for chosen_score, rejected_score in zip(chosen, rejected, strict=True)
    ) / len(chosen)
    assert (line["name"], line["baseline"], line["candidate"]) == ("reward_accuracy", 0.5, pytest.approx(right))
    assert report["gate"]["primary"] == "reward_accuracy/unseen_documents"
    assert report["samples"] == []
    assert "chance" in (tmp_path / "report" / "report.md").read_text()


def test_the_head_follows_from_the_training(trained_reward: tuple[Path, Any], tmp_path: Path) -> None:
    adapter = Reference(uri=f"file://{trained_reward[0] / 'adapter'}", sha256="0" * 64, kind=Port.ADAPTER)
    evaluation_job = job_from_inputs(EvaluatorConfig(), {Port.ADAPTER: [adapter]}, threads=1)
    assert (evaluation_job.head, evaluation_job.baseline.name) == ("reward", "chance (a base gives no scores)")
