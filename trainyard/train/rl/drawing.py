"""A rollout: completions of some prompts, what they are worth, and what each of their tokens adds.

Everything that follows from the weights before the first step that learns from it is computed here, once: the
log-probabilities of policy and reference, the critic's values, the advantages.

Shapes: R completions, T tokens of the longest.

The completions that some steps learn from, as plain values: a checkpoint has them, and JSON keeps each float.

A row has one entry for each token that is learned from: its log-probability when it was drawn (`old`), the reference's,
the critic's value, its advantage and its return. What is not needed is empty.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch

from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.sandbox.service import open_sandboxes
from trainyard.spec.axes.stages import GrpoSettings, PpoSettings
from trainyard.spec.estimate.memory import DRAWN_AT_ONCE
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import (
    IGNORED,
    REPORTED,
    Batch,
    CompletionWriter,
    Encoded,
    Generated,
    Sampling,
    Scores,
    StopReason,
)
from trainyard.train.losses.advantages import center_groups, estimate_kl, generalized_advantages, token_rewards, whiten
from trainyard.train.losses.scoring import WITH_VALUES
from trainyard.train.rl.environments import Environment
from trainyard.train.rl.rewards import RewardPanel, SampledCompletion
from trainyard.train.rows.batching import pad

PER_TOKEN = {
    "old": "old_N",
    "reference": "reference/logprobs_N",
    "values": "values_N",
    "advantages": "advantages_N",
    "returns": "returns_N",
}
"""Field of a row -> its tensor in a batch."""


@dataclass
class DrawnRow:
    """A prompt with its completion."""

    prompt: list[int]
    ids: list[int]
    """The completion; in a conversation with an environment also its replies."""
    learned: list[bool]
    """Which of its tokens the policy drew."""
    old: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)

    @property
    def encoded(self) -> Encoded:
        """Return it as a row of stage sft whose labels are the sampled tokens."""
        labels = [token if is_learned else IGNORED for token, is_learned in zip(self.ids, self.learned, strict=True)]
        return {"input_ids": self.prompt + self.ids, "labels": [IGNORED] * len(self.prompt) + labels}

    @property
    def num_learned(self) -> int:
        return sum(self.learned)


@dataclass
class Rollout:
    """Rollout sampled at one place of a run."""

    place: str
    rows: list[DrawnRow]
    reported: dict[str, float]

    def as_values(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_values(cls, values: JsonObject) -> Rollout:
        return cls(values["place"], [DrawnRow(**row) for row in values["rows"]], dict(values["reported"]))

    def batch(self, row_indices: Sequence[int], pad_id: int) -> Batch:
        """Return some of its rows as a batch."""
        rows = [self.rows[index] for index in row_indices]
        batch = collate(rows, pad_id)
        for name, key in PER_TOKEN.items():
            parts = [getattr(row, name) for row in rows]
            if any(parts):
                batch[key] = torch.tensor([value for part in parts for value in part])
        if "values_N" in batch:
            batch[WITH_VALUES] = torch.tensor(True)
        reported = {f"{REPORTED}{name}": torch.tensor(value) for name, value in self.reported.items()}
        return {**batch, **reported}


def collate(rows: Sequence[DrawnRow], pad_id: int) -> Batch:
    """`input_ids`, `attention_mask`, `labels` (B, T) of drawn rows."""
    return pad([row.encoded for row in rows], pad_id)


def pad_rows(rows: Sequence[Sequence[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values and mask (R, T) of rows of unequal length, filled up on the right."""
    widest = max(map(len, rows))
    values_RT = torch.tensor([[*row, *[0.0] * (widest - len(row))] for row in rows])
    mask_RT = torch.tensor([[1.0] * len(row) + [0.0] * (widest - len(row)) for row in rows])
    return values_RT, mask_RT


Prompt = dict[str, Any]
"""A row of `encode_prompts`."""


class RolloutWriter(CompletionWriter, Protocol):
    """Sampler and scorer: a session."""

    @property
    def has_reference(self) -> bool:
        """Return whether there is a frozen model to compare with."""

    def scores(self, batch: Batch) -> Scores:
        """Return the policy's scores of a batch, without a graph."""

    def reference_scores(self, batch: Batch) -> Scores:
        """Return the same of the frozen model."""


class CompletionServer(Protocol):
    """Another engine that draws in the place of a session, with the weights that this has now."""

    def drawing(self, writer: RolloutWriter) -> AbstractContextManager[CompletionWriter]:
        """Provide the sampler while the block runs; afterwards the device belongs to the training again."""


@dataclass(frozen=True)
class DrawnConversation:
    """A completion with its score, before anything is computed from it."""

    row: DrawnRow
    sampled: SampledCompletion
    ended: bool
    logprobs: list[float]
    """Of its learned tokens, as the engine that drew them reports them."""


@dataclass(frozen=True)
class Surroundings:
    """Sampler and settings of a rollout."""

    writer: RolloutWriter
    config: TrainerConfig
    panel: RewardPanel
    pad_id: int
    environment: Environment | None = None
    server: CompletionServer | None = None

    @property
    def settings(self) -> PpoSettings | GrpoSettings:
        assert isinstance(self.config.stage, PpoSettings | GrpoSettings), self.config.stage
        return self.config.stage


def draw_rollout(surroundings: Surroundings, examples: Sequence[Prompt], position: str) -> Rollout:
    """Draw `num_generations` completions of each example, neighbours to one prompt, and settle what they teach."""
    writer, config, panel, settings = (
        surroundings.writer,
        surroundings.config,
        surroundings.panel,
        surroundings.settings,
    )
    with open_sandboxes():
        with nullcontext(writer) if surroundings.server is None else surroundings.server.drawing(writer) as drawing:
            conversations = complete_prompts(drawing, examples, config, position, surroundings.environment)
        answers = [str(example["answer"]) for example in examples for _ in range(settings.num_generations)]
        rewards = panel.score([conversation.sampled for conversation in conversations], answers)
    scores_R = torch.tensor(panel.totals(rewards))
    rows = [conversation.row for conversation in conversations]
    measure_tokens(writer, rows, config, surroundings.pad_id, always=surroundings.server is not None)
    ends = [conversation.ended for conversation in conversations]
    if isinstance(settings, PpoSettings):
        reported = settle_ppo(rows, scores_R, ends, settings)
    else:
        reported = settle_grpo(rows, scores_R, ends, settings)
    means = {f"reward_{name}": sum(values) / len(values) for name, values in rewards.items()}
    lengths = sum(row.num_learned for row in rows) / len(rows)
    ended = sum(ends) / len(ends)
    if surroundings.server is not None:
        reported["sampling_gap"] = sampling_gap(conversations)
    reported = {"reward": float(scores_R.mean()), **means, "completion_tokens": lengths, "ended": ended, **reported}
    return Rollout(position, rows, reported)


def complete_prompts(
    writer: CompletionWriter,
    examples: Sequence[Prompt],
    config: TrainerConfig,
    position: str,
    environment: Environment | None = None,
    *,
    generations: int | None = None,
) -> list[DrawnConversation]:
    """Return every prompt `generations` times (default: the stage's `num_generations`), and on with the environment
    until all conversations have ended.
    """
    settings = config.stage
    assert isinstance(settings, PpoSettings | GrpoSettings), settings
    count = settings.num_generations if generations is None else generations
    dice = random.Random(f"{config.hyperparameters.seed}:{position}")
    trajectories = [Trajectory(example) for example in examples for _ in range(count)]
    for _ in range(settings.turns):
        talking = [
            trajectory for trajectory in trajectories if not trajectory.done and trajectory.has_room(writer.context)
        ]
        if not talking:
            break
        for trajectory, turn in zip(talking, complete_turn(writer, talking, config, dice), strict=True):
            trajectory.take(turn, environment)
    return [trajectory.settled() for trajectory in trajectories]


def measure_rewards(
    writer: CompletionWriter,
    examples: Sequence[Prompt],
    config: TrainerConfig,
    panel: RewardPanel,
    environment: Environment | None,
    *,
    at: Callable[[], None],
) -> dict[str, float]:
    """Return the mean rewards of one completion of each held-out prompt, and the mean length.

    Every evaluation draws with the same seeds, so that two of them differ by the weights alone. The session draws, also
    where another engine draws the rollouts. `at` is called between two batches.
    """
    sampled: list[SampledCompletion] = []
    size = max(config.hyperparameters.batch_size, DRAWN_AT_ONCE)
    with open_sandboxes():
        for start in range(0, len(examples), size):
            prompts = examples[start : start + size]
            conversations = complete_prompts(writer, prompts, config, f"evaluation:{start}", environment, generations=1)
            sampled += [conversation.sampled for conversation in conversations]
            at()
        rewards = panel.score(sampled, [str(example["answer"]) for example in examples])
    totals = panel.totals(rewards)
    means = {f"reward_{name}": sum(values) / len(values) for name, values in rewards.items()}
    lengths = sum(completion.tokens for completion in sampled) / len(sampled)
    return {"reward": sum(totals) / len(totals), **means, "completion_tokens": lengths}


def complete_turn(
    writer: CompletionWriter, talking: Sequence[Trajectory], config: TrainerConfig, dice: random.Random
) -> list[Generated]:
    """Return the next completion of each conversation. Those of similar length are drawn together."""
    settings = config.stage
    assert isinstance(settings, PpoSettings | GrpoSettings), settings
    prompts = [[*trajectory.prompt, *trajectory.ids] for trajectory in talking]
    order = sorted(range(len(prompts)), key=lambda at: (len(prompts[at]), at))
    size = max(config.hyperparameters.batch_size, DRAWN_AT_ONCE)
    completions: dict[int, Generated] = {}
    for start in range(0, len(order), size):
        row_indices = order[start : start + size]
        most = compute_room(settings.max_completion_length, len(prompts[row_indices[-1]]), writer.context)
        sampling = Sampling(most, settings.temperature, seed=dice.getrandbits(31))
        completions |= dict(
            zip(row_indices, writer.generate([prompts[at] for at in row_indices], sampling), strict=True)
        )
    return [completions[at] for at in range(len(prompts))]


@dataclass
class Trajectory:
    """A conversation while it is drawn: the tokens as they were sampled, which are never rendered again."""

    example: Prompt
    ids: list[int] = field(default_factory=list)
    learned: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    given: float = 0.0
    ended: bool = False
    done: bool = False
    messages: list[Any] = field(default_factory=list)

    @property
    def prompt(self) -> list[int]:
        ids: list[int] = self.example["input_ids"]
        return ids

    def has_room(self, context: int | None) -> bool:
        """Return whether a further turn fits; the first one has to."""
        return context is None or not self.ids or len(self.prompt) + len(self.ids) < context

    def take(self, turn: Generated, environment: Environment | None) -> None:
        """Add a completion and the environment's reply."""
        before = [*self.prompt, *self.ids]
        self.ids += turn.ids
        self.learned += [True] * len(turn.ids)
        self.logprobs += turn.logprobs
        self.text, self.ended, self.done = turn.text, turn.stop_reason is StopReason.END, True
        if environment is None:
            return
        self.messages = self.messages or list(self.example["messages"])
        replies, reward, finished = environment.reply(self.messages, turn.ids, str(self.example["answer"]))
        self.given += reward
        following = None if finished else environment.following(before, turn.ids, replies)
        if following is not None:
            self.messages += replies
            self.ids += following
            self.learned += [False] * len(following)
            self.done = False

    def settled(self) -> DrawnConversation:
        """Return the conversation as a row; what an environment said last, and nothing answered, is left out."""
        last = max(at for at, is_learned in enumerate(self.learned, 1) if is_learned)
        row = DrawnRow(self.prompt, self.ids[:last], self.learned[:last])
        whole = (*self.prompt, *row.ids)
        sampled = SampledCompletion(self.text, row.num_learned, whole, str(self.example["question"]), self.given)
        return DrawnConversation(row, sampled, self.ended, self.logprobs)


def sampling_gap(conversations: Sequence[DrawnConversation]) -> float:
    """Mean distance between the log-probabilities of who drew and those of the model that learns from it."""
    pairs = [
        pair for conversation in conversations for pair in zip(conversation.row.old, conversation.logprobs, strict=True)
    ]
    return sum(abs(own_logprob - served_logprob) for own_logprob, served_logprob in pairs) / len(pairs)


def compute_room(requested: int, longest: int, context: int | None) -> int:
    """Return tokens that a completion of the longest prompt can have. Raises `InvalidInput` (`E-BATCH`) for none."""
    most = requested if context is None else min(requested, context - longest)
    if most < 1:
        raise InvalidInput(
            f"A prompt has {longest} tokens, and the model sees {context}: nothing can follow it.",
            do="Lower hyperparameters.max_length below the model's context.",
            code="E-BATCH",
        )
    return most


def measure_tokens(
    writer: RolloutWriter, rows: Sequence[DrawnRow], config: TrainerConfig, pad_id: int, *, always: bool = False
) -> None:
    """Fill in the log-probabilities and values of every row that the stage needs; similar lengths go together.

    Those of a reference are also computed where it is there and nothing is taken off for the distance: for its report.

    `always` asks for the model's own log-probabilities, where another engine has drawn.
    """
    settings = config.stage
    values = isinstance(settings, PpoSettings) and settings.has_critic
    compared = settings.needs_reference or (isinstance(settings, PpoSettings) and writer.has_reference)
    old = steps_per_rollout(settings) > 1 or values or always
    order = sorted(range(len(rows)), key=lambda at: (len(rows[at].prompt) + len(rows[at].ids), at))
    size = config.hyperparameters.batch_size
    for start in range(0, len(order), size):
        some = [rows[at] for at in order[start : start + size]]
        batch = collate(some, pad_id)
        if old or (compared and isinstance(settings, PpoSettings)):
            inputs = {**batch, WITH_VALUES: torch.tensor(True)} if values else batch
            scores = writer.scores(inputs)
            share(scores["logprobs_N"], some, "old")
            if values:
                share(scores["values_N"], some, "values")
        if compared:
            share(writer.reference_scores(batch)["logprobs_N"], some, "reference")


def share(values_N: torch.Tensor, rows: Sequence[DrawnRow], name: str) -> None:
    """Give each row its part of a tensor over all of their tokens."""
    parts = values_N.float().cpu().split([row.num_learned for row in rows])
    for row, part in zip(rows, parts, strict=True):
        setattr(row, name, part.tolist())


def steps_per_rollout(settings: Any) -> int:
    """Optimizer steps that learn from the same completions."""
    return (
        settings.num_iterations * settings.minibatches if isinstance(settings, PpoSettings) else settings.num_iterations
    )


Settle = Callable[[Sequence[DrawnRow], torch.Tensor, Sequence[bool], Any], dict[str, float]]


def settle_grpo(
    rows: Sequence[DrawnRow], scores_R: torch.Tensor, _ended: Sequence[bool], settings: GrpoSettings
) -> dict[str, float]:
    """Give every token of a completion its advantage over the others to its prompt."""
    advantages_R = center_groups(scores_R, settings.num_generations, settings.scale_rewards)
    spread(advantages_R, rows)
    return {"constant_groups": constant_groups(scores_R, settings.num_generations)}


def settle_ppo(
    rows: Sequence[DrawnRow], scores_R: torch.Tensor, ended: Sequence[bool], settings: PpoSettings
) -> dict[str, float]:
    """Give every token its advantage, and its return where there is a critic."""
    missing_R = torch.tensor([not end for end in ended], dtype=scores_R.dtype)
    scores_R = scores_R - settings.missing_end_penalty * missing_R
    old_RT, mask_RT = pad_rows([row.old or [0.0] * row.num_learned for row in rows])
    kl_RT = torch.zeros_like(old_RT)
    reported: dict[str, float] = {}
    if all(row.reference for row in rows):
        kl_RT = estimate_kl(old_RT, pad_rows([row.reference for row in rows])[0], "k1")
        reported["kl"] = float((kl_RT * mask_RT).sum() / mask_RT.sum())
    if settings.num_generations > 1:
        reported["constant_groups"] = constant_groups(scores_R, settings.num_generations)
    if settings.advantage == "group":
        penalised_R = scores_R - settings.kl_coef * (kl_RT * mask_RT).sum(1)
        spread(center_groups(penalised_R, settings.num_generations, "group"), rows)
        return reported
    if settings.advantage == "gae_group":
        scores_R = center_groups(scores_R, settings.num_generations, "none")
    rewards_RT = token_rewards(scores_R, kl_RT, mask_RT, settings.kl_coef)
    values_RT = pad_rows([row.values for row in rows])[0]
    advantages_RT, returns_RT = generalized_advantages(
        rewards_RT, values_RT, mask_RT, gamma=settings.gamma, lam=settings.lam
    )
    # Where every group is constant, nothing but the critic's errors is left: they are not magnified.
    advantages_RT = whiten(advantages_RT, mask_RT, magnify=reported.get("constant_groups", 0.0) < 1)
    for at, row in enumerate(rows):
        row.advantages = advantages_RT[at, : row.num_learned].tolist()
        row.returns = returns_RT[at, : row.num_learned].tolist()
    return {**reported, "value": float((values_RT * mask_RT).sum() / mask_RT.sum())}


def spread(advantages_R: torch.Tensor, rows: Sequence[DrawnRow]) -> None:
    for row, advantage in zip(rows, advantages_R.tolist(), strict=True):
        row.advantages = [advantage] * row.num_learned


def constant_groups(scores_R: torch.Tensor, group: int) -> float:
    """Return the share of groups whose completions are all worth the same, which teach nothing."""
    grouped_PG = scores_R.view(-1, group)
    return float((grouped_PG == grouped_PG[:, :1]).all(1).float().mean())
