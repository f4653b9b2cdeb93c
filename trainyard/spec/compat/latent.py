"""Rows on latent reasoning: what its passes cannot be combined with, and who can read what it trains."""

from __future__ import annotations

from typing import Any

from trainyard.spec.axes.latent import CurriculumSettings, DsaSettings, QuietStarSettings
from trainyard.spec.axes.stages import SftSettings
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.compat.context import Match, NodeView, Row
from trainyard.spec.compat.engine import KERNEL_DEVICES
from trainyard.spec.compat.evaluator_deployer import targets
from trainyard.spec.compat.training import STATES_APART
from trainyard.spec.training import TrainerConfig

READERS = (TargetType.EMBEDDED, TargetType.REGISTRY)
"""Targets whose server thinks before it answers, or that are a folder which such a server reads."""


def unread_thoughts(target: Any, trainer: TrainerConfig) -> Match:
    technique = trainer.stage.technique
    return technique is not None and technique.facts.thinks and (target.type not in READERS or bool(target.merged))


def other_technique(config: TrainerConfig, at: NodeView) -> Match:
    """Return a trainer that would lose or replace what an earlier one has added to the model."""
    before = at.trainer()
    earlier = before.stage.technique if before is not None else None
    now = config.stage.technique
    lost = earlier is not None and earlier.facts.thinks and (now is None or now.type is not earlier.type)
    return lost and {"old": earlier}


def unreached_stage(config: TrainerConfig, _: NodeView) -> Match:
    """Return a curriculum that is not at its end when the training is, so that another form of rows would be served."""
    technique, hyper = config.stage.technique, config.hyperparameters
    needed = technique.curriculum_epochs if technique is not None else 0
    return hyper.max_steps is None and hyper.epochs is not None and hyper.epochs <= needed and {"needed": needed}


def warms_up(config: TrainerConfig, _: NodeView) -> bool:
    technique = config.stage.technique
    return isinstance(technique, DsaSettings) and technique.granularity.warmup_epochs > 0


def by_row(config: TrainerConfig, _: NodeView) -> bool:
    stage = config.stage
    return isinstance(stage, SftSettings) and stage.average == "row" and isinstance(stage.technique, QuietStarSettings)


def masked(config: TrainerConfig) -> bool:
    return config.stage.technique is not None and config.stage.technique.facts.own_masks


LATENT_ROWS = (
    Row(
        "latent-kernel", "R-BATCH", "trainer", "config.engine.attention",
        lambda config, _: masked(config) and config.engine.attention in KERNEL_DEVICES["attention"],
        "Technique {config.stage.latent} computes attention with a mask of its own, which {config.engine.attention} "
        "does not take.",
        "Use `attention: auto`, which takes another kernel and records it, or `sdpa`.",
    ),
    Row(
        "latent-compile", "R-BATCH", "trainer", "config.engine.compile",
        lambda config, _: masked(config) and config.engine.compile,
        "The masks of technique {config.stage.latent} have another shape in each pass, so torch.compile would compile "
        "each of them.",
        "Remove `compile`.",
    ),
    Row(
        "quiet-average", "R-BATCH", "trainer", "config.stage.average", by_row,
        "The thoughts of a position are rewarded by tokens, so technique {config.stage.latent} has no mean over rows.",
        "Remove `average: row`.",
    ),
    Row(
        "session-warmup", "R-BATCH", "trainer", "config.stage.latent.granularity.warmup", warms_up,
        "The indexer warms up for whole epochs, and a session has none.",
        "Use `granularity: {{type: token, warmup: 0}}`, or a job.", scope="session",
    ),
    Row(
        "latent-checkpointing", "R-BATCH", "trainer", "config.hyperparameters.gradient_checkpointing",
        lambda config, _: config.hyperparameters.gradient_checkpointing and config.stage.technique is not None
        and config.stage.technique.facts.keeps_cache,
        "Technique {config.stage.latent} computes a batch in several passes over one cache, which transformers drops "
        "with gradient checkpointing: the gradients would be wrong without a message.",
        "Remove gradient_checkpointing; a smaller batch_size saves memory too.",
    ),
    Row(
        "latent-recomputed", "R-BATCH", "trainer", "config.hyperparameters.gradient_checkpointing",
        lambda config, _: config.hyperparameters.gradient_checkpointing and config.stage.technique is not None
        and config.stage.technique.facts.measures_layers,
        "The choosers of technique {config.stage.latent} learn from what is measured inside the layers, and gradient "
        "checkpointing computes the layers again without measuring.",
        "Remove gradient_checkpointing; a smaller batch_size saves memory too.",
    ),
    Row(
        "latent-packed", "R-BATCH", "trainer", "config.engine.batching",
        lambda config, _: config.stage.technique is not None and config.engine.batching == "packed",
        "Each row of technique {config.stage.latent} has thoughts of its own, so rows cannot be packed into one.",
        "Use `batching: auto` or `buckets`.",
    ),
    Row(
        "latent-alone", "R-LAUNCH", "trainer", "config.launch.strategy",
        lambda config, _: config.stage.technique is not None and config.launch.strategy is not Strategy.SINGLE,
        "The passes of a batch depend on its rows, so with technique {config.stage.latent} the processes of strategy "
        "{config.launch.strategy} would wait for each other.",
        "Use strategy single.",
    ),
    Row(
        "latent-optimizer", "R-OPTIMIZER", "trainer", "config.hyperparameters.optimizer",
        lambda config, _: config.stage.technique is not None and config.stage.technique.resets_optimizer
        and config.hyperparameters.optimizer not in STATES_APART,
        "With latent.reset_optimizer the states of all weights begin again at each stage, which "
        "{config.hyperparameters.optimizer} does not allow.",
        f"Use optimizer {' or '.join(STATES_APART)}, or `reset_optimizer: false`.",
    ),
    Row(
        "latent-epochs", "R-SETTING-UNUSED", "trainer", "config.hyperparameters.epochs", unreached_stage,
        "The rows of technique {config.stage.latent} have the form that is served after {needed} epochs, and the "
        "training ends before.",
        "Leave epochs out, or use more than {needed}.",
    ),
    Row(
        "latent-earlier", "R-ADAPTER", "trainer", "config.stage.latent", other_technique,
        "The trainer before it adds technique {old} to the model, which would be lost here.",
        "Use the same technique here, or train the other stage first.", chained=True,
    ),
    Row(
        "latent-target", "R-TARGET", "deployer", "config.targets.{index}.type", targets(unread_thoughts),
        "A server of type {target.type} does not think before it answers, as technique {trainer.stage.latent} needs.",
        "Use target embedded, or registry without merged.", chained=True,
    ),
    Row(
        "session-curriculum", "R-BATCH", "trainer", "config.stage.latent",
        lambda config, _: isinstance(config.stage.technique, CurriculumSettings),
        "The rows of technique {config.stage.latent} change from epoch to epoch, and a session has no epochs.",
        "Use a job, or technique pause.", scope="session",
    ),
)  # fmt: skip
