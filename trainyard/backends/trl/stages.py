"""TRL's trainer for each stage, on rows that are tokenised already (torch; imported in the child only).

One function a stage in `STAGES`: it turns the rows into the columns that its trainer reads and sets the reference that
its loss needs. A stage more: its config in `arguments`, its rows in `data`, a function here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
from datasets import Dataset
from trl.trainer.dpo_trainer import DataCollatorForPreference, DPOTrainer
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference, KTOTrainer
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import RewardTrainer
from trl.trainer.sft_config import SFTConfig

from trainyard.backends.rewarding import make_panel
from trainyard.backends.trl.arguments import dpo_config, grpo_config, kto_config
from trainyard.backends.trl.data import PreparedRun
from trainyard.backends.trl.loading import load_base
from trainyard.backends.trl.rollouts import OurGRPOTrainer, choose_sharing, inner_model, rollout_settings, scorer
from trainyard.backends.trl.trainer import PROMPT_TOKENS, CommittedCheckpoints, OurSFTTrainer, ShuffledOrder
from trainyard.json_types import JsonObject
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.stages import Stage
from trainyard.train.contracts import Encoded
from trainyard.train.losses.pairs import SIDES
from trainyard.train.rl.rewards import name_rewards
from trainyard.train.rows.tokens import IGNORED, get_answer

Common = dict[str, Any]
"""Arguments that all stages share."""


class OurDPOTrainer(CommittedCheckpoints, DPOTrainer):
    """DPO on pairs that are tokenised already."""


class OurKTOTrainer(CommittedCheckpoints, KTOTrainer):
    """KTO on rows that are tokenised already.

    Their batches are not of similar length: good and bad answers differ in it, and a batch needs both.
    """

    left_out: int = 0
    """Rows that each pass leaves out."""

    def new_order(self) -> ShuffledOrder:
        return ShuffledOrder(len(self.lengths), self.args.seed, self.left_out)


class OurRewardTrainer(CommittedCheckpoints, RewardTrainer):
    """Bradley-Terry on pairs that are tokenised already."""

    _signature_columns: Any

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns: object = ["chosen_ids", "rejected_ids", PROMPT_TOKENS]

    def compute_loss(self, model: Any, inputs: JsonObject, *args: Any, **options: Any) -> Any:
        """Score a row by its last token, whichever that is; transformers takes the last one that is not padding.

        Where a row ends with the padding token, the batch is padded with a token that no row ends with.
        """
        ids_BT, mask_BT = inputs["input_ids"], inputs["attention_mask"]
        last_tokens = set(ids_BT.gather(1, mask_BT.sum(1, keepdim=True) - 1)[:, 0].tolist())
        config: Any = inner_model(self.model).config.get_text_config()
        padding = config.pad_token_id
        if padding not in last_tokens:
            return super().compute_loss(model, inputs, *args, **options)
        config.pad_token_id = next(id for id in count() if id not in last_tokens)
        try:
            filled_BT = ids_BT.masked_fill(mask_BT == 0, config.pad_token_id)
            return super().compute_loss(model, {**inputs, "input_ids": filled_BT}, *args, **options)
        finally:
            config.pad_token_id = padding


class LearnedAnswers(DataCollatorForPreference):
    """Pairs whose answers have parts that are not learned, such as the results of tools."""

    def torch_call(self, examples: list[JsonObject]) -> JsonObject:
        batch = super().torch_call(examples)
        sides = [(example, name) for name in SIDES for example in examples]
        for mask_T, (example, name) in zip(batch["completion_mask"], sides, strict=True):
            mask_answer(mask_T, len(example["prompt_ids"]), example[f"{name}_labels"])
        return batch


def mask_answer(mask_T: torch.Tensor, start: int, labels: list[int]) -> None:
    """Leave out of a row's mask what an answer that begins at `start` does not learn."""
    learned = torch.tensor([label != IGNORED for label in labels[: len(mask_T) - start]], dtype=mask_T.dtype)
    mask_T[start : start + len(learned)] *= learned


def with_labels(examples: Sequence[Encoded], names: Sequence[str]) -> list[Encoded]:
    """The examples, all of them with labels of their answers if one has them: a table has the same columns in each."""
    if not any(f"{name}_labels" in example for example in examples for name in names):
        return list(examples)
    return [
        {**example, **{f"{name}_labels": get_answer(example, name).labels for name in names}} for example in examples
    ]


class Neighbours(DataCollatorForUnpairedPreference):
    """Each prompt also with the completion of the row before it in the batch, by which KTO estimates its KL.

    TRL makes these once for the rows in their given order; made in the batch, they are right in any order of rows.
    """

    def torch_call(self, examples: list[JsonObject]) -> JsonObject:
        neighbours = [examples[-1], *examples[:-1]]
        paired = list(zip(examples, neighbours, strict=True))
        batch = super().torch_call(
            [{**example, "KL_completion_ids": other["completion_ids"]} for example, other in paired]
        )
        if "completion_labels" in examples[0]:
            for row, (example, other) in enumerate(paired):
                start = len(example["prompt_ids"])
                mask_answer(batch["completion_mask"][row], start, example["completion_labels"])
                mask_answer(batch["KL_completion_mask"][row], start, other["completion_labels"])
        return batch


def sft(prepared: PreparedRun, model: Any, common: Common) -> OurSFTTrainer:
    # Rows come tokenised and labelled, so TRL prepares nothing.
    config = SFTConfig(**common, packing=False, dataset_kwargs={"skip_prepare_dataset": True}, loss_type="nll")
    takes_positions = "logits_to_keep" in inspect.signature(inner_model(model).forward).parameters
    trainer = OurSFTTrainer(args=config, **trainer_arguments(prepared, model, prepared.examples))
    trainer.takes_positions = takes_positions
    return trainer


def dpo(prepared: PreparedRun, model: object, common: Common) -> OurDPOTrainer:
    examples = with_labels(prepared.examples, SIDES)
    rows = trainer_arguments(prepared, model, examples)
    if "chosen_labels" in examples[0]:
        rows["data_collator"] = LearnedAnswers(
            prepared.tokenizer.pad_token_id, prepared.job.config.hyperparameters.max_length
        )
    return OurDPOTrainer(args=dpo_config(common, prepared.job), ref_model=second_model(prepared), **rows)


def kto(prepared: PreparedRun, model: Any, common: Common) -> OurKTOTrainer:
    names = ("prompt_ids", "completion_ids", "completion_labels")
    rows = [
        {**{name: row[name] for name in names if name in row}, "label": bool(row["desirable"][0])}
        for row in with_labels(prepared.examples, ("completion",))
    ]
    trainer = OurKTOTrainer(
        args=kto_config(common, prepared.job),
        ref_model=second_model(prepared),
        data_collator=Neighbours(prepared.tokenizer.pad_token_id, prepared.job.config.hyperparameters.max_length),
        **trainer_arguments(prepared, model, rows),
    )
    trainer.left_out = prepared.left_out
    return trainer


def reward(prepared: PreparedRun, model: Any, common: Common) -> OurRewardTrainer:
    rows = [
        {side: row["prompt_ids"] + row[side] for side in ("chosen_ids", "rejected_ids")}
        | {PROMPT_TOKENS: len(row["prompt_ids"])}
        for row in prepared.examples
    ]
    # Bradley-Terry without a centring term; an adapter keeps its configured dropout.
    config = RewardConfig(**common, center_rewards_coefficient=None, disable_dropout=False)
    return OurRewardTrainer(args=config, **trainer_arguments(prepared, model, rows))


def grpo(prepared: PreparedRun, model: Any, common: Common) -> OurGRPOTrainer:
    """Return the reference of whole weights TRL loads itself, where the loss needs one."""
    settings = rollout_settings(prepared.job)
    rows: list[Any] = [
        {"prompt": row["input_ids"], "answer": row["answer"], "question": row["question"]} for row in prepared.examples
    ]
    panel = make_panel(prepared.job, prepared.tokenizer, prepared.device, lambda *_, **__: None)
    # A list of functions is one of what TRL takes, and lists are invariant.
    rewards: Any = [scorer(name, each, panel) for name, each in name_rewards(settings.rewards).items()]
    trainer = OurGRPOTrainer(
        args=grpo_config(common, settings), reward_funcs=rewards, **trainer_arguments(prepared, model, rows)
    )
    longest = max(len(example["input_ids"]) for example in prepared.examples) + settings.max_completion_length
    trainer.sharing = choose_sharing(settings.asks_shared, trainer.model, longest)
    return trainer


STAGES: dict[Stage, Callable[[PreparedRun, Any, Common], CommittedCheckpoints]] = {
    Stage.SFT: sft,
    Stage.DPO: dpo,
    Stage.KTO: kto,
    Stage.REWARD: reward,
    Stage.GRPO: grpo,
}


def trainer_arguments(prepared: PreparedRun, model: Any, rows: list[Encoded] | list[JsonObject]) -> JsonObject:
    """Return what every trainer gets besides its arguments."""
    return {"model": model, "train_dataset": Dataset.from_list(rows), "processing_class": prepared.tokenizer}


def second_model(prepared: PreparedRun) -> Any:
    """The reference of whole weights. That of an adapter is its own frozen start, which TRL keeps as a second adapter
    (or the bare base for a new one)."""
    if prepared.job.config.method.type is not Method.FULL:
        return None
    return load_base(prepared.job, prepared.device).to(prepared.device)
