"""The rewards of a training job, with the models that give some of them (torch; imported in the child only)."""

from __future__ import annotations

import os
from collections.abc import Callable

from transformers import PreTrainedTokenizerBase

from trainyard.backends.job import TrainingJob
from trainyard.errors import InvalidInput
from trainyard.spec.axes.stages import GrpoSettings, PpoSettings
from trainyard.train.model.sampling import find_pad_id
from trainyard.train.rl.environments import Environment
from trainyard.train.rl.reward_model import (
    RewardModelScorer,
    ScorerSource,
    find_source,
    load_reward_model,
    require_same_tokens,
)
from trainyard.train.rl.rewards import CompletionScorer, JudgeScorer, RewardPanel, require_sound


def find_scorer(job: TrainingJob) -> ScorerSource | None:
    """Where the reward model of a job lies."""
    return find_source(job.reward_model, job.base, job.base_sha256) if job.reward_model is not None else None


def make_panel(
    job: TrainingJob, tokenizer: PreTrainedTokenizerBase, device: str, emit: Callable[..., object]
) -> RewardPanel:
    """The rewards of the job's stage. Raises `InvalidInput` (`E-REWARD`) where none is named, or a model is missing."""
    settings = job.config.stage
    assert isinstance(settings, PpoSettings | GrpoSettings), settings
    require_rewards(job, settings.rewards)
    require_sound(settings.rewards)
    scorers: dict[str, CompletionScorer] = {}
    if settings.reads_scores:
        source = find_scorer(job)
        assert source is not None, "asked for above"
        require_same_tokens(source, tokenizer)
        model = load_reward_model(source, device, job.config.hyperparameters.seed)
        scorers["reward_model"] = RewardModelScorer(model, find_pad_id(tokenizer))
        emit("reward_model", text=f"the reward model {source.folder.name} scores every completion")
    if job.judges:
        scorers["judge"] = judge_scorer(job)
    return RewardPanel(settings.rewards, scorers)


def judge_scorer(job: TrainingJob) -> JudgeScorer:
    """Return the judges of a job. The HTTP client is loaded then: a bare machine with a card does not have it."""
    from trainyard.serve.client.replies import JudgeServer  # brings an HTTP client

    keys = {
        name: os.environ.get(judge.api_key_env) if judge.api_key_env else None for name, judge in job.judges.items()
    }
    return JudgeScorer(
        {
            name: JudgeServer(judge.base_url, judge.model, keys[name], private_hosts=judge.private_hosts)
            for name, judge in job.judges.items()
        }
    )


def make_environment(job: TrainingJob, tokenizer: PreTrainedTokenizerBase) -> Environment | None:
    """Who answers the completions of the job's stage, if somebody does."""
    settings = job.config.stage
    assert isinstance(settings, PpoSettings | GrpoSettings), settings
    if settings.environment is None:
        return None
    return Environment.of(settings.environment, tokenizer, job.environment)


def require_rewards(job: TrainingJob, rewards: object) -> None:
    """Raise `InvalidInput` (`E-REWARD`) for a stage without rewards, or a reward without its model."""
    stage = job.config.stage
    if not rewards:
        raise InvalidInput(
            f"Stage {stage} learns from rewards, and none is named.",
            do="Name them in stage.rewards, such as {type: exact_match}.",
            code="E-REWARD",
        )
    if stage.reads_scores and job.reward_model is None:
        raise InvalidInput(
            f"Stage {stage} reads the scores of a reward model, and none reaches it.",
            do="Put a trainer of stage reward before it, or name another reward.",
            code="E-REWARD",
        )
