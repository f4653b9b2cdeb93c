"""Chains that were imported really train: five steps with a tiny base; and the tools' own examples, where they are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.imports import VARIABLE, examples_in, tally_examples
from tests.selection import choose_by_default
from tests.small_jobs import train_here
from trainyard.app.chains.other_tools import chain_name
from trainyard.backends.job import TrainingJob
from trainyard.callbacks import ignore
from trainyard.data.sources import read_source
from trainyard.errors import TrainyardError
from trainyard.settings import settings
from trainyard.spec.chain import ChainSpec
from trainyard.spec.imports.conversion import Imported, import_config
from trainyard.spec.imports.tools import find_tool
from trainyard.spec.load.files import load_value
from trainyard.spec.nodes import DataSourceConfig
from trainyard.spec.training import TrainerConfig, resolve_trainer

OWN = Path(__file__).parents[3] / "resources" / "imports"
EXAMPLES = os.environ.get(VARIABLE)
STEPS = 5
FETCHED = {
    "axolotl": "examples/llama-3/lora-1b.yml",
    "llamafactory": "examples/train_lora/qwen3_lora_sft.yaml",
    "trl": "examples/cli_configs/example_config.yaml",
    "oumi": "configs/recipes/smollm/sft/135m/train.yaml",
    "torchtune": "recipes/configs/llama3_2/1B_lora_single_device.yaml",
}
"""Tool -> an example of its repository that is trained with."""


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Rows of questions and of pairs in a data root."""
    examples = [{"instruction": f"What is {n} and one?", "output": f"It is {n + 1}."} for n in range(24)]
    pairs = [
        {"prompt": f"What is {n} and one?", "chosen": f"It is {n + 1}.", "rejected": "I do not know."}
        for n in range(24)
    ]
    files = {"sft": examples, "preference": pairs}
    for name, file_rows in files.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in file_rows))
    monkeypatch.setenv("TRAINYARD_WORKING_FOLDER", str(tmp_path))
    settings.cache_clear()
    return {name: tmp_path / f"{name}.jsonl" for name in files}


def overrides(model: Path, rows: Path) -> dict[str, Any]:
    hyper = {
        "max_steps": STEPS, "batch_size": 2, "gradient_accumulation": 1, "max_length": 64, "precision": "fp32",
        "warmup_steps": 1,
    }  # fmt: skip
    return {
        "base_model": str(model),
        "data_source": {"path": str(rows), "include": [], "exclude": []},
        "hyperparameters": hyper,
    }


def train_imported(chain: ChainSpec, model: Path, folder: Path) -> list[dict[str, Any]]:
    """Read the rows of a chain's source, and train its trainer on them; the steps."""
    source, trainer = (node.config for node in chain.nodes)
    assert isinstance(source, DataSourceConfig)
    assert isinstance(trainer, TrainerConfig)
    produced = read_source(source, folder / "data", settings=settings(), report=ignore)
    job = TrainingJob(
        config=resolve_trainer(trainer, str(model)),
        data={port: str(folder / "data" / part.folder) for port, part in produced.outputs.items()},
        base=str(model),
        base_sha256="tiny",
        threads=1,
        locks=str(folder / "locks"),
    )
    return train_here(job, folder / "run").of("progress")


def train_config(imported: Imported, model: Path, folder: Path) -> None:
    assert imported.chain is not None, [refusal.reason.line() for refusal in imported.refusals]
    steps = train_imported(imported.chain, model, folder)
    assert [step["step"] for step in steps] == [*range(1, STEPS + 1)]
    assert all(step["loss"] > 0 for step in steps)


@pytest.mark.parametrize(
    "tool", choose_by_default(["axolotl"], ["axolotl", "llamafactory", "trl", "unsloth", "oumi", "torchtune"])
)
def test_own_configs_train(tool: str, tiny_model: Path, rows: dict[str, Path], tmp_path: Path) -> None:
    path = OWN / f"{tool}.yaml"
    value = load_value(path)
    kind = "preference" if tool == "llamafactory" else "sft"
    settings = overrides(tiny_model, rows[kind]) | {"engine": {"mirror": None}}
    train_config(import_config(value, chain_name(path), find_tool(value), settings), tiny_model, tmp_path / "out")


@pytest.mark.skipif(not EXAMPLES, reason=f"{VARIABLE} names no folder with the tools' repositories")
@pytest.mark.parametrize("tool", FETCHED)
def test_fetched_configs_train(tool: str, tiny_model: Path, rows: dict[str, Path], tmp_path: Path) -> None:
    example = next(
        candidate
        for candidate in examples_in(Path(str(EXAMPLES)))
        if candidate.tool == tool and candidate.name == FETCHED[tool]
    )
    settings = overrides(tiny_model, rows["sft"]) | {"engine": {"mirror": None, "template": "auto", "trackers": []}}
    train_config(
        import_config(example.value, "example", find_tool(example.value), settings), tiny_model, tmp_path / "out"
    )


@pytest.mark.skipif(not EXAMPLES, reason=f"{VARIABLE} names no folder with the tools' repositories")
def test_every_key_of_every_fetched_config_has_an_answer() -> None:
    tallies = tally_examples(Path(str(EXAMPLES)))
    assert [line for tally in tallies.values() for line in (*tally.unknown, *tally.failed)] == []
    assert all(tally.configs for tally in tallies.values())
    whole = sum(sum(tally.keys.values()) for tally in tallies.values())
    assert sum(tally.mapped * sum(tally.keys.values()) for tally in tallies.values()) / whole >= 0.8


def test_the_folder_of_examples_is_searched(tmp_path: Path) -> None:
    (tmp_path / "acme+axolotl" / "examples").mkdir(parents=True)
    (tmp_path / "acme+axolotl" / "examples" / "a.yaml").write_text((OWN / "axolotl.yaml").read_text())
    (tmp_path / "trl" / "docs" / "source").mkdir(parents=True)
    text = "```yaml\n# sft_config.yaml\nmodel_name_or_path: x\ndataset_name: y\n```\n"
    (tmp_path / "trl" / "docs" / "source" / "clis.md").write_text(text)
    assert [example.name for example in examples_in(tmp_path)] == ["examples/a.yaml", "docs/source/clis.md#0"]
    tallies = tally_examples(tmp_path)
    assert (tallies["axolotl"].configs, tallies["axolotl"].chains, tallies["trl"].configs) == (1, 1, 1)
    with pytest.raises(TrainyardError):
        find_tool({})
