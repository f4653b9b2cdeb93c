"""The manual says what the code does: every example is a chain that is accepted, every line shown is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.spec.chains import RESOURCES
from trainyard.spec.axes.devices import Device
from trainyard.spec.estimate.memory import GIB, estimate_memory
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.graph import check
from trainyard.spec.load.files import load_value
from trainyard.spec.nodes import NODE_MODELS
from trainyard.spec.templates import TEMPLATES
from trainyard.spec.training import TrainerConfig, resolve_trainer

DOCS = Path(__file__).parents[3] / "docs"
CHAINS = (DOCS / "chains.md").read_text(encoding="utf-8")


GUIDES = sorted((DOCS / "guides").glob("*.md"))


def examples(page: str = CHAINS) -> list[str]:
    """The YAML blocks of a page (docs/chains.md) that are whole chains, templates or jobs."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [text for text in blocks if re.search(r"^(nodes|template|dataset):", text, re.MULTILINE)]


@pytest.mark.parametrize("text", examples(), ids=lambda text: text.splitlines()[0])
def test_every_example_is_accepted(text: str) -> None:
    assert check(load_value(text)) == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_every_chain_of_a_guide_is_accepted(page: Path) -> None:
    chains = examples(page.read_text(encoding="utf-8"))
    assert [reason.line for text in chains for reason in check(load_value(text))] == []


def list_nodes(text: str) -> Any:
    """The nodes that a block shows: those of a chain, a list of nodes, or one node; nothing for other YAML."""
    value = yaml.safe_load(text)
    nodes = value.get("nodes", [value]) if isinstance(value, dict) else value
    return nodes if all("type" in node for node in nodes) else []


@pytest.mark.parametrize("page", [*sorted(DOCS.glob("*.md")), *GUIDES], ids=lambda page: page.stem)
def test_every_node_in_the_manual_has_fields_that_exist(page: Path) -> None:
    """A node out of its chain may lack what it needs; its own fields and values are those of its type."""
    for text in re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for node in list_nodes(re.sub(r"(?m)^config: .*\n", "", text) or "[]"):
            if node["type"] in NODE_MODELS:
                NODE_MODELS[node["type"]].model_validate(node)


def test_the_manual_has_examples() -> None:
    assert len(examples()) >= 5


def test_the_manual_names_every_template_with_its_core() -> None:
    for name, template in TEMPLATES.items():
        (line,) = re.findall(rf"^\| `{name}` \| ([^|]+)\|", CHAINS, re.MULTILINE)
        assert re.sub(r" \(\w+\)", "", line).strip().split(", ") == list(template.core)


def test_the_lines_in_the_manual_are_those_that_are_printed() -> None:
    refusal_texts = (RESOURCES.parent / "golden" / "refusals.txt").read_text(encoding="utf-8")
    printed = {line.partition(": ")[2] for line in refusal_texts.splitlines()}
    printed_lines = re.findall(r"^(?:chain\.yaml: )?([ER]-[A-Z0-9-]+ .*)$", CHAINS, re.MULTILINE)
    assert len(printed_lines) >= 2
    assert set(printed_lines) <= printed


QWEN3_8B = ModelShape(
    hidden=4096, layers=36, feed_forward=12288, vocabulary=151_936, heads=32, key_value_heads=8, head_size=128,
    head_norms=True,
)  # fmt: skip


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_memory_of_the_guide_is_what_a_plan_counts_on_a_card(checkpointing: bool) -> None:
    guide = (DOCS / "guides" / "qwen3-24gb.md").read_text(encoding="utf-8")
    row = "with gradient checkpointing" if checkpointing else "as it is"
    (sizes,) = re.findall(rf"^\| {row} \| ([\d.]+) GiB \| ([\d.]+) GiB \|$", guide, re.MULTILINE)
    for method, gib in zip(("lora", "qlora"), sizes, strict=True):
        hyper = {"max_length": 2048, "batch_size": 1, "gradient_checkpointing": checkpointing}
        settings = {"method": {"type": method, "rank": 16}, "hyperparameters": hyper}
        config = resolve_trainer(TrainerConfig.model_validate(settings), "starter")
        assert f"{estimate_memory(QWEN3_8B, config, Device.CUDA).total / GIB:.1f}" == gib
