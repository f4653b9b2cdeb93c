"""What the training benchmarks share: a small model, rows to train on, our engine put together as a job does it, and
TRL's trainers on the same tokens.

The model is a random Llama of 5.3 M parameters whose words are its tokens, so that a text of n words has n tokens. Both
sides start from tokens: tokenising is not part of what is timed. One thread each, seconds of CPU.
"""

from __future__ import annotations

import contextlib
import math
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_trainer import KTOTrainer
from trl.trainer.reward_trainer import RewardTrainer
from trl.trainer.sft_trainer import SFTTrainer

from benchmarks.harness import size
from trainyard.backends.job import TrainingJob
from trainyard.backends.native.assembly import NativeRun, assemble, set_determinism
from trainyard.backends.native.program import StepReporter
from trainyard.compute.child import Events
from trainyard.data.rows import ROWS_FILE, Row, write_rows
from trainyard.spec.axes.data import Port
from trainyard.spec.training import TrainerConfig, resolve_trainer
from trainyard.train.contracts import Cursor, Encoded
from trainyard.train.loop import Hook, train
from trainyard.train.methods.table import parameter_groups
from trainyard.train.optimizers import make_optimizer
from trainyard.train.progress import SavedProgress
from trainyard.train.reporting import reporting
from trainyard.train.rows.batching import StepRows
from trainyard.train.schedules import LearningRate
from trainyard.train.session.session import Session
from trainyard.train.trackers import TrackedRun

VOCABULARY, LONGEST = 4096, 512
SPECIAL = ["<pad>", "<end>", "<user>", "<assistant>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '> ' + message['content'] + ' <end> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)
MEAN_TOKENS, SPREAD = 134, 0.75
"""Of the lognormal distribution; with rows above 512 tokens cut to that, the mean is 128."""


@dataclass(frozen=True)
class Shape:
    """Size of the random model."""

    hidden: int = size(256, 64)
    inner: int = size(688, 96)
    layers: int = size(4, 2)
    heads: int = 4


def quiet() -> None:
    """Libraries say nothing; a benchmark prints one table."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()


def build_model(folder: Path, shape: Shape | None = None) -> Path:
    """Write the random model and its tokenizer, whose tokens are the words w0, w1, …"""
    shape = shape or Shape()
    torch.manual_seed(0)
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *map(word_of, range(VOCABULARY - len(SPECIAL)))])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_object=plain, pad_token="<pad>", eos_token="<end>", chat_template=TEMPLATE)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=shape.hidden, intermediate_size=shape.inner,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.heads,
        max_position_embeddings=2 * LONGEST, pad_token_id=0, eos_token_id=1, bos_token_id=None,
        tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def word_of(index: int) -> str:
    return f"w{index}"


def text_of(chance: random.Random, num_words: int) -> str:
    """So many words, the first ones of the vocabulary more often than the last."""
    return " ".join(word_of(int(VOCABULARY * 0.9 * chance.random() ** 2)) for _ in range(num_words))


def chat_length(chance: random.Random, least: int = 16) -> int:
    """Tokens of a chat row: lognormal, at most 512."""
    num_tokens = chance.lognormvariate(math.log(MEAN_TOKENS) - SPREAD**2 / 2, SPREAD)
    return min(LONGEST, max(least, round(num_tokens)))


# Ours


def assembled(folder: Path, base: Path, port: Port, rows: Sequence[Row], config: dict[str, Any]) -> NativeRun:
    """Our engine for a job over these rows, in `folder`, as the child process of a job has it at its first step."""
    folder.mkdir(parents=True)
    (folder / "data").mkdir()
    write_rows(folder / "data" / ROWS_FILE, port, rows)
    job = TrainingJob(
        config=resolve_trainer(TrainerConfig.model_validate({"device": "cpu", **config}), str(base)),
        data={port: str(folder / "data")},
        base=str(base),
        locks=str(folder),
    )
    set_determinism(job)
    events = Events(folder / "events.jsonl")
    try:
        with contextlib.redirect_stdout(None):  # the account of the tokens
            return assemble(job, folder, events, "cpu")
    finally:
        events.close()


def fresh_session(run: NativeRun) -> Session:
    """The same engine with an optimizer and a schedule that have done nothing yet."""
    config = run.job.config
    optimizer = make_optimizer(parameter_groups(run.policy, config), config)
    rate = LearningRate(optimizer, config, run.total_steps)
    return Session(replace(run.session.engine, optimizer=optimizer, rate=rate), run.session.folder)


def train_ours(
    run: NativeRun, hooks: Sequence[Hook] = (), prepare: Callable[[Session], None] | None = None
) -> SavedProgress:
    """Train from step one with everything that a job has: the loop, the verbs, a report of every step to a file.

    `prepare` runs first, inside what is timed.
    """
    run.session, run.progress = fresh_session(run), SavedProgress()
    if prepare is not None:
        prepare(run.session)
    events = Events(run.session.folder.parent / "events.jsonl")
    tracked_run = TrackedRun(run.session.folder.parent, "benchmark", "benchmark", {})
    try:
        with reporting(events.emit, tracked_run, terminal=None) as report:
            train(
                run.session, run.feed, run.progress, total_steps=run.total_steps, save=save_nothing,
                save_steps=run.total_steps, stop=events.stop_requested, hooks=[StepReporter(run, report), *hooks],
            )  # fmt: skip
    finally:
        events.close()
    return run.progress


def save_nothing(_session: Session, _progress: SavedProgress) -> None:
    """No checkpoint."""


def steps_of(run: NativeRun) -> list[StepRows]:
    """The rows of every step of the run, in order."""
    per_epoch = run.feed.plan.steps_per_epoch
    return [run.feed.plan.at(Cursor(step // per_epoch, step % per_epoch)) for step in range(run.total_steps)]


def in_training_order(run: NativeRun) -> list[Encoded]:
    """The examples as often and in the order in which the run takes them."""
    return [run.feed.examples[row] for step in steps_of(run) for micro in step for row in micro]


# TRL


class Tokenised:
    """A trainer that is given tokens: TRL prepares text only."""

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset


class TokenisedDPO(Tokenised, DPOTrainer):
    """DPO on {prompt_ids, chosen_ids, rejected_ids}."""


class TokenisedKTO(Tokenised, KTOTrainer):
    """KTO on {prompt_ids, completion_ids, KL_completion_ids, label}."""


TRAINERS: dict[str, tuple[type[Any], type[Any]]] = {
    "sft": (SFTTrainer, transformers.AutoModelForCausalLM),
    "reward": (RewardTrainer, transformers.AutoModelForSequenceClassification),
    "dpo": (TokenisedDPO, transformers.AutoModelForCausalLM),
    "kto": (TokenisedKTO, transformers.AutoModelForCausalLM),
}
LIKE_OURS = {
    "bf16": False,
    "gradient_checkpointing": False,
    "train_sampling_strategy": "sequential",
    "lr_scheduler_type": "linear",
}
"""Arguments with which TRL does the same work as our engine in fp32, on rows that are given in our order."""


def build_trl(
    stage: str, config: Callable[..., Any], base: Path, folder: Path, rows: Sequence[Any], **arguments: Any
) -> Any:
    """TRL's trainer over tokenised rows, with its defaults but for `arguments`; no checkpoints, no reports."""
    kind, model_class = TRAINERS[stage]
    model_options = {"num_labels": 1} if stage == "reward" else {}
    args = config(
        output_dir=str(folder), use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True, **arguments
    )
    trainer = kind(
        model=model_class.from_pretrained(base, **model_options),
        args=args,
        train_dataset=Dataset.from_list(list(rows)),
        processing_class=transformers.AutoTokenizer.from_pretrained(base),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def losses_of(trainer: Any) -> list[float]:
    """Train, and the loss of every step; for a trainer that was built with `logging_steps=1`."""
    torch.use_deterministic_algorithms(False)
    trainer.train()
    return [point["loss"] for point in trainer.state.log_history if "loss" in point]


# Variants for `alternate`


def run_ours(run: NativeRun, units: float, prepare: Callable[[Session], None] | None = None) -> Callable[[], float]:
    """Train once more with our engine, with the deterministic kernels that a job asks for."""

    def variant() -> float:
        set_determinism(run.job)
        train_ours(run, prepare=prepare)
        return units

    return variant


def run_trl(trainer: Any, units: float) -> Callable[[], float]:
    """Train once more with TRL, which does not ask for deterministic kernels: they would slow it by a quarter."""

    def variant() -> float:
        torch.use_deterministic_algorithms(False)
        trainer.train()
        return units

    return variant
