"""From a file, a text or a plain value to a chain: what is misspelt is answered with the word that was meant."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.unit.spec.chains import chain, list_row_names, node, reasons, source
from trainyard.errors import NotFound, Reason, Refused
from trainyard.spec.chain import ChainSpec
from trainyard.spec.graph import check
from trainyard.spec.load.files import load_chain, load_value, read_chain
from trainyard.spec.load.parse import (
    describe_value,
    find_closest,
    find_model,
    find_models,
    parse_chain,
    parse_nodes,
    sentence,
)
from trainyard.spec.load.text import MAX_SPEC_BYTES
from trainyard.spec.nodes import SourceSet, Target

LINE = "name: small\nnodes:\n  - {type: data_source, config: {path: rows.jsonl}}\n  - {type: trainer}\n"


def get_only(reasons: list[Reason]) -> Reason:
    (reason,) = reasons
    return reason


def list_lines(*nodes: dict[str, Any]) -> list[str]:
    return [reason.line() for reason in reasons(*nodes)]


# Files


def test_a_chain_is_read_from_a_path_a_name_a_text_and_bytes(tmp_path: Path) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text(LINE, encoding="utf-8")
    expected = load_chain(file)
    assert expected.name == "small"
    assert load_chain(str(file)) == load_chain(LINE) == load_chain(LINE.encode()) == expected
    assert load_chain(json.dumps(load_value(LINE))) == expected


def test_a_name_without_a_known_ending_is_a_file_if_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chain").write_text(LINE, encoding="utf-8")
    assert load_chain("chain").name == "small"
    with pytest.raises(Refused, match=r"A chain is a mapping with `nodes`, not 'other'"):
        load_chain("other")


@pytest.mark.parametrize("name", ["nowhere.yaml", "nowhere.yml", "nowhere.JSON"])
def test_a_missing_file_is_not_found(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFound, match=r"E-SPEC-FILE: The file .* cannot be read. Why: No such file") as error:
        load_chain(str(tmp_path / name))
    assert error.value.do == "Check the path."
    with pytest.raises(NotFound, match="E-SPEC-FILE"):
        load_chain(tmp_path / name)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"is a folder, not a file. Do: Name a YAML or JSON file."):
        load_chain(tmp_path)


def test_a_file_over_the_cap_is_not_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "big.yaml"
    with file.open("wb") as stream:
        os.truncate(stream.fileno(), 3_000_000_000)
    with pytest.raises(Refused, match=f"The file has {MAX_SPEC_BYTES + 1:,} bytes"):
        load_chain(file)


@pytest.mark.parametrize("text", ["", "\0.yaml", "{a: b.yaml}", "x" * 5000 + ".yaml", "a: b\nc.yaml"])
def test_what_cannot_be_a_name_is_a_text(text: str) -> None:
    with pytest.raises(Refused, match="E-SPEC-"):
        load_chain(text)


def test_refusals_cross_process_boundaries() -> None:
    with pytest.raises(Refused) as refused:
        load_chain("nodes: []\n")
    again = pickle.loads(pickle.dumps(refused.value))
    assert again.reasons == refused.value.reasons
    assert again.exit_code == 5


# Templates and jobs in files


def test_a_call_of_a_template_is_a_chain() -> None:
    called = load_chain("template: qa-pipeline\nparameters: {documents: handbook}\n")
    assert [node.type for node in called.nodes][:2] == ["data_source", "ai_generator"]
    assert load_chain("template: code-tuning\n").name == "code-tuning"
    assert load_chain("template: code-tuning\nparameters:\n").name == "code-tuning"


@pytest.mark.parametrize(("name", "value"), [("control", "shuffled_answers"), ("reuse", False)])
def test_a_setting_that_only_chains_have_is_not_suggested_to_a_job(name: str, value: object) -> None:
    job, (reason,) = read_chain({"dataset": {"path": "rows.jsonl"}, name: value})
    assert job is None
    assert reason.instead == f"Write a chain: `{name}` is a setting of its trainers, and a job has none."


CALL = "template: qa-pipeline\n"
WRONG_CALLS = [
    ("template: qa_pipelines", "template: There is no template 'qa_pipelines'. Instead: Did you mean 'qa-pipeline'?"),
    ("template: zzz", "Instead: Use qa-pipeline, alignment-pipeline, rlhf, grpo, rag-tuning, code-tuning."),
    ("template: [1]", "E-SPEC-FILE template: There is no template '[1]'."),
    (CALL + "parameter: {}", "E-SPEC-KEY parameter: There is no field 'parameter' here. Instead: Did you mean 'para"),
    (CALL + "documents: x", "Instead: Put it under `parameters:`."),
    (CALL + "parameters: {document: x}", "E-SPEC-KEY parameters.document: There is no field 'document' here. Instead"),
    (CALL + "parameters: {document: x}", "Did you mean 'documents'?"),
    (CALL + "parameters: {steps: {valdate: no}}", "parameters.steps.valdate: There is no field 'valdate' here."),
    (CALL + "parameters: {steps: {valdate: no}}", "Did you mean 'validate'?"),
    (CALL + "parameters: {count: 0}", "E-SPEC-VALUE parameters.count: 0 does not fit: Input should be greater"),
    (CALL + "parameters: {count: 0}", "Instead: Write a number of at least 1."),
    (CALL + "parameters: {training: {method: loraa}}", "Instead: Did you mean 'lora'?"),
    (
        CALL + "parameters: {training: {method: zz}}",
        "Instead: Write one of: full, lora, qlora, dora, lora_plus, oft, freeze, auto.",
    ),
    (CALL + "parameters: [1]", "E-SPEC-VALUE parameters: a list does not fit"),
    (
        "template: qa-pipeline",
        "E-SPEC-MISSING parameters.documents: The field 'documents' is needed here. Instead: Add `documents:`",
    ),
    (
        "template: alignment-pipeline",
        "E-SPEC-MISSING parameters.sft: The field 'sft' is needed here. Instead: Add `sft:`",
    ),
]


@pytest.mark.parametrize(("text", "expected"), WRONG_CALLS)
def test_a_wrong_call_of_a_template_says_what_is_right(text: str, expected: str) -> None:
    with pytest.raises(Refused) as refused:
        load_chain(text)
    assert any(expected in reason.line() for reason in refused.value.reasons)


def test_check_takes_templates_and_jobs_too() -> None:
    assert check({"template": "code-tuning"}) == []
    assert check({"dataset": {"path": "rows.jsonl"}}) == []
    assert [reason.code for reason in check({"template": "rag"})] == ["E-SPEC-FILE"]
    assert [reason.field for reason in check({"dataset": {"pth": "x"}})] == ["dataset.path", "dataset.pth"]


def test_a_chain_wins_over_a_stray_word() -> None:
    assert read_chain({"nodes": [source()], "template": "x"})[1][0].code == "E-SPEC-KEY"
    assert read_chain({"nodes": [source()], "dataset": "x"})[1][0].code == "E-SPEC-KEY"


# Reasons from values


def test_a_misspelt_key_is_answered_with_the_nearest_one() -> None:
    assert list_lines(source(), node("trainer", hyperparameters={"learning_rat": 1e-3})) == [
        "E-SPEC-KEY trainer.config.hyperparameters.learning_rat: There is no field 'learning_rat' here. "
        "Instead: Did you mean 'learning_rate'?"
    ]


def test_a_key_like_none_lists_those_that_exist() -> None:
    reason = get_only(reasons(source(), node("validator", holdout={"zzz": 1})))
    assert reason.instead == "Write one of: documents, min_rows, wording."
    reason = get_only(check({"nodes": [source()], "zzz": 1}))
    assert (reason.node, reason.field) == (None, "zzz")
    assert reason.instead == "Write one of: name, description, tenant, max_spend, nodes, theme, tags."


def test_keys_inside_lists_and_sets_are_answered_too() -> None:
    reason = get_only(reasons(source(), node("trainer"), node("deployer", unevaluated=True, targets=[{"typ": "vllm"}])))
    assert (reason.field, reason.instead) == ("config.targets.0.typ", "Did you mean 'type'?")
    reason = get_only(reasons(node("data_source", sets={"sft": {"path": "a.jsonl", "formt": "alpaca"}})))
    assert (reason.field, reason.instead) == ("config.sets.sft.formt", "Did you mean 'format'?")
    reason = get_only(reasons({"type": "data_source", "config": {"path": "a"}, "need": []}))
    assert (reason.field, reason.instead) == ("need", "Did you mean 'needs'?")


def test_an_unknown_node_type_is_answered_with_the_nearest_one() -> None:
    assert list_lines(source(), {"type": "trainr"}) == [
        "E-SPEC-TYPE trainr.type: There is no node type 'trainr'. Instead: Did you mean 'trainer'?"
    ]
    assert "Use data_source, ai_generator, validator, trainer, evaluator, deployer." in list_lines({"type": "zzz"})[0]
    assert list_lines(source(), {"id": "mine", "config": {}})[0].startswith(
        "E-SPEC-TYPE mine.type: The node has no `type`. Instead: Use data_source"
    )
    assert "There is no node type a list." in list_lines({"type": []})[0]


@pytest.mark.parametrize("nodes", [[None], ["trainer"], [3]])
def test_a_node_that_is_no_mapping(nodes: list[Any]) -> None:
    reason = get_only(check({"nodes": nodes}))
    assert reason.node == "node"
    assert reason.instead == "Write a mapping of keys to values."


@pytest.mark.parametrize("value", [None, [], "text", 3, True])
def test_a_chain_is_a_mapping(value: object) -> None:
    reason = get_only(check(value))
    assert reason.code == "E-SPEC-TYPE"
    assert reason.because == f"A chain is a mapping with `nodes`, not {describe_value(value)}."


def test_a_chain_needs_nodes() -> None:
    assert (
        get_only(check({})).line() == "E-SPEC-MISSING nodes: The field 'nodes' is needed here. Instead: Add `nodes:`."
    )
    assert get_only(check({"nodes": []})).instead == "Give at least 1."
    assert get_only(check({"nodes": {}})).code == "E-SPEC-VALUE"
    assert get_only(check({"nodes": "x"})).instead == "Write a list."


@pytest.mark.parametrize(
    ("config", "instead"),
    [
        ({"batch_size": 0}, "Write a number of at least 1."),
        ({"batch_size": 5000}, "Write a number of at most 4,096."),
        ({"learning_rate": 0}, "Write a number above 0."),
        ({"epochs": "many"}, "Write a number."),
        ({"batch_size": 1.5}, "Write a whole number."),
        ({"batch_size": "x"}, "Write a whole number."),
        ({"batch_size": []}, "Write a whole number."),
        ({"epochs": []}, "Write a number."),
        ({"epochs": float("nan")}, "Write a finite number."),
        ({"gradient_checkpointing": "perhaps"}, "Write true or false."),
        ({"gradient_checkpointing": []}, "Write true or false."),
        ({"schedule": "cosin"}, "Did you mean 'cosine'?"),
        ({"precision": "zz"}, "Write one of: auto, bf16, fp16, fp32."),
        ({"precision": 3}, "Write one of: auto, bf16, fp16, fp32."),
    ],
)
def test_a_wrong_value_says_what_fits(config: dict[str, Any], instead: str) -> None:
    refusals = reasons(source(), node("trainer", hyperparameters=config))
    assert refusals[0].code in ("E-SPEC-VALUE",)
    assert refusals[0].field == f"config.hyperparameters.{next(iter(config))}"
    assert refusals[0].instead == instead


def test_other_kinds_of_wrong_values() -> None:
    assert get_only(reasons(node("data_source", path=3))).instead == (
        "Write a text; put quotes around it if it looks like a number."
    )
    assert get_only(reasons(node("data_source", path=""))).instead == "Write at least 1 character(s)."
    assert get_only(reasons(node("data_source", path="x" * 4097))).instead == "Write at most 4,096 characters."
    below = get_only(reasons(source(), node("trainer", stage={"type": "dpo", "label_smoothing": 0.5})))
    assert below.instead == "Write a number below 0.5."
    assert get_only(reasons(source(), node("trainer", method=3))).instead == "Write a mapping of keys to values."
    assert get_only(reasons(source(include="x"))).instead == "Write a list."
    assert get_only(reasons(node("data_source", sets=[]))).instead == "Write a mapping of keys to values."
    keyed = get_only(reasons(node("data_source", path="a", api_key_env="x")))
    assert keyed.row == "chain-key"
    variable = get_only(reasons(source("docs"), node("ai_generator", model="m", api_key_env="no good")))
    assert variable.instead.startswith("Write `endpoint: NAME` in place of `api_key_env`")
    assert get_only(check(chain(source(), name="No Name"))).instead == (
        "Write lower-case letters, digits and hyphens, at most 63, starting with a letter or a digit."
    )


def test_rules_of_our_own_are_told_in_their_words() -> None:
    reason = get_only(reasons(node("data_source", path="a", url="https://b")))
    assert reason.because == "Exactly one of path, url, repository, hub and sql is needed; given: path, url."
    assert reason.instead == "Correct the value; docs/chains.md lists what each field takes."
    assert get_only(reasons(node("data_source", format="alpaca"))).because.endswith("given: none.")
    assert (
        get_only(reasons(node("data_source", url="https://b", data_worker="http://c"))).because
        == "A data_worker needs exactly a path with it."
    )
    assert "give either one of path, url, repository, hub, sql, or sets, or mix; not two of them" in get_only(
        reasons(node("data_source", path="a", sets={"sft": {"path": "b"}}))
    ).because.replace("Give", "give")
    assert (
        "cannot name the set 'adapter'"
        in get_only(reasons(node("data_source", sets={"adapter": {"path": "b"}}))).because
    )


def test_more_nodes_than_the_cap_are_a_limit() -> None:
    many = [{"type": "validator", "needs": []}] * 10_001
    assert get_only([reason for reason in check({"nodes": many}) if reason.code == "E-SPEC-SYNTAX"]).instead == (
        "Give at most 10,000."
    )


def test_the_node_of_a_wrong_value_is_named_by_its_id() -> None:
    refusals = reasons(
        source(),
        node("trainer", method={"type": "lora", "rank": 0}),
        node("trainer", "mine", method={"type": "lora", "rank": 999}),
    )
    assert [reason.node for reason in refusals] == ["trainer", "mine"]


def test_a_wrong_node_does_not_hide_what_is_wrong_with_the_others() -> None:
    refusal_names = list_row_names(
        source(),
        node("validator", min_tokens=-1),
        node("trainer", backend="trl", method="oft"),
        node("trainer", "alone", ["data-source"], quantization="nf4"),
        node("evaluator"),
        node("deployer", None, ["nowhere"]),
    )
    assert refusal_names == ["E-SPEC-VALUE", "E-SPEC-GRAPH", "backend-setting", "quant-method", "no-heldout"]


def test_what_follows_a_node_that_cannot_be_read_is_not_blamed_for_its_inputs() -> None:
    assert list_row_names({"type": "data_sourc"}, node("trainer"), node("evaluator"), node("deployer")) == [
        "E-SPEC-TYPE"
    ]


def test_models_are_taken_apart_too() -> None:
    chain_spec = load_chain(LINE)
    assert [parsed.node is not None for parsed in parse_nodes({"nodes": list(chain_spec.nodes)})] == [True, True]
    assert parse_nodes({"nodes": "x"}) == []
    assert parse_nodes([]) == []


def test_a_list_of_nodes_is_not_also_too_short() -> None:
    assert [reason.code for reason in check({"nodes": [{"type": "data_source", "config": {"pth": "x"}}]})] == [
        "E-SPEC-KEY"
    ]


def test_an_id_with_an_underscore_is_answered_with_the_one_that_exists() -> None:
    refusals = reasons(source(), node("trainer", None, ["data_source"]))
    assert [reason.instead for reason in refusals][1] == "Did you mean 'data-source'?"


def test_words_are_compared_without_case_and_hyphens() -> None:
    assert find_closest("Learning-Rate", ["learning_rate", "seed"]) == "learning_rate"
    assert find_closest("qa_pipeline", ["qa-pipeline"]) == "qa-pipeline"
    assert find_closest("zzz", ["learning_rate"]) is None
    assert find_closest("x", []) is None


def test_values_are_described_in_one_line() -> None:
    assert describe_value(None) == "null"
    assert describe_value("x" * 100) == "'" + "x" * 59 + "…"
    assert describe_value({"a": 1}) == "a dict"
    assert describe_value(True) == "True"


def test_sentences() -> None:
    assert sentence("value error") == "Value error."
    assert sentence("Value error, why?") == "Why?"
    assert sentence("") == "."


def test_the_model_at_a_place() -> None:
    assert find_model(ChainSpec, ("nodes", 3, "deployer", "config", "targets", 0)) is Target
    assert find_model(ChainSpec, ("nodes", 0, "data_source", "config", "sets", "sft")) is SourceSet
    assert find_model(ChainSpec, ("name",)) is None
    assert find_model(ChainSpec, ("name", "further")) is None
    assert list(find_models(dict[str, tuple[SourceSet, ...]])) == [SourceSet]
    assert list(find_models(int)) == []


def test_a_valid_value_has_no_reasons() -> None:
    spec, reasons = parse_chain(chain(source(), node("trainer")))
    assert spec == ChainSpec.model_validate(chain(source(), node("trainer")))
    assert reasons == []
