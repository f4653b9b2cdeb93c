"""The role of an adapter by its data, and that a role which is given wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.spec.graph import resolve
from trainyard.spec.load.files import read_chain
from trainyard.spec.nodes import DeployerConfig, EvaluatorConfig
from trainyard.spec.roles import name_current_folder, role_of_place
from trainyard.spec.templates import build_template


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("handbook", "handbook"),
        ("./handbook/", "handbook"),
        ("/srv/data/Bike Desk (2026).jsonl", "bike-desk-2026"),
        ("chats.v2.jsonl.zst", "chats"),
        ("shop/docs", "shop"),
        ("docs", "docs"),
        ("Handbücher", "handbuecher"),
        ("Règles d'accès.pdf", "regles-d-acces"),
        ("https://example.org/help/pages.html?lang=en#top", "pages"),
        ("s3://bucket/support-chats/", "support-chats"),
        ("acme/support-chats", "support-chats"),
        (r"C:\data\notes.txt", "notes"),
        (".", "assistant"),
        ("..", "assistant"),
        ("", "assistant"),
        ("日本", "assistant"),
        ("x" * 200, "x" * 62),
    ],
)
def test_role_is_the_name_of_the_data(path: str, role: str) -> None:
    assert role_of_place(path) == role
    DeployerConfig(role=role)


def test_word_of_a_template_is_added_within_the_length() -> None:
    assert role_of_place("chats.jsonl", word="aligned") == "chats-aligned"
    assert role_of_place("日本", word="rag", default="documents") == "documents-rag"
    long = role_of_place("x" * 200, word="aligned")
    assert long.endswith("x-aligned")
    assert DeployerConfig(role=long).role == long


FORMS = {
    "qa-pipeline": ({"documents": "handbook"}, "handbook"),
    "rag-tuning": ({"documents": "handbook"}, "handbook-rag"),
    "alignment-pipeline": ({"sft": "chats.jsonl", "preference": "pairs.jsonl"}, "chats-aligned"),
    "rlhf": ({"sft": "chats.jsonl", "preference": "pairs.jsonl"}, "chats-rlhf"),
    "grpo": ({"rows": "sums.jsonl"}, "sums-grpo"),
    "code-tuning": ({"repository": "../bikes"}, "bikes"),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_template_has_its_own_role_and_compares_with_what_is_live_there(name: str) -> None:
    parameters, role = FORMS[name]
    resolved = resolve(build_template(name, parameters), "starter")
    configs = [node.config for node in resolved.nodes]
    deployer = next(config for config in configs if isinstance(config, DeployerConfig))
    evaluator = next(config for config in configs if isinstance(config, EvaluatorConfig))
    assert (deployer.role, evaluator.role, evaluator.baseline) == (role, role, "both")
    named = build_template(name, {**parameters, "publish": {"role": "desk", "few_rows": "allow"}})
    configs = [node.config for node in resolve(named, "starter").nodes]
    assert [config.role for config in configs if isinstance(config, DeployerConfig | EvaluatorConfig)] == ["desk"] * 2
    assert [config.few_rows for config in configs if isinstance(config, DeployerConfig)] == ["allow"]


def test_no_two_templates_share_a_role_of_one_data_set() -> None:
    same = [role for _, (parameters, role) in FORMS.items() if "handbook" in parameters.values() or role]
    assert len(set(same)) == len(same)
    assert resolve(build_template("code-tuning", {}), "starter").node("deployer").config.role == "coder"


def test_the_current_folder_has_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "Bike Desk"
    assert name_current_folder({"repository": ".", "count": 5}, folder) == {"repository": "../Bike Desk", "count": 5}
    assert name_current_folder({"repository": Path("."), "documents": "a/."}, folder) == {
        "repository": "../Bike Desk",
        "documents": "a/.",
    }
    assert name_current_folder({"repository": "."}, Path("/")) == {"repository": "."}
    named = build_template("code-tuning", name_current_folder({"repository": "."}, folder))
    assert resolve(named, "starter").node("deployer").config.role == "bike-desk"


def test_a_chain_has_the_role_of_its_data() -> None:
    nodes = [
        {"type": "data_source", "config": {"path": "chats.jsonl"}}, {"type": "validator"}, {"type": "trainer"},
        {"type": "evaluator", "config": {"baseline": "live"}}, {"type": "deployer"},
    ]  # fmt: skip
    spec, reasons = read_chain({"nodes": nodes})
    assert spec is not None, reasons
    resolved = resolve(spec, "starter")
    assert (resolved.node("evaluator").config.role, resolved.node("deployer").config.role) == ("chats", "chats")
    spec, _ = read_chain({"nodes": [{"type": "data_source", "config": {"hub": "acme/desk"}}, *nodes[1:]]})
    assert spec is not None
    assert resolve(spec, "starter").node("deployer").config.role == "desk"
