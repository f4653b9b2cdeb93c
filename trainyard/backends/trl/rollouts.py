"""Stage grpo: prompts, groups of completions that are drawn from the policy, and what each is worth (torch; child).

A step draws `batch_size × gradient_accumulation × processes` completions: `num_generations` to each prompt. They are
used in `num_iterations` steps, one after the other. Between two such groups of steps no completion is kept, so a
checkpoint is made there: it has the state of torch's random numbers, and a resumed run draws what the uninterrupted
one would have drawn.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from peft import PeftModel
from trl.trainer.grpo_trainer import GRPOTrainer

from trainyard.backends.job import TrainingJob
from trainyard.backends.rewarding import require_rewards
from trainyard.backends.trl.arguments import prompts_of_a_step
from trainyard.backends.trl.shared import PromptSharing, collate_completions, group_completions, score_completions
from trainyard.backends.trl.trainer import CommittedCheckpoints, ShuffledOrder
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.spec.axes.stages import GrpoSettings
from trainyard.train.progress import Counted
from trainyard.train.rl.rewards import RewardPanel, SampledCompletion
from trainyard.train.rows.prompts import require_any_prompt
from trainyard.train.rows.tokens import TokenLedger

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
