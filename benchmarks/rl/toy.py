"""A whole training by reinforcement on a random model that was never saved: session, feed and loop as of any other."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast

from trainyard.spec.axes.stages import PpoSettings, StageSettings
from trainyard.spec.training import TrainerConfig, resolve_trainer
from trainyard.train.contracts import StepRecord
from trainyard.train.loop import train
from trainyard.train.losses.table import STAGES
from trainyard.train.methods.full import plain_groups
from trainyard.train.optimizers import make_optimizer
from trainyard.train.progress import SavedProgress
from trainyard.train.rl.environments import Environment
from trainyard.train.rl.feed import RolloutFeed, RolloutPlan
from trainyard.train.rl.reward_model import attach_critic, split_groups
from trainyard.train.rl.rewards import RewardPanel, SampledCompletion
from trainyard.train.rows.batching import Feed, choose_cut
from trainyard.train.schedules import LearningRate
from trainyard.train.session.session import Session, TrainState

Model = Any


def toy_tokenizer(vocabulary: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are these words, in this order; the first one is padding, the second one the end."""
    plain = Tokenizer(models.WordLevel({word: at for at, word in enumerate(vocabulary)}, unk_token=vocabulary[0]))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token=vocabulary[0], eos_token=vocabulary[1])


def toy_config(
    vocabulary: int, *, hidden: int = 32, layers: int = 2, context: int = 64, init: float = 0.02
) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=context, pad_token_id=0, eos_token_id=1,
        bos_token_id=None, num_labels=1, attention_dropout=0.1,
        initializer_range=init,
    )  # fmt: skip


def toy_policy(config: LlamaConfig, seed: int) -> Model:
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


def toy_critic(config: LlamaConfig, seed: int) -> Model:
    """A critic whose values are all 0."""
    torch.manual_seed(seed)
    critic = LlamaForSequenceClassification(config)
    torch.nn.init.zeros_(critic.score.weight)
    return critic


def toy_trainer(stage: StageSettings, **hyperparameters: Any) -> TrainerConfig:
    """Full training of a stage, resolved."""
    hyper = {"schedule": "constant", "warmup_ratio": 0.0, **hyperparameters}
    config = {"stage": stage, "method": "full", "hyperparameters": hyper, "device": "cpu"}
    return resolve_trainer(TrainerConfig.model_validate(config), "toy")


@dataclasses.dataclass
class FunctionScorer:
    """A reward that is a function of a completion."""

    function: Callable[[SampledCompletion], float]

    def score(self, completions: Sequence[SampledCompletion], _settings: Any) -> list[float]:
        return [self.function(completion) for completion in completions]


@dataclasses.dataclass(frozen=True)
class Toy:
    """What is trained, on which prompts, and towards what."""

    config: TrainerConfig
    model: Model
    tokenizer: Any
    prompts: Sequence[dict[str, Any]]
    panel: RewardPanel
    critic: Model = None
    environment: Environment | None = None

    def open(self, folder: Path) -> tuple[Session, Feed]:
        """A session and its feed."""
        config, model, settings = self.config, self.model, self.config.stage
        stage = STAGES[settings.type].chosen(config)
        frozen = copy.deepcopy(model).requires_grad_(False).eval()
        if self.critic is not None:
            attach_critic(model, self.critic)
        rate = settings.critic_learning_rate if isinstance(settings, PpoSettings) else None
        optimizer = make_optimizer(split_groups(plain_groups(model, config), rate), config)
        schedule = LearningRate(optimizer, config, config.hyperparameters.max_steps or 1)
        reference = partial(nullcontext, frozen) if stage.needs_reference(config) else None
        state = TrainState(model, reference, stage, config, optimizer, schedule, self.tokenizer)
        widths = [len(prompt["input_ids"]) for prompt in self.prompts]
        plan = RolloutPlan(widths, choose_cut(config, stage, "cpu"), stage, config)
        feed = RolloutFeed(list(self.prompts), plan, stage, 0, panel=self.panel, environment=self.environment)
        return Session(state, folder), feed

    def run(self) -> Recorder:
        """Train for `max_steps`; returns what was reported."""
        recorder, steps = Recorder(), self.config.hyperparameters.max_steps or 1
        with TemporaryDirectory(prefix="trainyard-rl-") as folder:
            session, feed = self.open(Path(folder))
            train(
                session, feed, SavedProgress(), total_steps=steps, save=lambda *_: None, save_steps=steps + 1,
                stop=lambda: False, hooks=[recorder],
            )  # fmt: skip
        return recorder


class Recorder:
    """Keeps what each step reports."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []

    def on_step(self, record: StepRecord) -> None:
        self.records.append(record)

    def curve(self, name: str) -> list[float]:
        """A metric by step."""
        return [record.metrics[name] for record in self.records]


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in figures.items()}
