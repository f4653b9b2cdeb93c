"""Every example is what the product accepts, and the README's chain is one of them in spirit: six nodes in a line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainyard.spec.graph import check, resolve
from trainyard.spec.load.files import load_chain, load_value
from trainyard.spec.nodes import DataSourceConfig

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_accepted(path: Path) -> None:
    assert check(load_value(path)) == []
    assert resolve(load_chain(path), "starter").order


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_file_that_an_example_reads_is_in_the_repository(path: Path) -> None:
    """An example is to be run as it is, from a checkout or from the copy in a wheel."""
    sources = [node.config for node in load_chain(path).nodes if isinstance(node.config, DataSourceConfig)]
    named = [data_set.path for config in sources for data_set in (config.sets.values() or [config.single()])]
    assert named
    assert [
        name for name in named if not (REPOSITORY / str(name)).exists() or not str(name).startswith("examples/")
    ] == []


def test_the_readme_shows_a_chain_that_is_accepted() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    (text,) = re.findall(r"^```yaml\n# chain\.yaml\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    chain = load_chain(text)
    assert [node.type for node in chain.nodes] == [
        "data_source", "ai_generator", "validator", "trainer", "evaluator", "deployer",
    ]  # fmt: skip
