"""What an editor of chains asks for: the palette, drafts written out, links, and the difference of revisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard import here
from trainyard.app.context import Caller, Context
from trainyard.errors import Denied, InvalidInput, NotFound, Refused
from trainyard.settings import settings
from trainyard.spec.graph import resolve
from trainyard.spec.nodes import NODE_CONFIGS
from trainyard.spec.templates import TEMPLATES, build_template
from trainyard.surfaces.invocation import build_request, execute_operation

PARAMETERS: dict[str, dict[str, Any]] = {
    "qa-pipeline": {"documents": "docs", "steps": {"control": True}, "training": {"method": "qlora", "epochs": 2}},
    "alignment-pipeline": {"sft": "sft.jsonl", "preference": "pairs.jsonl", "alignment": {"loss": "ipo"}},
    "rlhf": {"sft": "sft.jsonl", "preference": "pairs.jsonl", "ppo": {"kl_coef": 0.1}},
    "grpo": {"rows": "sft.jsonl", "answer_mark": "####"},
    "rag-tuning": {
        "documents": "docs",
        "training": {"rank": 16},
        "publish": {"targets": [{"type": "vllm", "url": "http://127.0.0.1:1/v1"}]},
    },
    "code-tuning": {"repository": "src", "learn_from": "commits"},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "one.md").write_text("# A\n\nThe depot has nine tracks.\n")
    monkeypatch.chdir(tmp_path)


def find_links(spec: dict[str, Any], node: str) -> dict[tuple[str, str], Any]:
    return {(link.port.value, link.target): link for link in here.chains.links(target=spec, node=node).links}


def chain(*nodes: tuple[str, str, list[str]], **configs: dict[str, Any]) -> dict[str, Any]:
    listed = [
        {"id": node_id, "type": kind, "needs": needs, "config": configs.get(node_id, {})}
        for node_id, kind, needs in nodes
    ]
    return {"name": "draft", "nodes": listed}


DRAFT = chain(
    ("docs", "data_source", []), ("writer", "ai_generator", ["docs"]), ("check", "validator", ["writer"]),
    ("trainer", "trainer", ["check"]), ("judge", "evaluator", ["trainer"]), ("publish", "deployer", ["judge"]),
    docs={"path": "docs"},
)  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_written_out_as_the_same_chain(name: str) -> None:
    expanded = here.chains.expand(target=name, parameters=PARAMETERS[name])
    meant = resolve(build_template(name, PARAMETERS[name]))
    assert resolve(expanded.spec).digest == meant.digest
    assert yaml.safe_load(expanded.text) == expanded.spec
    assert here.chains.expand(text=expanded.text).spec == expanded.spec
    assert [node.id for node in expanded.nodes] == [node.id for node in meant.nodes]
    assert all(isinstance(node["needs"], list) for node in expanded.spec["nodes"])
    by_id = {node.id: node for node in expanded.nodes}
    assert all(by_id[node.id].inputs == node.inputs and by_id[node.id].makes == node.produces for node in meant.nodes)


def test_settings_at_their_default_are_left_out() -> None:
    spec = chain(("trainer", "trainer", []), trainer={"method": "lora", "hyperparameters": {"seed": 42, "epochs": 2}})
    (node,) = here.chains.expand(target=spec).spec["nodes"]
    assert node["config"] == {"hyperparameters": {"epochs": 2.0}}


def test_a_draft_that_is_not_valid_keeps_its_nodes_and_links() -> None:
    spec = chain(
        ("docs", "data_source", []), ("trainer", "trainer", ["docs"]), ("x", "trainr", []),
        docs={"path": "pairs.jsonl", "colour": 1}, trainer={"stage": "dpo", "hyperparameters": {"epochs": -1}},
    )  # fmt: skip
    expanded = here.chains.expand(target=spec)
    assert not expanded.check.ok
    fields = {(reason["node"], reason["field"]) for reason in expanded.check.reasons}
    assert {("docs", "config.colour"), ("trainer", "config.hyperparameters.epochs")} <= fields
    docs, trainer, unknown = expanded.nodes
    assert not docs.valid
    assert docs.makes == ("sft", "preference", "labelled", "prompts", "text")
    assert trainer.inputs["preference"][0].node_id == "docs"
    assert unknown.takes == unknown.makes == ()
    assert expanded.spec["nodes"][0]["config"] == {"path": "pairs.jsonl", "colour": 1}


def test_a_wrong_call_of_a_template_has_its_reasons_and_no_nodes() -> None:
    expanded = here.chains.expand(target="qa-pipeline")
    assert [reason["field"] for reason in expanded.check.reasons] == ["parameters.documents"]
    assert expanded.nodes == ()


@pytest.mark.parametrize("call", [{"parameters": 3}, {"parameters": []}, {"parameters": [1]}, {"parameters": "x"}])
def test_parameters_that_are_no_mapping_are_a_reason(call: dict[str, Any]) -> None:
    expanded = here.chains.expand(target={"template": "qa-pipeline", **call})
    assert not expanded.check.ok
    assert expanded.nodes == ()


@pytest.mark.parametrize("text", ["nodes: [x", "[1, 2]", "3", "a: &b 1"])
def test_a_text_that_is_no_chain_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        here.chains.expand(text=text)


def test_a_caller_over_a_network_names_no_file() -> None:
    context = Context(settings(), say=lambda _: None, caller=Caller("laptop", remote=True))
    with pytest.raises(Denied, match="only be named on the machine"):
        execute_operation("chains expand", build_request("chains expand", {"target": "./chain.yaml"}), context)
    with pytest.raises(InvalidInput, match="either a target or a text"):
        execute_operation("chains expand", build_request("chains expand", {}), context)


def test_links_are_those_that_the_target_would_take() -> None:
    links = find_links(DRAFT, "docs")
    assert links["documents", "writer"].allowed
    assert links["documents", "writer"].linked
    assert links["documents", "check"].allowed, "a validator takes documents next to rows, for their grounding"
    refused = links["documents", "publish"]
    assert (refused.allowed, refused.code) == (False, "R-PORT")
    assert refused.because == "A deployer publishes an adapter or a model, and it is offered documents."
    assert find_links(DRAFT, "trainer")["adapter", "publish"].allowed
    circle = find_links(DRAFT, "judge")["report", "writer"]
    assert circle.code == "E-SPEC-GRAPH"
    assert "writer → check → trainer → judge" in circle.because


def test_a_long_circle_is_shortened() -> None:
    line = chain(*((f"n{at}", "trainer", [f"n{at - 1}"] if at else []) for at in range(40)))
    last = find_links(line, "n39")["adapter", "n0"]
    assert last.because.endswith("n0 → n1 → n2 → n3 → n4 → n5 → … 34 more → n0.")
    assert last.instead == "Remove 'n39' from the needs of 'n0', or another link of the circle."


def test_a_link_that_would_be_ambiguous_or_unused_is_refused() -> None:
    two = chain(
        ("a", "data_source", []), ("b", "data_source", []), ("trainer", "trainer", ["a"]),
        a={"sets": {"sft": {"path": "a.jsonl"}}}, b={"sets": {"sft": {"path": "b.jsonl"}, "text": {"path": "t.txt"}}},
    )  # fmt: skip
    links = find_links(two, "b")
    assert links["sft", "trainer"].because == "The nodes 'a' and 'b' make sft and are equally near."
    assert "learns from sft rows, and it is offered text" in links["text", "trainer"].because
    assert "takes nothing" in links["sft", "a"].because
    assert "takes sft of 'check'" in find_links(DRAFT, "writer")["sft", "trainer"].because


def test_an_unlinked_validator_may_lead_to_a_trainer() -> None:
    draft = chain(("check", "validator", []), ("trainer", "trainer", []))
    links = find_links(draft, "check")
    assert links["sft", "trainer"].allowed
    assert not links["labelled", "trainer"].allowed


def test_links_of_an_unknown_node_are_refused() -> None:
    with pytest.raises(NotFound, match="no node 'nobody'"):
        here.chains.links(target=DRAFT, node="nobody")


def test_what_may_be_linked_is_what_the_check_accepts() -> None:
    """Make each link that is allowed: no reason about ports or circles is new."""
    about = ("R-PORT", "R-CONTROL", "E-SPEC-GRAPH")
    before = here.chains.expand(target=DRAFT).check.reasons
    assert not [reason for reason in before if reason["code"] in about]
    for node in DRAFT["nodes"]:
        for link in here.chains.links(target=DRAFT, node=node["id"]).links:
            changed = [
                {**other, "needs": sorted({*other["needs"], node["id"]})} if other["id"] == link.target else other
                for other in DRAFT["nodes"]
            ]
            reasons = here.chains.expand(target={**DRAFT, "nodes": changed}).check.reasons
            if link.allowed:
                assert not [reason for reason in reasons if reason["code"] in about], (link, reasons)


def test_the_palette_has_every_type_with_its_schema() -> None:
    palette = here.chains.palette()
    assert [node.type for node in palette.nodes][:2] == ["data_source", "ai_generator"]
    assert all(node.text and node.settings["properties"] for node in palette.nodes)
    palette.nodes[0].settings.clear()  # which is the caller's own
    for node in here.chains.palette().nodes:
        assert node.settings == NODE_CONFIGS[node.type].model_json_schema()
    assert {port.group for port in palette.ports} == {"documents", "dataset", "adapter", "model", "report"}


def test_two_revisions_differ_in_what_was_changed() -> None:
    (Path("rows.jsonl")).write_text('{"prompt": "a", "completion": "b"}\n' * 9)
    body = chain(("data", "data_source", []), ("trainer", "trainer", ["data"]), data={"path": "rows.jsonl"})
    stored = here.chains.create(spec=body)
    body["nodes"][1]["config"] = {"hyperparameters": {"epochs": 2}}
    here.chains.update(chain=stored.id, spec=body, if_match=stored.etag)
    difference = here.chains.diff(chain=stored.id, before=1)
    assert [(change.name, change.before, change.after) for change in difference.changes] == [
        ("nodes.trainer.config.hyperparameters.epochs", None, 2)
    ]
    with pytest.raises(NotFound, match="no revision 9"):
        here.chains.diff(chain=stored.id, before=9)
