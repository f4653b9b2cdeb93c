"""The rows of a native job, tokenised and accounted for (torch; imported in the child only)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from trainyard.backends.job import TrainingJob
from trainyard.compute.child import Events
from trainyard.data.rows import ROWS_FILE, Row, chosen_side, read_rows
from trainyard.errors import InvalidInput
from trainyard.spec.axes.data import Port
from trainyard.train.control import shuffled_answers, shuffled_preferences
from trainyard.train.stages.contract import StageSpec
from trainyard.train.tokens import Encoded, TokenLedger, require_targets


@dataclass(frozen=True)
class PreparedData:
    """Everything that the data gives to a run."""

    tokenizer: PreTrainedTokenizerBase
    stage: StageSpec
    examples: Sequence[Encoded]
    ledger: TokenLedger

    @property
    def widths(self) -> list[int]:
        return [self.stage.width(example) for example in self.examples]


def prepare(job: TrainingJob, stage: StageSpec, tokenizer: PreTrainedTokenizerBase, events: Events) -> PreparedData:
    """Tokenise the data, print and check its account."""
    rows: Any = job_rows(job, stage)
    if job.config.control == "shuffled_answers":
        shuffle: Any = shuffled_preferences if Port.PREFERENCE in stage.facts.ports else shuffled_answers
        rows = shuffle(list(rows), job.config.hyperparameters.seed)
    examples, ledger = stage.encode(rows, tokenizer, job.config)
    print(ledger.line(), flush=True)
    events.emit("ledger", **ledger.tokens(), rows=dict(ledger.rows), text=ledger.line())
    require_targets(ledger)
    return PreparedData(tokenizer, stage, examples, ledger)


def job_rows(job: TrainingJob, stage: StageSpec) -> Iterator[Row] | list[Row]:
    """Rows of the stage's port; the chosen side of pairs where a stage imitates and only pairs are there."""
    ports = stage.facts.ports
    for port in ports:
        if port in job.data:
            return read_rows(Path(job.data[port]) / ROWS_FILE, port)
    if Port.PREFERENCE in stage.facts.instead and Port.PREFERENCE in job.data:
        pairs: Sequence[Any] = list(read_rows(Path(job.data[Port.PREFERENCE]) / ROWS_FILE, Port.PREFERENCE))
        return [chosen_side(pair) for pair in pairs]
    raise InvalidInput(
        f"Stage {job.config.stage} needs {' or '.join(ports)} rows, and none arrived.",
        why=f"The trainer was given: {', '.join(port.value for port in job.data) or 'nothing'}.",
        do="Connect a data_source, generator or validator that produces them.",
        code="E-NO-DATA",
    )
