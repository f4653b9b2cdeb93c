"""Stage grpo: prompts, groups of completions that are drawn from the policy, and what each is worth (torch; child).

A step draws `batch_size × gradient_accumulation × processes` completions: `num_generations` to each prompt. They are
used in `num_iterations` steps, one after the other. Between two such groups of steps no completion is kept, so a
checkpoint is made there: it has the state of torch's random numbers, and a resumed run draws what the uninterrupted
one would have drawn.

Stage grpo with shared prompts: the completions of a prompt in one row behind it, so that it is computed once.

TRL scores each completion in a row of its own, with its prompt on the left. Of the rows that it scores together, those
with the same prompt become one here, and the log-probabilities go back to where TRL expects them. Which completions are
together is TRL's: with an accumulation it shuffles those of a step, and fewer of them meet their group.

Shapes: B completions, P positions of the longest prompt, C of the longest completion, T = P + C; N labelled tokens.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import torch
from peft import PeftModel
from trl.trainer.grpo_trainer import GRPOTrainer

from trainyard.backends.job import TrainingJob
from trainyard.backends.rewarding import require_rewards
from trainyard.backends.trl.arguments import prompts_of_a_step
from trainyard.backends.trl.trainer import CommittedCheckpoints, ShuffledOrder
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.spec.axes.stages import GrpoSettings
from trainyard.train.contracts import IGNORED, SEQUENCES, Batch
from trainyard.train.model.head import attention_mask
from trainyard.train.progress import Counted
from trainyard.train.rl.rewards import RewardPanel, SampledCompletion
from trainyard.train.rows.prompts import require_any_prompt
from trainyard.train.rows.segments import PromptGroup, collate_rows
from trainyard.train.rows.sharing import LEAST_GAIN, Operations, explain_unshared
from trainyard.train.rows.tokens import TokenLedger

TokenScores = tuple[torch.Tensor, torch.Tensor | None]
"""Log-probabilities of the completions' tokens (B, C), and entropies where they are requested."""


@dataclass(frozen=True)
class PromptSharing:
    """Decision whether completions share a prompt, and its reason."""

    used: bool
    why: str
    least_gain: float = 0.0
    """Operations have to become fewer by this factor."""
    cost: Operations | None = None

    def pays(self, shape: torch.Size, batch: Batch) -> bool:
        """Whether a batch of this layout is computed with clearly fewer operations than rows of that shape."""
        assert self.cost is not None, "a sharing that is used"
        apart = self.cost.of_rows(shape[0], shape[1], 0)
        rows, width = batch["input_ids"].shape
        return apart >= self.least_gain * self.cost.of_rows(rows, width, 0)


def choose_sharing(setting: Literal["auto"] | bool, model: object, longest: int) -> PromptSharing:
    """Whether this model's completions may share their prompts; `longest` is the longest prompt with a completion.

    Raises `InvalidInput` (`E-BATCH`) where that was requested and this model cannot do it.
    """
    if setting is False:
        return PromptSharing(False, "not asked for")
    if against := explain_unshared(model, longest):
        if setting is True:
            raise InvalidInput(
                f"The prompts cannot be shared: {against}.",
                why="A completion would see tokens that it does not see in a row of its own.",
                do="Use shared_prompt: auto, which takes and records what is possible.",
                code="E-BATCH",
            )
        return PromptSharing(False, against)
    cost = Operations.of_model(model)
    if setting is True:
        return PromptSharing(True, "asked for", 0.0, cost)
    return PromptSharing(True, f"in batches that need {LEAST_GAIN} times fewer operations so", LEAST_GAIN, cost)


def group_completions(ids_BT: torch.Tensor, shown_BT: torch.Tensor, completion: int) -> list[PromptGroup]:
    """Rows of a prompt, filled up on the left, and a completion of at most `completion` tokens, by their prompts."""
    answers: dict[tuple[int, ...], list[tuple[int, list[int]]]] = {}
    for at, (ids_T, shown_T) in enumerate(zip(ids_BT, shown_BT.bool(), strict=True)):
        prompt, answer = (
            ids_T[part][shown_T[part]].tolist() for part in (slice(-completion), slice(-completion, None))
        )
        answers.setdefault(tuple(prompt), []).append((at, answer))
    return [PromptGroup(list(prompt), entries) for prompt, entries in answers.items()]


def collate_completions(groups: list[PromptGroup], device: torch.device) -> Batch:
    return {name: value.to(device) for name, value in collate_rows(groups, 0).items()}


def score_completions(model: Any, base: Any, groups: list[PromptGroup], batch: Batch, completion: int) -> TokenScores:
    """Score a batch with TRL's output layer, `base` being the transformers model inside: (B, C) and (B, C)."""
    output = model(
        input_ids=batch["input_ids"],
        attention_mask=attention_mask(batch, base),
        position_ids=batch["position_ids"],
        labels=batch["labels"],
        fused_lm_head=True,
    )
    rows_N, positions_N = (batch["labels"] != IGNORED).nonzero(as_tuple=True)
    sequence_N = batch[SEQUENCES][rows_N, positions_N]
    starts = {sequence: len(group.prompt) for group in groups for sequence, _ in group.answers}
    starts_B = torch.tensor([starts[at] for at in range(len(starts))], device=rows_N.device)
    index = (sequence_N, batch["position_ids"][rows_N, positions_N] - starts_B[sequence_N])

    def split_by_completion(scores_RT: torch.Tensor) -> torch.Tensor:
        """TRL's scores belong to the labels from the second position on."""
        scores_BC = scores_RT.new_zeros(len(starts), completion)
        return scores_BC.index_put(index, scores_RT[rows_N, positions_N - 1])

    entropies = None if output.entropy is None else split_by_completion(output.entropy)
    return split_by_completion(output.log_probs), entropies


RewardFunction = Callable[..., list[float]]


def require_prompts(job: TrainingJob, ledger: TokenLedger) -> None:
    """Raise `InvalidInput` where no step could be made: no prompt is short enough, or there are too few."""
    prompts, least = ledger.rows["trained"], prompts_of_a_step(job)
    require_any_prompt(ledger)
    if prompts < least:
        raise InvalidInput(
            f"A step answers {least} prompts, and the data set has {prompts}.",
            why="batch_size × gradient_accumulation × processes completions are drawn, num_generations to a prompt.",
            do="Give the trainer more rows, lower batch_size, or raise stage.num_generations.",
            code="E-BATCH",
        )


def rollout_settings(job: TrainingJob) -> GrpoSettings:
    """Return the settings of the stage. Raises `InvalidInput` where they are not given or do not fit the batch."""
    settings, hyper = job.config.stage, job.config.hyperparameters
    assert isinstance(settings, GrpoSettings), settings
    require_rewards(job, settings.rewards)
    completions = hyper.batch_size * hyper.gradient_accumulation * job.config.launch.processes
    if completions % settings.num_generations:
        raise InvalidInput(
            f"A step has {completions} completions, which is not a multiple of {settings.num_generations}.",
            do="Make batch_size × gradient_accumulation × processes a multiple of stage.num_generations.",
            code="E-BATCH",
        )
    return settings


def scorer(name: str, settings: object, panel: RewardPanel) -> RewardFunction:
    """Return a reward as TRL calls it: with all completions of a step and the columns of their rows."""

    def scores(
        prompts: list[list[int]],
        completions: list[str],
        completion_ids: list[list[int]],
        answer: list[str],
        question: list[str],
        **_: Any,
    ) -> list[float]:
        sampled = [
            SampledCompletion(text, len(ids), (*prompt, *ids), prompt_text)
            for prompt, text, ids, prompt_text in zip(prompts, completions, completion_ids, question, strict=True)
        ]
        return panel.score_one(settings, sampled, answer)

    scores.__name__ = name
    return scores


def inner_model(model: Any) -> Any:
    """Return the transformers model inside, with or without an adapter around it."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


class GroupedOrder(ShuffledOrder):
    """The prompts of each step in an order that is a pure function of seed and epoch.

    A prompt occurs once for each of its completions, and the rows of a step once for each micro-batch of the
    steps that use its completions: TRL draws for all of them at the first and takes the rows of the others as read.
    Prompts that would not fill a step are left out, others in each epoch.
    """

    def __init__(self, rows: int, seed: int, *, prompts: int, group: int, times: int) -> None:
        super().__init__(rows, seed, rows % prompts)
        self.prompts, self.group, self.times = prompts, group, times

    def __len__(self) -> int:
        return (self.rows - self.left_out) * self.group * self.times

    def arranged(self, generator: random.Random) -> list[int]:
        return [
            row for step in self.steps(generator) for _ in range(self.times) for row in step for _ in range(self.group)
        ]

    def steps(self, generator: random.Random) -> list[list[int]]:
        """Return the prompts of each drawing of an epoch."""
        rows = list(range(self.rows))
        generator.shuffle(rows)
        end = self.rows - self.left_out
        return [rows[at : at + self.prompts] for at in range(0, end, self.prompts)]

    def sample_epochs(self) -> Iterator[list[int]]:
        """Yield the prompts of each drawing, epoch after epoch, without end."""
        epoch = 0
        while True:
            yield from self.steps(random.Random(f"{self.seed}:{epoch}"))
            epoch += 1


class OurGRPOTrainer(CommittedCheckpoints, GRPOTrainer):
    """GRPO on prompts that are tokenised already."""

    args: Any
    train_dataset: Any
    order: GroupedOrder
    accelerator: Any
    sharing: PromptSharing = PromptSharing(False, "not asked for")

    def new_order(self) -> GroupedOrder:
        group, times = self.args.num_generations, self.args.steps_per_generation * self.args.num_iterations
        prompts = self.args.generation_batch_size // group
        return GroupedOrder(len(self.train_dataset), self.args.seed, prompts=prompts, group=group, times=times)

    def _tokenize_prompts(self, prompts: list[list[int]]) -> tuple[list[list[int]], None, dict[str, object]]:
        return prompts, None, {}

    def facts(self) -> JsonObject:
        return {"shared_prompt": self.sharing.used, "shared_prompt_why": self.sharing.why}

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """TRL's scores of completions; of rows with the same prompt, the prompt is computed once where that pays."""
        score_trl: Any = super()._get_per_token_logps_and_entropies  # untyped
        if not self.sharing.used or options.get("compute_aux_loss"):
            return score_trl(model, input_ids, attention_mask, logits_to_keep, **options)
        base, asks_entropy = inner_model(self.accelerator.unwrap_model(model)), bool(options.get("compute_entropy"))
        size, parts = options.get("batch_size") or len(input_ids), []
        for ids_BT, shown_BT in zip(input_ids.split(size), attention_mask.split(size), strict=True):
            groups = group_completions(ids_BT, shown_BT, logits_to_keep)
            batch = collate_completions(groups, ids_BT.device)
            if self.sharing.pays(ids_BT.shape, batch):
                with self.accelerator.autocast():
                    parts.append(score_completions(model, base, groups, batch, logits_to_keep))
            else:
                parts.append(score_trl(model, ids_BT, shown_BT, logits_to_keep, compute_entropy=asks_entropy)[:2])
        logps, entropies = zip(*parts, strict=True)
        return torch.cat(logps), torch.cat(entropies) if asks_entropy else None, None

    def count_batches(self) -> None:
        """Nothing to note: TRL counts what was drawn."""
        self.seen = Counted()

    def counted(self) -> Counted:
        """The tokens of the whole run: every prompt once for each of its completions, and what was drawn, however many
        steps learned from it."""
        drawings = math.ceil(self.state.global_step / self.args.num_iterations)
        steps = [row for step in islice(self.order.sample_epochs(), drawings) for row in step]
        masked = self.args.num_generations * sum(self.lengths[row] for row in steps)
        return Counted(self.state.num_input_tokens_seen - masked, masked, self.args.num_generations * len(steps))
