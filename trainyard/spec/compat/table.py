"""Every refused combination in one table, and the two questions that are asked of it."""

from __future__ import annotations

from collections.abc import Sequence, Set

from trainyard.errors import Reason
from trainyard.spec.chain import ResolvedChain
from trainyard.spec.compat.adapters import ADAPTER_BASE_ROWS
from trainyard.spec.compat.advice import STEP_ROWS, UNUSED_WARMUP
from trainyard.spec.compat.backends import BACKEND_ROWS
from trainyard.spec.compat.context import NodeView, Row, RunFacts, View, answers, fill
from trainyard.spec.compat.data import DATA_ROWS, GENERATOR_ROWS, VALIDATOR_ROWS
from trainyard.spec.compat.engine import ENGINE_ROWS, LAUNCH_ROWS
from trainyard.spec.compat.evaluator_deployer import DEPLOYER_ROWS, EVALUATOR_ROWS
from trainyard.spec.compat.islands import ISLAND_ROWS
from trainyard.spec.compat.latent import LATENT_ROWS
from trainyard.spec.compat.other_tools import WORD_ROWS
from trainyard.spec.compat.run import RUN_ROWS
from trainyard.spec.compat.session import SESSION_ROWS
from trainyard.spec.compat.training import CHANGING_ROWS, ROLLOUT_ROWS, TEACHER_ROWS, TRAINER_ROWS
from trainyard.spec.ports import Wiring

ROWS: tuple[Row, ...] = (
    *DATA_ROWS, *GENERATOR_ROWS, *VALIDATOR_ROWS, *BACKEND_ROWS, *TRAINER_ROWS, *CHANGING_ROWS, *ENGINE_ROWS,
    *LAUNCH_ROWS, *ISLAND_ROWS, *ROLLOUT_ROWS, *TEACHER_ROWS, *EVALUATOR_ROWS, *DEPLOYER_ROWS, *RUN_ROWS, *WORD_ROWS,
    *SESSION_ROWS, *LATENT_ROWS, *STEP_ROWS, *ADAPTER_BASE_ROWS, UNUSED_WARMUP,
)  # fmt: skip
"""Every refused combination."""


def spec_reasons(chain: ResolvedChain, wiring: Wiring, unclear: Set[str] = frozenset()) -> list[Reason]:
    """Return every reason that the chain itself gives, node by node in its order."""
    return apply_rows(ROWS, "spec", View(chain, wiring), unclear)


def run_reasons(chain: ResolvedChain, facts: RunFacts) -> list[Reason]:
    """Return every reason why an accepted chain cannot run here and now."""
    return apply_rows(ROWS, "run", View(chain, Wiring(), facts), frozenset())


def session_reasons(chain: ResolvedChain) -> list[Reason]:
    """Return every reason why no session can have the settings of these trainers."""
    return apply_rows(ROWS, "session", View(chain, Wiring()), frozenset())


def apply_rows(rows: Sequence[Row], scope: str, view: View, unclear: Set[str]) -> list[Reason]:
    """Return the reason of each row of a scope that a node matches; `unclear` nodes are spared those of chains."""
    by_type: dict[str, list[Row]] = {}
    reasons: list[Reason] = []
    for node in view.chain.nodes:
        if node.type not in by_type:
            by_type[node.type] = [row for row in rows if row.scope == scope and row.on in (node.type, "*")]
        located = NodeView(node, view)
        for row in by_type[node.type]:
            for arguments in () if row.chained and node.id in unclear else answers(row.when(node.config, located)):
                filled = {"config": node.config, **arguments}
                reasons.append(fill(row, filled, node.id, row.field.format(**filled)))
    return reasons
