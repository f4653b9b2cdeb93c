"""What a gate needs is known before the training."""

from __future__ import annotations

from typing import Any

from trainyard.spec.axes.data import Port
from trainyard.spec.chain import ResolvedChain
from trainyard.spec.estimate.verdict import Counted, VerdictFloor, find_floor, least_cases
from trainyard.spec.graph import resolve
from trainyard.spec.load.files import read_chain
from trainyard.spec.templates import build_template


def resolve_spec(*nodes: dict[str, Any]) -> ResolvedChain:
    source = {"type": "data_source", "config": {"path": "rows.jsonl", "format": "alpaca"}}
    spec, reasons = read_chain({"nodes": [source, {"type": "validator"}, {"type": "trainer"}, *nodes]})
    assert spec is not None, reasons
    return resolve(spec, "starter")


def evaluator(**config: Any) -> dict[str, Any]:
    return {"type": "evaluator", "config": config}


def test_floor_of_a_chain_that_judges_and_deploys() -> None:
    floor = find_floor(resolve_spec(evaluator(), {"type": "deployer"}))
    assert floor == VerdictFloor(
        evaluator="evaluator", candidates=("trainer",), confidence=0.95, least_rows=30, decides=("validator", Port.SFT)
    )
    assert floor.cases_needed == least_cases(0.95) == 6
    assert floor.reasons(trained=30, held_out=Counted(30, 6)) == floor.reasons() == []
    assert floor.reasons(trained=6, held_out=Counted(9, 2)) == [
        "6 rows to train on are not enough to say; at least 30 are needed.",
        "9 rows to evaluate on are not enough to say; at least 30 are needed.",
        "The held-out rows: 2 independent cases cannot support 95% confidence; at least 6 are needed. "
        "Hold out more documents or questions.",
    ]


def test_chains_that_may_train_on_few_rows_have_no_floor() -> None:
    assert find_floor(resolve_spec()) is find_floor(resolve_spec(evaluator())) is None
    assert find_floor(resolve_spec({"type": "deployer", "config": {"unevaluated": True}})) is None
    assert find_floor(resolve_spec(evaluator(), {"type": "deployer", "config": {"few_rows": "allow"}})) is None


def test_rows_of_task_files_are_not_held_out() -> None:
    evaluator_settings = {
        "benchmarks": [{"name": "exact_match", "path": "tasks.jsonl"}],
        "least_rows": 10,
        "confidence": 0.9,
    }
    floor = find_floor(resolve_spec(evaluator(**evaluator_settings), {"type": "deployer"}))
    assert floor is not None
    assert (floor.decides, floor.least_rows, floor.cases_needed) == (None, 10, 5)
    assert floor.reasons(trained=10, held_out=Counted(1, 1)) == []


def test_a_control_is_held_to_the_floor_of_its_adapter_and_an_earlier_stage_is_not() -> None:
    pairs = {"sft": "a.jsonl", "preference": "b.jsonl", "steps": {"control": True}}
    floor = find_floor(resolve(build_template("alignment-pipeline", pairs), "starter"))
    assert floor is not None
    assert set(floor.candidates) == {"trainer-2", "control"}
    assert floor.decides == ("validator", Port.SFT), "held-out loss decides, as in the report"
