"""The rows of a native job, tokenised and accounted for (torch; imported in the child only)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from trainyard.backends.job import TrainingJob
from trainyard.backends.rows import rows_of
from trainyard.compute.child import Events
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
    examples, ledger = stage.encode(rows_of(job), tokenizer, job.config)
    print(ledger.line(), flush=True)
    events.emit("ledger", **ledger.tokens(), rows=dict(ledger.rows), text=ledger.line())
    require_targets(ledger)
    return PreparedData(tokenizer, stage, examples, ledger)
