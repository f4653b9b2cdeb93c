"""The data of a training job, tokenised and accounted for, before any weight is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from trainyard.backends.job import TrainingJob
from trainyard.backends.trl.arguments import Length, run_length, trains_pairs
from trainyard.backends.trl.loading import load_tokenizer
from trainyard.compute.child import Events
from trainyard.data.rows import ROWS_FILE, PreferenceRow, SftRow, read_rows
from trainyard.errors import InvalidInput
from trainyard.spec.axes import Port
from trainyard.train.control import shuffled_answers, shuffled_preferences
from trainyard.train.tokens import Encoded, Ledger, encode_preference, encode_sft, require_targets


@dataclass
class Prepared:
    """Everything that a run needs before its first step."""

    job: TrainingJob
    device: str
    tokenizer: PreTrainedTokenizerBase
    examples: list[Encoded]
    ledger: Ledger
    length: Length


def prepare(job: TrainingJob, device: str, events: Events) -> Prepared:
    """Tokenise the data, print and check its account."""
    tokenizer = load_tokenizer(job)
    encode = encode_pairs if trains_pairs(job) else encode_conversations
    examples, ledger = encode(job, tokenizer)
    print(ledger.line(), flush=True)
    events.emit("ledger", **ledger.tokens(), rows=dict(ledger.rows), text=ledger.line())
    require_targets(ledger)
    return Prepared(job, device, tokenizer, examples, ledger, run_length(job, len(examples)))


def encode_conversations(job: TrainingJob, tokenizer: PreTrainedTokenizerBase) -> tuple[list[Encoded], Ledger]:
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


def encode_pairs(job: TrainingJob, tokenizer: PreTrainedTokenizerBase) -> tuple[list[Encoded], Ledger]:
    rows, hyper = preference_rows(job), job.config.hyperparameters
    if job.config.control == "shuffled_answers":
        rows = shuffled_preferences(rows, hyper.seed)
    return encode_preference(rows, tokenizer, hyper.max_length)


def preference_rows(job: TrainingJob) -> list[PreferenceRow]:
    if Port.PREFERENCE not in job.data:
        raise InvalidInput(
            f"Stage {job.config.stage} needs {'preference' if trains_pairs(job) else 'sft'} rows, and none arrived.",
            why=f"The trainer was given: {', '.join(port.value for port in job.data) or 'nothing'}.",
            do="Connect a data_source, generator or validator that produces them.",
            code="E-NO-DATA",
        )
    path = Path(job.data[Port.PREFERENCE]) / ROWS_FILE
    return [row for row in read_rows(path, Port.PREFERENCE) if isinstance(row, PreferenceRow)]


def sequence(example: Encoded) -> list[int]:
    """The ids of a row, or of the longer side of a pair."""
    if "input_ids" in example:
        return example["input_ids"]
    return example["prompt_ids"] + max(example["chosen_ids"], example["rejected_ids"], key=len)
