"""The flat loop of `examples/` is what the engine does: the same losses and weights on the same plan, to the bit."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from examples import sft_loop
from tests.small_jobs import Jobs, conversation, train_here
from trainyard.data.rows import ROWS_FILE, SftRow, read_rows
from trainyard.spec.axes.data import Port

PLAN: dict[str, Any] = {"backend": "native", "engine": {"batching": "padded"}}
CASES: dict[str, dict[str, Any]] = {
    "full": {"method": "full", "hyperparameters": {"learning_rate": 1e-3, "weight_decay": 0.1}},
    "lora": {"method": {"type": "lora", "rank": 8, "dropout": 0.1}},
    "lora_plus": {"method": "lora_plus", "hyperparameters": {"learning_rate": 1e-3}},
}


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks transformers for it
@pytest.mark.parametrize("case", CASES)
def test_flat_loop_gives_the_losses_and_weights_of_the_engine(case: str, jobs: Jobs, tmp_path: Path) -> None:
    """Also over an accumulation of three whose last step is short, a warm-up, dropout and two epochs."""
    fields = CASES[case]
    hyper = {"batch_size": 2, "gradient_accumulation": 3, "warmup_ratio": 0.2, "max_grad_norm": 0.5}
    job = jobs(**{**PLAN, **fields, "hyperparameters": {**hyper, **fields.get("hyperparameters", {})}})
    engine = train_here(job, tmp_path / "engine")
    rows = list(read_rows(Path(job.data[Port.SFT]) / ROWS_FILE, Port.SFT))
    policy, losses = sft_loop.train(job.config, job.base, [row for row in rows if isinstance(row, SftRow)])
    assert losses == [loss for _, loss, _ in engine.record["losses"]]
    assert losses[-1] < losses[0]
    sft_loop.save(policy, sft_loop.PolicyRequest(job.config, job.base, "causal", "cpu"), tmp_path / "flat")
    (flat_file,), (engine_file,) = (list(folder.glob("*.safetensors")) for folder in (tmp_path / "flat", engine.folder))
    flat_weights, engine_weights = load_file(flat_file), load_file(engine_file)
    assert flat_weights.keys() == engine_weights.keys()
    assert all(torch.equal(flat_weights[name], engine_weights[name]) for name in engine_weights)


def test_flat_loop_is_short_and_does_without_the_engine() -> None:
    text = Path(sft_loop.__file__).read_text()
    assert len(text.splitlines()) <= 150
    imported = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    assert not imported & {f"trainyard.train.{name}" for name in ("session", "loop", "batching", "head", "optimizers")}


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")
def test_flat_loop_trains_from_a_file(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [conversation("What is a node?", "It reads."), conversation("What is a chain?", "A list of nodes.")]
    lines = [json.dumps({"messages": [{"role": m.role, "content": m.content} for m in row.messages]}) for row in rows]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    assert [row.messages for row in sft_loop.read(tmp_path / "rows.jsonl")] == [row.messages for row in rows]
    sft_loop.main(str(tiny_model), str(tmp_path / "rows.jsonl"), str(tmp_path / "out"))
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()
    assert capsys.readouterr().out.count("loss") == 3
