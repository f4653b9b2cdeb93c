"""The progress of a run, as stored in its checkpoints: its position, its losses, and its evaluations.

What follows from an evaluation is a pure function of the numbers: a run that was stopped and continued decides as one
that was not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from trainyard.json_types import JsonObject
from trainyard.train.contracts import Cursor
from trainyard.train.history import Evaluations
from trainyard.train.reporting.counts import Counted


@dataclass
class SavedProgress:
    """Part of a checkpoint."""

    cursor: Cursor = field(default_factory=Cursor)
    losses: list[list[float]] = field(default_factory=list)
    """[step, loss, learning rate] of every step."""
    partial: dict[str, float] = field(default_factory=dict)
    """Sums over the micro-batches of a step that is not complete."""
    counted: Counted = field(default_factory=Counted)
    """What the complete steps were trained on."""
    evaluations: Evaluations = field(default_factory=Evaluations)
    """What was measured on the held-out rows."""
    kept: JsonObject = field(default_factory=dict)
    """What the next steps learn from besides the rows: completions that were drawn for several of them."""

    def as_values(self) -> JsonObject:
        plain = {"losses": list(self.losses), "partial": dict(self.partial)}
        kept = {"kept": dict(self.kept)} if self.kept else {}
        evaluations = {"evaluations": asdict(self.evaluations)} if self.evaluations.found else {}
        return {"cursor": asdict(self.cursor), **plain, "counted": asdict(self.counted), **evaluations, **kept}

    @classmethod
    def from_values(cls, values: JsonObject) -> SavedProgress:
        losses = [list(point) for point in values["losses"]]
        return cls(
            Cursor(**values["cursor"]),
            losses,
            dict(values["partial"]),
            Counted(**values.get("counted", {})),
            Evaluations(**values.get("evaluations", {})),
            dict(values.get("kept", {})),
        )
