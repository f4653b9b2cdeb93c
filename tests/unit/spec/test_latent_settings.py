"""Settings of latent reasoning: their words, their default epochs, and the digest of a training without them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from trainyard.spec.axes.latent import CoconutSettings, Latent
from trainyard.spec.chain import digest
from trainyard.spec.training import TrainerConfig, resolve_trainer


def trainer(**settings: object) -> TrainerConfig:
    return resolve_trainer(TrainerConfig.model_validate(settings), "model")


def test_a_bare_word_means_the_defaults() -> None:
    technique = trainer(stage={"type": "sft", "latent": "coconut"}).stage.technique
    assert technique is not None
    assert (technique.type, technique.resets_optimizer) == (Latent.COCONUT, True)
    assert trainer().stage.technique is None


def test_a_control_with_pauses_has_the_curriculum_and_feeds_nothing_back() -> None:
    stage = {"type": "sft", "latent": {"type": "coconut", "max_stage": 2}}
    thoughts, pauses = (trainer(stage=stage, control=control) for control in (None, "pauses"))
    thought_technique, pause_technique = (config.stage.technique for config in (thoughts, pauses))
    assert isinstance(thought_technique, CoconutSettings)
    assert pause_technique == thought_technique.model_copy(update={"feedback": False})
    assert pause_technique != thought_technique
    assert pauses.hyperparameters == thoughts.hyperparameters
    assert digest(thoughts) != digest(pauses)
    assert trainer(stage=stage, control="shuffled_answers").stage == thoughts.stage


def test_a_training_without_them_keeps_its_digest() -> None:
    plain = trainer(stage="sft")
    assert "latent" not in plain.stage.model_dump()
    assert digest(plain) == digest(trainer(stage={"type": "sft", "latent": None}))
    assert digest(plain) != digest(trainer(stage={"type": "sft", "latent": "pause"}))


@pytest.mark.parametrize(
    ("latent", "epochs"),
    [
        ("pause", 3.0),
        ("codi", 3.0),
        ({"type": "coconut", "max_stage": 3, "epochs_per_stage": 2}, 10.0),
        ({"type": "coconut", "max_stage": 3, "epochs_per_stage": 2, "first_stage": 4}, 2.0),
        ({"type": "hidden_cot", "tokens_per_epoch": 8, "most_tokens": 20, "whole_epochs": 2}, 7.0),
    ],
)
def test_the_default_epochs_reach_the_form_that_is_served(latent: object, epochs: float) -> None:
    config = trainer(stage={"type": "sft", "latent": latent})
    assert config.hyperparameters.epochs == epochs
    assert config.stage.technique is not None
    assert config.stage.technique.curriculum_epochs < epochs


@pytest.mark.parametrize(
    "latent",
    [
        "telepathy",
        {"type": "pause", "thoughts": 3},
        {"type": "coconut", "max_stage": 2, "first_stage": 4},
        {"count": 0},
    ],
)
def test_what_no_technique_has_is_refused(latent: object) -> None:
    with pytest.raises(ValidationError):
        TrainerConfig.model_validate({"stage": {"type": "sft", "latent": latent}})
