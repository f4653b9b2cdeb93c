"""What each method trains of a mixture of experts: the table of docs/training.md, by real trainings of a tiny one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from tests.small_jobs import Jobs, Ran, train_here, write_data
from tests.unit.train.methods.architectures import build_base
from trainyard.app.context import Context
from trainyard.app.plan.check import check
from trainyard.errors import InvalidInput
from trainyard.operations.chains import CheckInput
from trainyard.settings import load_settings
from trainyard.spec.axes.data import Port
from trainyard.testing.tiny import TEXT, build_tokenizer
from trainyard.train.methods.targets import is_router

pytestmark = pytest.mark.filterwarnings("ignore")  # of models without their kernels
GUIDE = Path(__file__).parents[3] / "docs" / "training.md"
KINDS = ("attention", "experts", "router", "embeddings")
CASES: list[tuple[str, dict[str, Any]]] = [
    ("`lora`, `lora_plus`, `qlora`", {"type": "lora"}),
    ("`lora`, `lora_plus`, `qlora`", {"type": "lora_plus"}),
    ("`lora`, `lora_plus`, `qlora`", {"type": "qlora"}),
    ("`dora`, `oft`", {"type": "dora"}),
    ("`dora`, `oft`", {"type": "oft"}),
    ("`dora`, `oft` with `target_modules: attention-only`", {"type": "dora", "target_modules": "attention-only"}),
    ("`dora`, `oft` with `target_modules: attention-only`", {"type": "oft", "target_modules": "attention-only"}),
    ("`freeze` (of the last `blocks`)", {"type": "freeze", "blocks": 2}),
    ("`full`", {"type": "full"}),
]


def read_documented() -> dict[str, list[str]]:
    """Method -> what the guide says of each kind of weights."""
    text = GUIDE.read_text(encoding="utf-8").split("| method on a mixture |", 1)[1].split("\n\n", 1)[0]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines()[2:]]
    return {name: cells for name, *cells in rows}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    folder, tokenizer = tmp_path_factory.mktemp("mixture"), build_tokenizer([TEXT * 20])
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    base = build_base("olmoe", folder / "base", vocab_size=len(tokenizer), **ids)
    tokenizer.save_pretrained(base)
    return Jobs(base, write_data(folder / "data"), folder)


def shares(ran: Ran, base: Path) -> list[str]:
    """The share of each kind of weights that was trained: by the report of an adapter, by the files of a model."""
    coverage = ran.record["lora"].get("coverage")
    if coverage:
        assert [event["text"] for event in ran.of("adapter")] == [coverage["note"]]
        return [f"{100 * coverage['kinds'][kind][0] / coverage['kinds'][kind][1]:.0f} %" for kind in KINDS]
    before, after = load_file(base / "model.safetensors"), load_file(ran.folder / "model.safetensors")
    flags: dict[str, set[bool]] = {kind: set() for kind in KINDS}
    for name, weight in before.items():
        changed = not weight.equal(after[name])
        module = name.removesuffix(".weight")
        kind = "embeddings" if "embed" in name or "lm_head" in name else "router" if is_router(module) else ""
        kind = kind or ("experts" if "experts" in name else "attention" if "self_attn" in name else "")
        if kind:
            flags[kind].add(changed)
    return [{(True,): "100 %", (False,): "0 %"}.get(tuple(flags[kind]), "part") for kind in KINDS]


@pytest.mark.parametrize(("name", "method"), CASES, ids=lambda value: str(value)[:60])
def test_method_trains_what_the_guide_says(name: str, method: dict[str, Any], mixture: Jobs, tmp_path: Path) -> None:
    job = mixture(Port.SFT, backend="native", method=method, hyperparameters={"max_steps": 2, "epochs": None})
    expected = read_documented()[name]
    if expected[0] == "refused":
        with pytest.raises(InvalidInput, match="E-TRAINABLE: An adapter on the stacked matrices of experts cannot"):
            train_here(job, tmp_path)
    else:
        assert shares(train_here(job, tmp_path), mixture.model) == expected


@pytest.mark.parametrize(("name", "method"), CASES, ids=lambda value: str(value)[:60])
def test_check_refuses_what_the_training_would(
    name: str, method: dict[str, Any], mixture: Jobs, home: Path, tmp_path: Path
) -> None:
    rows, file = tmp_path / "rows.jsonl", tmp_path / "chain.yaml"
    rows.write_text('{"prompt": "What?", "completion": "That."}\n' * 8)
    nodes: list[dict[str, Any]] = [
        {"type": "data_source", "config": {"path": str(rows)}},
        {"type": "trainer", "config": {"base_model": str(mixture.model), "method": method}},
    ]
    file.write_text(yaml.safe_dump({"name": "mixture", "nodes": nodes}))
    context = Context(load_settings(home=home, data_roots=(tmp_path,)), say=lambda _text: None)
    (result,) = check(CheckInput(files=(file,)), context).files
    codes = {reason["code"] for reason in result.reasons}
    assert codes == ({"R-ADAPTER"} if read_documented()[name][0] == "refused" else set())
