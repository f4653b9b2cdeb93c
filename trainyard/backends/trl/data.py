"""The data of a training job, tokenised and accounted for, before any weight is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from trainyard.backends.frame import report_ledger
from trainyard.backends.job import TrainingJob
from trainyard.backends.rows import list_mixed_sets, read_rows
from trainyard.backends.trl.arguments import Length, count_left_out, prompts_of_a_step, run_length
from trainyard.backends.trl.loading import load_tokenizer
from trainyard.backends.trl.rollouts import require_prompts, rollout_settings
from trainyard.compute.child import Events
from trainyard.errors import InvalidInput
from trainyard.spec.axes.stages import Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Encoded
from trainyard.train.losses import kto, ppo, sft
from trainyard.train.rows.batching import require_rows
from trainyard.train.rows.tokens import TokenLedger, encode_preference, encode_sft, require_accepted, require_targets

Encoding = tuple[list[Encoded], TokenLedger]
Encoder = Callable[[Any, PreTrainedTokenizerBase, TrainerConfig], Encoding]


@dataclass
class PreparedRun:
    """Prepared inputs of a run, before its first step."""

    job: TrainingJob
    device: str
    tokenizer: PreTrainedTokenizerBase
    examples: list[Encoded]
    ledger: TokenLedger
    length: Length
    left_out: int
    """Rows that each pass leaves out."""


def prepare(job: TrainingJob, device: str, events: Events) -> PreparedRun:
    """Tokenise the data, print and check its account. Raises `InvalidInput` (`E-BATCH`, `E-DATA-EMPTY`, …)."""
    require_rows(job.config)
    if job.config.stage.type is Stage.GRPO:
        rollout_settings(job)
    tokenizer = load_tokenizer(job)
    if tokenizer.pad_token is None:
        raise InvalidInput(
            "The tokenizer of the base has no special token, and TRL pads with one.",
            do="Set pad_token in the base's tokenizer_config.json, or use backend native.", code="E-TOKENIZER",
        )  # fmt: skip
    examples, ledger = ENCODERS[job.config.stage.type](list(read_rows(job)), tokenizer, job.config)
    ledger.keep_sets(list_mixed_sets(job))
    report_ledger(events, ledger)
    require_accepted(ledger, job.config.refusal_limit)
    if job.config.stage.type is Stage.GRPO and ledger.rows["read"]:
        require_prompts(job, ledger)
    else:
        require_targets(ledger)
    alone = count_left_out(job, len(examples))
    if alone:
        events.emit("warning", text=describe_dropped_rows(job, len(examples), alone))
    return PreparedRun(job, device, tokenizer, examples, ledger, run_length(job, len(examples) - alone), alone)


def describe_dropped_rows(job: TrainingJob, rows: int, alone: int) -> str:
    """Return why each pass leaves rows out, and how many."""
    if job.config.stage.type is Stage.KTO:
        count = f"{rows} rows in batches of {job.config.hyperparameters.batch_size} leave one over"
        return f"Stage kto compares the rows of a batch. {count}: each pass leaves out another."
    count = f"{rows} rows leave {alone} over"
    return f"Each step of stage grpo answers {prompts_of_a_step(job)} prompts. {count}: each pass leaves out others."


def cut(encode: Callable[[Any, PreTrainedTokenizerBase, int], Encoding]) -> Encoder:
    """Return an encoder that reads the longest allowed length of the config, and nothing else."""
    return lambda rows, tokenizer, config: encode(rows, tokenizer, config.hyperparameters.max_length)


def encode_turns(rows: Any, tokenizer: PreTrainedTokenizerBase, config: TrainerConfig) -> Encoding:
    return encode_sft(rows, tokenizer, config.hyperparameters.max_length, last_turn=sft.learns_last(config))


ENCODERS: dict[Stage, Encoder] = {
    Stage.SFT: encode_turns,
    Stage.DPO: cut(encode_preference),
    Stage.REWARD: cut(encode_preference),
    Stage.GRPO: ppo.encode,
    Stage.KTO: kto.encode,
}


def sequence(example: Encoded) -> list[int]:
    """Return the ids of a row, or of the longer side of a pair."""
    if "input_ids" in example:
        return example["input_ids"]
    answers = [example[name] for name in ("completion_ids", "chosen_ids", "rejected_ids") if name in example]
    return example["prompt_ids"] + max(answers, key=len)
