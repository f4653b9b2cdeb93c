"""Feasibility of a verdict: the rows and independent cases that it needs, and those there are.

floor = find_floor(chain)
floor.reasons(trained=6, held_out=Counted(rows=9, cases=2))   → why the gate could not decide; [] where it can
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pydantic import Field

from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.data import DATA_PORTS, Port
from trainyard.spec.chain import ResolvedChain, ResolvedNode
from trainyard.spec.estimate.heldout import explain_too_few_rows
from trainyard.spec.nodes import DeployerConfig, EvaluatorConfig
from trainyard.spec.training import TrainerConfig


class Counted(NamedTuple):
    """Counts of a held-out set."""

    rows: int
    cases: int
    """Independent ones: a document on unseen documents, a question on unseen wording."""


def least_cases(confidence: float) -> int:
    """Fewest independent cases that can support a one-sided bound at this confidence.

    Under no effect all n cases agree by chance with probability 2^-n (sign test); that has to be at most half of
    1 - confidence, the mass below a two-sided interval's lower bound. 95 % needs 6 cases.
    """
    return math.ceil(math.log2(2 / (1 - confidence)))


def undecidable(label: str, cases: int, confidence: float) -> str | None:
    """Return why a gate cannot decide on so many independent cases; None if it can."""
    needed = least_cases(confidence)
    if cases >= needed:
        return None
    return (
        f"{label}: {cases} independent case{'s' if cases != 1 else ''} cannot support {confidence:.0%} "
        f"confidence; at least {needed} are needed. Hold out more documents or questions."
    )


class VerdictFloor(Strict):
    """Minimum that a chain's gate needs to decide; the deployer stops below it."""

    evaluator: str
    candidates: tuple[str, ...]
    """Trainers whose results are judged: the candidate, and its control."""
    waits: dict[str, tuple[tuple[str, Port], ...]] = Field(default_factory=dict)
    """Any other trainer -> (node, port) of the rows of a candidate: nothing is trained before they are counted."""
    confidence: float
    least_rows: int
    decides: tuple[str, Port] | None = None
    """(node, port) of the set whose held-out rows decide; None where an evaluator's own tasks do."""

    @property
    def cases_needed(self) -> int:
        return least_cases(self.confidence)

    def reasons(self, *, trained: int | None = None, held_out: Counted | None = None) -> list[str]:
        """Return why there will be no verdict on so many rows; what is not known is not judged."""
        rows = held_out if self.decides else None
        reason = explain_too_few_rows(trained, rows.rows if rows else None, least=self.least_rows)
        unclear = undecidable("The held-out rows", rows.cases, self.confidence) if rows else None
        return reason + ([unclear] if unclear else [])


def find_floor(chain: ResolvedChain) -> VerdictFloor | None:
    """Return what the gate of a chain needs; None where few rows are allowed, or nothing is judged and deployed."""
    deployers = [node.config for node in chain.nodes if isinstance(node.config, DeployerConfig)]
    evaluators = [node for node in chain.nodes if isinstance(node.config, EvaluatorConfig)]
    if not evaluators or not any(deployer.few_rows == "stop" for deployer in deployers):
        return None
    evaluator, config = evaluators[0], evaluators[0].config
    assert isinstance(config, EvaluatorConfig)
    sources = [source.node_id for port in (Port.ADAPTER, Port.MODEL) for source in evaluator.inputs.get(port, ())]
    candidates = tuple(name for name in sources if isinstance(chain.node(name).config, TrainerConfig))
    return VerdictFloor(
        evaluator=evaluator.id,
        candidates=candidates,
        waits=waits_for_rows(chain, candidates),
        confidence=config.confidence,
        least_rows=config.least_rows,
        decides=deciding_set(evaluator, config),
    )


def deciding_set(evaluator: ResolvedNode, config: EvaluatorConfig) -> tuple[str, Port] | None:
    """Return the set whose held-out rows the primary metric is measured on; None where that is not known.

    Of preferences and rows to answer, the latter decide, unless the primary metric is one of preferences
    (`evals.gate.choose_primary`).
    """
    if any(line.path is not None for line in config.benchmarks):
        return None
    sets = [
        (source.node_id, source.port)
        for port, sources in evaluator.inputs.items()
        if port in DATA_PORTS
        for source in sources
    ]
    if len({port for _, port in sets}) > 1:
        of_pairs = (config.primary or "").startswith("pairwise_reward_accuracy")
        sets = [source for source in sets if (source[1] is Port.PREFERENCE) is of_pairs]
    return sets[0] if len(sets) == 1 else None


def waits_for_rows(chain: ResolvedChain, candidates: tuple[str, ...]) -> dict[str, tuple[tuple[str, Port], ...]]:
    """Return, for each trainer that is not judged, the rows of the first judged one, unless they come after it."""
    if not candidates:
        return {}
    inputs = chain.node(candidates[0]).inputs
    rows = [
        (source.node_id, source.port) for port, sources in inputs.items() if port in DATA_PORTS for source in sources
    ]
    trainers = [node.id for node in chain.nodes if isinstance(node.config, TrainerConfig) and node.id not in candidates]
    return {name: tuple(source for source in rows if name not in list_ancestors(chain, source[0])) for name in trainers}


def list_ancestors(chain: ResolvedChain, node_id: str) -> frozenset[str]:
    """Return a node and all that it needs."""
    node = chain.node(node_id)
    needed = {source.node_id for sources in node.inputs.values() for source in sources} | set(node.needs)
    return frozenset({node_id}).union(*(list_ancestors(chain, name) for name in needed))
