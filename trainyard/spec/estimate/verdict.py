"""Feasibility of a verdict: the rows and independent cases that it needs, and those there are.

floor = find_floor(chain)
floor.reasons(trained=6, held_out=Counted(rows=9, cases=2))   → why the gate could not decide; [] where it can

How many rows have to be generated so that a number of them is left to train on.

A validator keeps whole documents apart, and of every other question one wording. Of a held-out question one wording is
evaluated and the others are spare. Pairs of question and answer are taken as spread evenly over the documents.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pydantic import Field

from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.data import DATA_PORTS, GenerationTemplate, Port
from trainyard.spec.chain import ResolvedChain, ResolvedNode
from trainyard.spec.nodes import AiGeneratorConfig, DeployerConfig, EvaluatorConfig, HoldoutRules, ValidatorConfig
from trainyard.spec.training import TrainerConfig

MOST = 0.5
"""At most half of the documents are held out, whatever number of rows is asked."""
FEW_TRAINING_ROWS, FEW_EVALUATION_ROWS = 50, 30
"""Below, a training teaches little beyond the form of the answers, and a verdict rests on little."""


class Shares(NamedTuple):
    """Split of generated rows."""

    generated: int
    trained: int
    unseen_documents: int
    unseen_wording: int


def rows_to_generate(count: int, documents: int | None, wordings: int, rules: HoldoutRules | None) -> Shares:
    """Return the smallest set of pairs, all of their wordings counted, that leaves `count` rows to train on.

    `documents` is how many the pairs are spread over, None if that is not known. Without rules all rows are trained.
    """
    if rules is None:
        return Shares(count, count, 0, 0)
    kept_back = rules.wording and wordings > 1
    each = wordings - 1 if kept_back else wordings
    pairs = math.ceil(count / each)
    while (trained := each * (pairs - estimate_held_out_pairs(pairs, documents, rules))) < count:
        pairs += max(1, (count - trained) // each)
    held_out = estimate_held_out_pairs(pairs, documents, rules)
    return Shares(pairs * wordings, trained, held_out, pairs - held_out if kept_back else 0)


def estimate_held_out_pairs(pairs: int, documents: int | None, rules: HoldoutRules) -> int:
    """Pairs of the documents that are held out: the share that is requested, and enough for the least rows.

    Whole documents are held out, so that the last of them may bring more pairs than are still wanted.
    """
    if rules.documents <= 0:
        return 0
    if documents is None:
        return min(math.ceil(max(rules.documents * pairs, rules.min_rows) - 1e-9), int(pairs * MOST))
    used = min(documents, pairs)
    most = -(-pairs // used)
    by_rows = rules.min_rows + most - 1 if rules.min_rows else 0
    by_share = math.ceil(math.ceil(rules.documents * used - 1e-9) * pairs / used)
    return min(max(by_rows, by_share), int(used * MOST) * most)


def describe_small_sets(trained: int | None, evaluated: int | None) -> list[str]:
    """Return a sentence for each tiny set; unknown sizes are not judged."""
    checks = []
    if trained is not None and trained < FEW_TRAINING_ROWS:
        checks.append(f"Fewer than {FEW_TRAINING_ROWS} rows to train on ({trained}): little but form is learned.")
    if evaluated is not None and evaluated < FEW_EVALUATION_ROWS:
        checks.append(f"Fewer than {FEW_EVALUATION_ROWS} rows to evaluate on ({evaluated}): a verdict rests on little.")
    return checks


def explain_too_few_rows(trained: int | None, evaluated: int | None, *, least: int) -> list[str]:
    """Return why there is no verdict on so many rows, by the floor of an evaluator; unknown sizes are not judged."""
    checks = []
    if trained is not None and trained < least:
        checks.append(f"{trained} rows to train on are not enough to say; at least {least} are needed.")
    if evaluated is not None and evaluated < least:
        checks.append(f"{evaluated} rows to evaluate on are not enough to say; at least {least} are needed.")
    return checks


def tiny_sets(config: Strict, rows: int | None) -> list[str]:
    """Return what a plan warns of: a trainer with few rows, a generator that leaves few rows for the evaluator."""
    if isinstance(config, TrainerConfig):
        return describe_small_sets(rows, None)
    if isinstance(config, AiGeneratorConfig) and config.holdout is not None:
        shares = estimate_generated_rows(config, None)
        return describe_small_sets(None, max(shares.unseen_documents, shares.unseen_wording))
    return []


def estimate_generated_rows(config: AiGeneratorConfig, documents: int | None) -> Shares:
    wordings = config.wordings if config.template is GenerationTemplate.QA else 1
    return rows_to_generate(config.count, documents, wordings, config.holdout)


def generator_basis(config: AiGeneratorConfig, shares: Shares) -> str:
    """Return the division of the requested rows, and the number of answers sampled for them."""
    candidates = f"; {config.best_of} answers to each question, in as many requests" if config.best_of > 1 else ""
    if config.holdout is None:
        return f"rows: at most the count of {config.count:,}{candidates}"
    unseen = f"{shares.unseen_documents:,} of unseen documents, {shares.unseen_wording:,} of unseen wording"
    spare = shares.generated - shares.trained - shares.unseen_documents - shares.unseen_wording
    return (
        f"rows: about {shares.trained:,} to train on, {unseen}, {spare:,} spare wordings; at most what the texts give"
        f"{candidates}"
    )


def find_generated_sets(chain: ResolvedChain) -> dict[str, dict[Port, int]]:
    """Validator -> port -> rows to train on, where a generator writes them for it."""
    counts: dict[str, dict[Port, int]] = {}
    for node in chain.nodes:
        for port, sources in node.inputs.items() if isinstance(node.config, ValidatorConfig) else ():
            configs = [chain.node(source.node_id).config for source in sources if port in DATA_PORTS]
            for config in configs:
                if isinstance(config, AiGeneratorConfig) and config.holdout is not None:
                    counts.setdefault(node.id, {})[port] = config.count
    return counts


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
        """Return why there will be no verdict on so many rows; unknown sizes are not judged."""
        rows = held_out if self.decides else None
        reason = explain_too_few_rows(trained, rows.rows if rows else None, least=self.least_rows)
        unclear = undecidable("The held-out rows", rows.cases, self.confidence) if rows else None
        return reason + ([unclear] if unclear else [])


def find_floor(chain: ResolvedChain) -> VerdictFloor | None:
    """Return the needs of a chain's gate; None where few rows are allowed, or nothing is judged and deployed."""
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
