"""Numbers of rows to generate so that a given number is left to train on.

A validator keeps whole documents apart, and of every other question one wording. Of a held-out question one wording is
evaluated and the others are spare. Pairs of question and answer are taken as spread evenly over the documents.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.data import DATA_PORTS, GenerationTemplate, Port
from trainyard.spec.chain import ResolvedChain
from trainyard.spec.nodes import AiGeneratorConfig, HoldoutRules, ValidatorConfig
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
    """Return a sentence for each set that is tiny; what is not known is not judged."""
    checks = []
    if trained is not None and trained < FEW_TRAINING_ROWS:
        checks.append(f"Fewer than {FEW_TRAINING_ROWS} rows to train on ({trained}): little but form is learned.")
    if evaluated is not None and evaluated < FEW_EVALUATION_ROWS:
        checks.append(f"Fewer than {FEW_EVALUATION_ROWS} rows to evaluate on ({evaluated}): a verdict rests on little.")
    return checks


def explain_too_few_rows(trained: int | None, evaluated: int | None, *, least: int) -> list[str]:
    """Return why there is no verdict on so many rows, by the floor of an evaluator; what is not known is not judged."""
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
    """Return how the rows that are asked for are divided, and how many answers are drawn for them."""
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
