"""TRL's trainers with our checkpoints, our order of rows and our events (torch; imported in the child only).

Nothing is added to the maths: loss and optimiser are TRL's and torch's own. The learning rate follows `spec/rates`, as
in every backend: the schedules of transformers begin a warm-up with a step at zero.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import SCHEDULER_NAME
from trl.trainer.sft_trainer import SFTTrainer

from trainyard.backends.frame import require_finite_weights
from trainyard.backends.trl.arguments import Length
from trainyard.backends.trl.distributed import PART_FILE, local_states, take_states
from trainyard.compute.child import Events, faultpoint
from trainyard.json_types import JsonObject
from trainyard.train.checkpoint.checkpoints import commit
from trainyard.train.history import require_finite_loss
from trainyard.train.parallel.team import Team
from trainyard.train.progress import Counted
from trainyard.train.rows.tokens import IGNORED, get_answer

LOGITS_AT_ONCE = 1 << 26
"""Most logits of a micro-batch in memory at once: 256 MiB in float32. Above it TRL's chunked head is used."""
GROUP_BATCHES = 50
"""Batches' worth of rows that are sorted by length together: large enough for even batches, small enough to mix."""
CURVE_FILE = "curve.json"
COUNTS = "trainyard_counts"
PROMPT_TOKENS = "prompt_tokens"
ANSWERS = ("completion", "chosen", "rejected")
"""Names of answers: `completion_ids`, and `completion_labels` where a part of it is not learned."""
METRICS = {
    "rewards/accuracies": "reward_accuracy", "accuracy": "reward_accuracy",
    "rewards/margins": "reward_margin", "margin": "reward_margin",
    "kl": "kl", "reward": "reward", "reward_std": "reward_std", "completions/mean_length": "completion_tokens",
    "completions/clipped_ratio": "completions_cut",
}  # fmt: skip
"""What TRL logs of pairs, verdicts and completions -> our word for it."""
OF_ONE_REWARD = re.compile(r"rewards/(\w+)/mean")


class ShuffledOrder(Sampler[int]):
    """Rows in an order that is a pure function of seed and epoch, the same as that of the native engine.

    A resumed run sees the same batches because nothing here has a state but the epoch, which the trainer sets. Of the
    rows `left_out`, others in each epoch, are not seen.
    """

    def __init__(self, rows: int, seed: int, left_out: int = 0) -> None:
        super().__init__()
        self.rows, self.seed, self.left_out, self.epoch = rows, seed, left_out, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.rows - self.left_out

    def __iter__(self) -> Iterator[int]:
        return iter(self.arranged(random.Random(f"{self.seed}:{self.epoch}")))

    def arranged(self, generator: random.Random) -> list[int]:
        rows = list(range(self.rows))
        generator.shuffle(rows)
        return rows[: len(self)]


class LengthGroupedOrder(ShuffledOrder):
    """The same in batches of similar length: padding is the largest waste on chat rows."""

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        super().__init__(len(lengths), seed)
        self.lengths, self.batch_size = lengths, batch_size

    def arranged(self, generator: random.Random) -> list[int]:
        rows = super().arranged(generator)
        size = self.batch_size * GROUP_BATCHES
        groups = [sorted(rows[at : at + size], key=self.lengths.__getitem__) for at in range(0, len(rows), size)]
        batches = [group[at : at + self.batch_size] for group in groups for at in range(0, len(group), self.batch_size)]
        generator.shuffle(batches)
        # A batch that is not full must come last: the loader cuts the stream into batches by count alone.
        batches.sort(key=lambda batch: len(batch) < self.batch_size)
        return [row for batch in batches for row in batch]


@dataclass
class LossCurve:
    """The loss curve of a run, across restarts."""

    points: list[tuple[int, float, float]] = field(default_factory=list)
    """(step, loss, learning rate)"""
    counted: Counted = field(default_factory=Counted)
    """Rows and tokens of the steps up to the last checkpoint, in all processes."""

    def save(self, folder: Path) -> None:
        (folder / CURVE_FILE).write_text(json.dumps({"points": self.points, "counted": asdict(self.counted)}))

    @classmethod
    def load(cls, folder: Path) -> LossCurve:
        value = json.loads((folder / CURVE_FILE).read_text())
        return cls([tuple(point) for point in value["points"]], Counted(**value["counted"]))


class Counting:
    """A collator that notes in each batch what its rows train: {trained, masked} tokens a row (B, 2)."""

    def __init__(self, collate: Any) -> None:
        self.collate = collate

    def __call__(self, examples: list[JsonObject]) -> JsonObject:
        return {**self.collate(examples), COUNTS: torch.tensor([token_counts(example) for example in examples])}


def token_counts(example: JsonObject) -> tuple[int, int]:
    """Labelled tokens of a row of any stage, and those that are only shown; the first of a row is never labelled."""
    if "labels" in example:
        trained = sum(label != IGNORED for label in example["labels"][1:])
        return trained, len(example["labels"]) - trained
    names = [name for name in ANSWERS if f"{name}_ids" in example]
    if PROMPT_TOKENS in example:  # the sides have the prompt in them
        tokens = sum(len(example[f"{name}_ids"]) for name in names)
        return tokens - 2 * example[PROMPT_TOKENS], 2 * example[PROMPT_TOKENS]
    answers = [get_answer(example, name) for name in names]
    trained, tokens = sum(answer.trained for answer in answers), sum(len(answer.ids) for answer in answers)
    return trained, len(answers) * len(example["prompt_ids"]) + tokens - trained


class TrlCallback(TrainerCallback):
    """Between two steps: report, check for a stop request, decide when to save, and refuse a non-finite loss."""

    def __init__(self, trainer: CommittedCheckpoints, length: Length) -> None:
        self.trainer, self.length = trainer, length
        self.per_epoch, self.started = round(length.total_steps / length.epochs), time.monotonic()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Pass the number of the epoch to the order of rows.

        accelerate passes it, too, but not in a restarted distributed run: it unwraps one wrapper of the order, and
        there are two then.
        """
        self.trainer.order.set_epoch(state.global_step // self.per_epoch)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs is None or "loss" not in logs:
            return
        loss, rate = float(logs["loss"]), float(logs.get("learning_rate", 0.0))
        require_finite_loss(state.global_step, loss)
        self.trainer.curve.points.append((state.global_step, loss, rate))
        self.trainer.events.emit(
            "progress",
            step=state.global_step,
            total_steps=self.length.total_steps,
            epoch=round(state.epoch or 0.0, 4),
            total_epochs=round(self.length.epochs, 4),
            loss=loss,
            learning_rate=rate,
            grad_norm=logs.get("grad_norm"),
            tokens=int(logs.get("num_tokens", 0)),
            seconds=round(time.monotonic() - self.started, 3),
            **{name: logs.get(trl_name) for trl_name, name in METRICS.items() if trl_name in logs},
            **{f"reward_{match[1]}": value for name, value in logs.items() if (match := OF_ONE_REWARD.fullmatch(name))},
        )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        faultpoint(f"step.{state.global_step}")
        last = state.global_step >= self.length.total_steps
        if state.global_step % self.length.whole_steps and not last:
            return
        stop, team = self.trainer.events.stop_requested(), self.trainer.team
        if (stop if team is None else team.shared(stop)) and not last:
            control.should_save = control.should_training_stop = True
        elif state.global_step % self.length.save_steps == 0 and not last:
            control.should_save = True


class CommittedCheckpoints(Trainer):
    """Base of our trainers: the order of rows, and checkpoints that exist whole or not at all."""

    events: Events
    checkpoint_root: Path
    curve: LossCurve
    lengths: Sequence[int]
    order: ShuffledOrder
    model: Any
    lr_scheduler: Any
    data_collator: Any
    team: Team | None = None
    initial: dict[str, torch.Tensor] | None = None
    """What a new adapter began with, where that was not zero."""
    seen: Counted
    """What this process has trained on since its start."""
    multiplier: Callable[[int], float]
    """Step, counted from 0 -> factor of the learning rate."""

    def facts(self) -> JsonObject:
        """Return what else the trainer has decided, for the record."""
        return {}

    def count_batches(self) -> None:
        """Count what each batch trains, from now on."""
        self.seen = Counted()
        self.data_collator = Counting(self.data_collator)

    def training_step(self, model: Any, inputs: JsonObject, num_items_in_batch: Any = None) -> torch.Tensor:
        if COUNTS in inputs:
            counts_B2 = inputs.pop(COUNTS)
            trained, masked = counts_B2.sum(0).tolist()
            self.seen.add(Counted(trained, masked, len(counts_B2)))
        return super().training_step(model, inputs, num_items_in_batch)

    def counted(self) -> Counted:
        """Return what all processes have trained on since the beginning; each of them has to ask."""
        numbers = torch.tensor([self.seen.trained, self.seen.masked, self.seen.rows], device=self.args.device)
        if self.args.world_size > 1:
            torch.distributed.all_reduce(numbers)
        total = replace(self.curve.counted)
        total.add(Counted(*numbers.tolist()))
        return total

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        """Its rows are tokenised already."""
        return dataset

    def _get_train_sampler(self, train_dataset: Any = None) -> ShuffledOrder:
        self.order = self.new_order()
        return self.order

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        target = optimizer or self.optimizer
        assert target is not None, "made before its schedule"
        self.lr_scheduler = LambdaLR(target, self.multiplier)
        return self.lr_scheduler

    def new_order(self) -> ShuffledOrder:
        """Batches of all processes together; accelerate deals each out to them."""
        size = self.args.train_batch_size * self.args.world_size
        return LengthGroupedOrder(self.lengths, size, self.args.seed)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        started = time.monotonic()
        require_finite_weights(self.model)
        counted = self.counted()

        def write(folder: Path) -> None:
            """Write into the one checkpoint; each rank writes its own part, such as its random state."""
            folder = folder if self.team is None else Path(self.team.shared(str(folder)))
            output_dir, self.args.output_dir = self.args.output_dir, str(folder)
            try:
                Trainer._save_checkpoint(self, model, trial)
            finally:
                self.args.output_dir = output_dir
            if self.team is not None:
                torch.distributed.barrier()
            if self.args.should_save:
                replace(self.curve, counted=counted).save(folder)

        if self.team is not None and not self.team.leading:
            write(self.checkpoint_root)
            return
        step = self.state.global_step
        path = commit(self.checkpoint_root, step, write, at=faultpoint)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        seconds = round(time.monotonic() - started, 3)
        self.events.emit("checkpoint", step=step, path=str(path), bytes=size, seconds=seconds)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Write the optimizer; if its states are sharded, each rank writes its own."""
        if not self.is_distributed_loading_by_transformers:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        torch.save(local_states(self.optimizer), Path(output_dir) / PART_FILE.format(self.args.process_index))
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None or not self.is_distributed_loading_by_transformers:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        part = Path(checkpoint) / PART_FILE.format(self.args.process_index)
        take_states(self.optimizer, torch.load(part, weights_only=True))
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER_NAME, weights_only=True))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if not self.is_distributed_loading_by_transformers:  # otherwise it was loaded from there already
            super()._load_from_checkpoint(resume_from_checkpoint, model)


class OurSFTTrainer(CommittedCheckpoints, SFTTrainer):
    """Completion-only cross-entropy on rows that are tokenised and labelled already."""

    takes_positions: bool = False
    """Whether the model's forward can give the logits of chosen positions only."""

    def compute_loss(
        self, model: Any, inputs: JsonObject, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """TRL's loss, without its chunked head where the logits are small enough for memory.

        TRL recomputes each chunk of logits in the backward pass, which saves memory that a small model on a CPU has
        in plenty: without it a step takes a quarter less CPU time (5 M parameters, vocabulary 4,096).
        """
        labels_BT = inputs["labels"]
        vocabulary = self.model.config.get_text_config().vocab_size
        if return_outputs or not self.takes_positions or labels_BT.numel() * vocabulary > LOGITS_AT_ONCE:
            compute_trl_loss: Any = super().compute_loss  # untyped
            return compute_trl_loss(model, inputs, return_outputs, num_items_in_batch)
        self._total_train_tokens += int(inputs["attention_mask"].sum())
        self._metrics["train"]["num_tokens"] = [self._total_train_tokens]
        # The ranks take the mean of their gradients, and the count is of the tokens of all of them.
        return completion_loss(model, inputs, num_items_in_batch) * self.args.world_size


def completion_loss(model: Any, inputs: JsonObject, num_items_in_batch: Any = None) -> torch.Tensor:
    """Mean cross-entropy of the labelled tokens, each predicted from the tokens before it.

    `num_items_in_batch` is the number of labelled tokens of the whole optimizer step: a token counts the same in a
    short row and in a long one, however the step is cut into micro-batches. B rows, T tokens, K positions with a label
    in any row, N labelled tokens, V vocabulary.
    """
    target_BT = torch.nn.functional.pad(inputs["labels"][:, 1:], (0, 1), value=IGNORED)
    keep_K = (target_BT != IGNORED).any(0).nonzero()[:, 0]
    logits_BKV = model(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False, logits_to_keep=keep_K
    ).logits
    target_BK = target_BT[:, keep_K]
    labelled_BK = target_BK != IGNORED
    total = torch.nn.functional.cross_entropy(logits_BKV[labelled_BK].float(), target_BK[labelled_BK], reduction="sum")
    return total / (num_items_in_batch if num_items_in_batch is not None else labelled_BK.sum().clamp(min=1))
