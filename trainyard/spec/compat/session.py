"""Rows on step sessions: what a trainer with a data set can do, and a session whose rows come with calls cannot."""

from __future__ import annotations

from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.axes.stages import DistillSettings
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.compat.context import Match, NodeView, Row
from trainyard.spec.training import EngineSettings, Hyperparameters, LaunchSettings, TrainerConfig

SET_BY_CALLS = ("epochs", "batch_size", "gradient_accumulation", "save_steps")
"""Hyperparameters that the calls of a session decide."""
NEEDS_ROWS = ("batching", "token_budget", "autotune", "mirror", "trackers")
"""Settings of the engine that a whole training reads."""


def unread_settings(config: TrainerConfig, _: NodeView) -> Match:
    """Return each setting that is not at its default and that no call reads."""
    groups: tuple[tuple[str, object, object, tuple[str, ...]], ...] = (
        ("hyperparameters", config.hyperparameters, Hyperparameters(), SET_BY_CALLS),
        ("engine", config.engine, EngineSettings(), NEEDS_ROWS),
        ("launch", config.launch, LaunchSettings(), ("on_oom",)),
    )
    ignored = [
        {"setting": f"{group}.{name}"}
        for group, settings, default, names in groups
        for name in names
        if getattr(settings, name) != getattr(default, name)
    ]
    shares = config.stage.asks_shared is True
    return [*ignored, *([{"setting": "stage.shared_prompt"}] if shares else [])]


def ends_without_steps(config: TrainerConfig, _: NodeView) -> bool:
    """Match a schedule that was requested and depends on the number of steps, which is not known."""
    hyper = config.hyperparameters
    named = {"schedule", "warmup_ratio", "warmup_steps"} & hyper.model_fields_set
    moves = hyper.schedule is not Schedule.CONSTANT or bool(hyper.warmup_steps)
    return hyper.max_steps is None and bool(named) and moves


SESSION_ROWS = (
    Row(
        "session-backend", "R-BACKEND-SETTING", "trainer", "config.backend",
        lambda config, _: config.backend is not BackendName.NATIVE,
        "A session is driven call by call, which the {config.backend} backend cannot do.",
        "Use backend native, or a job.", scope="session",
    ),
    Row(
        "session-cut", "R-LAUNCH", "trainer", "config.launch.strategy",
        lambda config, _: config.launch.strategy in (Strategy.FSDP, Strategy.ZERO3),
        "A call of a session reads gradients and weights between steps, and {config.launch.strategy} cuts them over "
        "all processes.",
        "Use strategy ddp, zero1, zero2 or fsdp_hybrid, or a job.", scope="session",
    ),
    Row(
        "session-hosts", "R-LAUNCH", "trainer", "config.launch",
        lambda config, _: config.launch.node_count > 1,
        "A session has its processes on one host, and {config.launch.node_count} are named.",
        "Remove hosts and nodes, or use a job.", scope="session",
    ),
    Row(
        "session-islands", "R-LAUNCH", "trainer", "config.launch.diloco",
        lambda config, _: config.launch.diloco is not None,
        "A call of a session ends between two exchanges, where each island has weights of its own.",
        "Remove diloco, or use a job.", scope="session",
    ),
    Row(
        "session-evaluation", "R-EVALUATION", "trainer", "config.eval",
        lambda config, _: config.eval is not None,
        "A session has no data set, so no rows of it can be held out.",
        "Remove eval; call forward on rows of your own and no backward.", scope="session",
    ),
    Row(
        "session-unused", "R-SETTING-UNUSED", "trainer", "config.{setting}", unread_settings,
        "The calls of a session decide this, so {setting} would be ignored.",
        "Remove {setting} from the session.", scope="session",
    ),
    Row(
        "session-schedule", "R-SETTING-UNUSED", "trainer", "config.hyperparameters.schedule", ends_without_steps,
        "A rate that changes with the steps needs their number, and a session without max_steps has none.",
        "Give hyperparameters.max_steps, or remove schedule and warmup and give step a learning_rate.",
        scope="session",
    ),
    Row(
        "session-method", "R-DEVICE", "trainer", "config.method",
        lambda config, _: config.method.type is Method.AUTO,
        "Method auto is chosen by the memory that a whole training takes, which is planned with its rows.",
        "Name the method, such as lora.", scope="session",
    ),
    Row(
        "session-draws", "R-BATCH", "trainer", "config.stage",
        lambda config, _: isinstance(config.stage, DistillSettings) and config.stage.draws,
        "Stage {config.stage} draws the completions that it learns from, and a session leaves drawing to its calls.",
        "Set lmbda to 0 and seq_kd to false; call generate and give its tokens to forward.", scope="session",
    ),
    Row(
        "session-rollouts", "R-BATCH", "trainer", "config.stage",
        lambda config, _: config.stage.facts.draws_groups,
        "Stage {config.stage} draws completions and computes their advantages, and a session leaves that to its calls.",
        "Use a job, which trains the whole stage.", scope="session",
    ),
)  # fmt: skip
"""Asked of the body of a session, next to the rows of a trainer."""
