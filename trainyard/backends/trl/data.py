"""The data of a training job, tokenised and accounted for, before any weight is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from trainyard.backends.job import TrainingJob
from trainyard.backends.trl.arguments import Length, left_out, prompts_of_a_step, run_length
from trainyard.backends.trl.loading import load_tokenizer
from trainyard.backends.trl.rollouts import encode_prompts, require_prompts, rollouts_of
from trainyard.compute.child import Events
from trainyard.data.rows import ROWS_FILE, LabelledRow, PreferenceRow, SftRow, read_rows
from trainyard.errors import InvalidInput
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.stages import Stage
from trainyard.train.batching import require_rows
from trainyard.train.control import shuffled_answers, shuffled_preferences
from trainyard.train.stages import kto
from trainyard.train.tokens import Encoded, TokenLedger, encode_preference, encode_sft, require_targets

Found = tuple[list[Encoded], TokenLedger]


@dataclass
class PreparedRun:
    """Everything that a run needs before its first step."""

    job: TrainingJob
    device: str
    tokenizer: PreTrainedTokenizerBase
    examples: list[Encoded]
    ledger: TokenLedger
    length: Length
    left_out: int
    """Rows that each pass leaves out."""


def prepare(job: TrainingJob, device: str, events: Events) -> PreparedRun:
    """Tokenise the data, print and check its account. Raises `InvalidInput` (`E-BATCH-SMALL`, `E-NO-DATA`, …)."""
    require_rows(job.config)
    if job.config.stage is Stage.GRPO:
        rollouts_of(job)
    tokenizer = load_tokenizer(job)
    examples, ledger = ENCODERS[job.config.stage](job, tokenizer)
    print(ledger.line(), flush=True)
    events.emit("ledger", **ledger.tokens(), rows=dict(ledger.rows), text=ledger.line())
    if job.config.stage is Stage.GRPO and ledger.rows["read"]:
        require_prompts(job, ledger)
    else:
        require_targets(ledger)
    alone = left_out(job, len(examples))
    if alone:
        events.emit("warning", text=told_of(job, len(examples), alone))
    return PreparedRun(job, device, tokenizer, examples, ledger, run_length(job, len(examples) - alone), alone)


def told_of(job: TrainingJob, rows: int, alone: int) -> str:
    """Why each pass leaves rows out, and how many."""
    if job.config.stage is Stage.KTO:
        told = f"{rows} rows in batches of {job.config.hyperparameters.batch_size} leave one over"
        return f"Stage kto compares the rows of a batch. {told}: each pass leaves out another."
    told = f"{rows} rows leave {alone} over"
    return f"Each step of stage grpo answers {prompts_of_a_step(job)} prompts. {told}: each pass leaves out others."


def encode_conversations(job: TrainingJob, tokenizer: PreTrainedTokenizerBase) -> Found:
    """Rows of the sft port, or the chosen side of a preference set."""
    hyper = job.config.hyperparameters
    if Port.SFT in job.data:
        rows = [row for row in read_rows(Path(job.data[Port.SFT]) / ROWS_FILE, Port.SFT) if isinstance(row, SftRow)]
    else:
        rows = [
            SftRow([*row.prompt, *row.chosen], row.doc_id, row.source, row.split, tools=row.tools)
            for row in preference_rows(job)
        ]
    if job.config.control == "shuffled_answers":
        rows = shuffled_answers(rows, hyper.seed)
    return encode_sft(rows, tokenizer, hyper.max_length)


def encode_pairs(job: TrainingJob, tokenizer: PreTrainedTokenizerBase) -> Found:
    rows, hyper = preference_rows(job), job.config.hyperparameters
    if job.config.control == "shuffled_answers":
        rows = shuffled_preferences(rows, hyper.seed)
    return encode_preference(rows, tokenizer, hyper.max_length)


def encode_labelled(job: TrainingJob, tokenizer: PreTrainedTokenizerBase) -> Found:
    """Single answers with their verdict. Raises `InvalidInput` (`E-KTO-ONE-SIDED`) when all have the same."""
    given = read_rows(file_of(job, Port.LABELLED), Port.LABELLED)
    return kto.encode([row for row in given if isinstance(row, LabelledRow)], tokenizer, job.config)


def encode_asked(job: TrainingJob, tokenizer: PreTrainedTokenizerBase) -> Found:
    """Prompts of the sft port; beside its ids each row has the text of its answer."""
    rows = [row for row in read_rows(file_of(job, Port.SFT), Port.SFT) if isinstance(row, SftRow)]
    return encode_prompts(rows, tokenizer, job.config.hyperparameters.max_length)


ENCODERS: dict[Stage, Callable[[TrainingJob, PreTrainedTokenizerBase], Found]] = {
    Stage.SFT: encode_conversations,
    Stage.DPO: encode_pairs,
    Stage.KTO: encode_labelled,
    Stage.REWARD: encode_pairs,
    Stage.GRPO: encode_asked,
}


def preference_rows(job: TrainingJob) -> list[PreferenceRow]:
    path = file_of(job, Port.PREFERENCE)
    return [row for row in read_rows(path, Port.PREFERENCE) if isinstance(row, PreferenceRow)]


def file_of(job: TrainingJob, port: Port) -> Path:
    """The rows that arrived at a port. Raises `InvalidInput` (`E-NO-DATA`)."""
    if port not in job.data:
        wanted = Port.SFT if job.config.stage is Stage.SFT else port
        raise InvalidInput(
            f"Stage {job.config.stage} needs {wanted.value} rows, and none arrived.",
            why=f"The trainer was given: {', '.join(port.value for port in job.data) or 'nothing'}.",
            do="Connect a data_source, generator or validator that produces them.",
            code="E-NO-DATA",
        )
    return Path(job.data[port]) / ROWS_FILE


def sequence(example: Encoded) -> list[int]:
    """The ids of a row, or of the longer side of a pair."""
    if "input_ids" in example:
        return example["input_ids"]
    answers = [example[name] for name in ("completion_ids", "chosen_ids", "rejected_ids") if name in example]
    return example["prompt_ids"] + max(answers, key=len)
