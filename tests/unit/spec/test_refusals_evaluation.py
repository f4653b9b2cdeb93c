"""What evaluators and deployers are refused: sets that nobody held out, metrics, targets that cannot load a version."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.spec.chains import get_row_name, list_row_names, node, reasons, source
from trainyard.errors import Reason


def six(*, generator: dict[str, Any], validator: dict[str, Any], evaluator: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        source("docs"), node("ai_generator", **generator), node("validator", **validator), node("trainer"),
        node("evaluator", **evaluator),
    ]  # fmt: skip


WORDING = {"benchmarks": [{"name": "f1", "set": "unseen_wording"}]}
DOCUMENTS = {"benchmarks": [{"name": "f1", "set": "unseen_documents"}]}


@pytest.mark.parametrize(
    ("generator", "validator", "evaluator", "expected"),
    [
        ({}, {}, WORDING, []),
        ({"wordings": 2}, {}, WORDING, []),
        ({"wordings": 1}, {}, WORDING, ["no-set"]),
        ({"template": "instruction"}, {}, WORDING, ["no-set"]),
        ({}, {"holdout": {"wording": False}}, WORDING, ["no-set"]),
        ({}, {"holdout": {"documents": 0}}, WORDING, []),
        ({}, {"holdout": {"documents": 0}}, DOCUMENTS, ["no-set"]),
        ({}, {"holdout": {"documents": 0, "wording": False}}, {}, ["no-heldout"]),
        ({}, {"holdout": {"documents": 0, "wording": False}}, WORDING, ["no-heldout"]),
        ({"wordings": 1}, {"holdout": {"documents": 0}}, {}, ["no-heldout"]),
        ({"wordings": 1}, {}, {"primary": "heldout_loss/unseen_wording"}, ["no-set"]),
        ({}, {}, {"primary": "heldout_loss/unseen_wording"}, []),
        ({}, {}, {"primary": "heldout_loss/general"}, []),
    ],
)
def test_sets_have_to_be_held_out_to_be_evaluated(
    generator: dict[str, Any], validator: dict[str, Any], evaluator: dict[str, Any], expected: list[str]
) -> None:
    assert list_row_names(*six(generator=generator, validator=validator, evaluator=evaluator)) == expected


def test_wordings_are_seen_through_a_second_validator() -> None:
    nodes = six(generator={}, validator={}, evaluator=WORDING)
    nodes.insert(2, node("validator", "first"))
    assert list_row_names(*nodes) == []


def test_the_field_of_a_missing_set_is_named() -> None:
    evaluator = {
        "benchmarks": [{"name": "f1"}, {"name": "f1", "set": "unseen_wording"}],
        "primary": "f1/unseen_wording",
    }
    refusals = reasons(*six(generator={"wordings": 1}, validator={}, evaluator=evaluator))
    assert [reason.field for reason in refusals] == ["config.benchmarks.1.set", "config.primary"]
    assert refusals[0].because == "No set unseen_wording is held out; there is unseen_documents."


def test_rows_that_training_saw_are_no_evaluation() -> None:
    benchmarks = [{"name": "f1", "path": "tasks.jsonl"}, {"name": "f1"}]
    assert list_row_names(source(), node("trainer"), node("evaluator", benchmarks=benchmarks)) == ["no-heldout"]
    benchmarks = [{"name": "lm_evals"}]
    assert list_row_names(source(), node("trainer"), node("evaluator", benchmarks=benchmarks)) == ["no-heldout"]


@pytest.mark.parametrize(
    ("primary", "benchmarks", "fine"),
    [
        ("f1", [{"name": "f1", "set": "unseen_documents"}], True),
        ("f1/unseen_documents", [{"name": "f1", "set": "unseen_documents"}], True),
        ("f1/unseen_documents", [{"name": "f1"}], True),
        ("f1/heldout", [{"name": "f1", "set": "unseen_documents"}], False),
        ("f2", [{"name": "f1"}, {"name": "f2"}], True),
        ("f3", [{"name": "f1"}, {"name": "f2"}], False),
        ("f1/tasks", [{"name": "f1", "path": "tasks.jsonl"}], True),
    ],
)
def test_the_primary_metric_has_to_be_listed(primary: str, benchmarks: list[dict[str, str]], fine: bool) -> None:
    refusal_names = list_row_names(
        source(), node("validator"), node("trainer"), node("evaluator", benchmarks=benchmarks, primary=primary)
    )
    assert refusal_names == ([] if fine else ["primary"])


def check_deployed(trainer: dict[str, Any], *targets: dict[str, Any]) -> list[Reason]:
    return reasons(
        source(), node("validator"), node("trainer", **trainer), node("evaluator"),
        node("deployer", targets=list(targets)),
    )  # fmt: skip


VLLM = {"type": "vllm", "url": "http://127.0.0.1:8000"}


def test_each_target_is_judged_by_itself() -> None:
    refusals = check_deployed({"method": {"rank": 32}}, {"type": "registry"}, VLLM, {**VLLM, "max_lora_rank": 32})
    assert [(get_row_name(reason), reason.field) for reason in refusals] == [
        ("rank-server", "config.targets.1.max_lora_rank")
    ]
    assert refusals[0].because == "The adapter has rank 32, and the server takes at most 16."


def test_a_stated_limit_counts_for_every_kind_of_target() -> None:
    refusals = check_deployed({"method": {"rank": 9}}, {"type": "embedded", "max_lora_rank": 8})
    assert [get_row_name(reason) for reason in refusals] == ["rank-server"]
    assert check_deployed({"method": {"rank": 8}}, {"type": "embedded", "max_lora_rank": 8}) == []


def test_rank_means_nothing_for_full_weights_and_for_oft() -> None:
    assert [get_row_name(r) for r in check_deployed({"method": "full"}, VLLM)] == ["full-hotload"]
    assert [get_row_name(r) for r in check_deployed({"method": "oft", "backend": "native"}, VLLM)] == ["target-adapter"]
    assert [get_row_name(r) for r in check_deployed({"method": "freeze", "backend": "native"}, VLLM)] == [
        "full-hotload"
    ]


def test_all_reasons_of_a_target_are_told_at_once() -> None:
    refusals = check_deployed(
        {"method": {"type": "dora", "rank": 64, "modules_to_save": ["lm_head", "embed_tokens"]}},
        {"type": "vllm", "base_model": "org/other"},
    )
    assert [get_row_name(reason) for reason in refusals] == [
        "target-adapter", "target-adapter", "rank-server", "target-base-mismatch", "target-url",
    ]  # fmt: skip
    assert "(lm_head, embed_tokens)" in refusals[1].because


@pytest.mark.parametrize(
    ("kind", "method", "codes"),
    [
        ("llama_server", "lora", []),
        ("llama_server", "dora", ["target-adapter"]),
        ("llama_server", "full", []),
        ("ollama", "qlora", []),
        ("ollama", "oft", ["target-adapter"]),
        ("mlx", "dora", []),
        ("mlx", "oft", ["target-adapter"]),
    ],
)
def test_what_the_files_of_a_target_have_no_words_for(kind: str, method: str, codes: list[str]) -> None:
    assert [
        get_row_name(reason) for reason in check_deployed({"method": method, "backend": "native"}, {"type": kind})
    ] == codes


def test_a_server_that_the_deployer_starts_has_no_address_to_give() -> None:
    target = {"type": "mlx", "url": "http://127.0.0.1:8080"}
    assert [get_row_name(reason) for reason in check_deployed({}, target)] == ["target-own"]


def test_a_report_must_be_about_what_is_deployed() -> None:
    refusals = reasons(
        source(), node("validator"), node("trainer"), node("evaluator"), node("trainer", "later"), node("deployer")
    )
    assert [get_row_name(reason) for reason in refusals] == ["report-mismatch"]
    assert refusals[0].because == "The report judges 'trainer', and 'later' would be deployed."


def test_a_deployer_may_be_unevaluated_with_an_evaluator_too() -> None:
    nodes = source(), node("validator"), node("trainer"), node("evaluator"), node("deployer", unevaluated=True)
    assert list_row_names(*nodes) == []
