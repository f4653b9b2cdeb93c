"""`trainyard export`: a trainer as another tool's config, and back again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.app.chains.other_tools import ExportOutput, export_chain
from trainyard.app.context import Context
from trainyard.errors import Conflict, Refused
from trainyard.operations.chains import ExportConfigInput
from trainyard.settings import settings
from trainyard.spec.exporters import EXPORTERS, export_trainer
from trainyard.spec.imports.conversion import import_config
from trainyard.spec.imports.tools import TOOLS
from trainyard.spec.nodes import DataSourceConfig, TrainerNode
from trainyard.spec.training import TrainerConfig, resolve_method, resolve_trainer

FULL: dict[str, Any] = {
    "learning_rate": 3e-4, "epochs": 2.0, "batch_size": 2, "gradient_accumulation": 4, "schedule": "cosine",
    "warmup_ratio": 0.1, "optimizer": "adafactor", "weight_decay": 0.01, "max_grad_norm": 0.5, "max_length": 128,
    "precision": "bf16", "gradient_checkpointing": True, "seed": 9, "save_steps": 50,
}  # fmt: skip
LORA = {"rank": 8, "alpha": 16, "dropout": 0.05, "target_modules": ["q_proj", "v_proj"]}
BOTH: list[dict[str, Any]] = [
    {"method": {"type": "lora", **LORA}},
    {"method": {"type": "lora_plus", **LORA, "ratio": 8.0}},
    {"method": {"type": "dora", **LORA}},
    {"method": {"type": "qlora", **LORA}},
    {"method": {"type": "qlora", **LORA}, "quantization": "int8"},
    {"method": "full"},
    {"method": {"type": "lora", **LORA}, "stage": {"type": "dpo", "beta": 0.3}},
    {"method": {"type": "lora", **LORA}, "stage": {"type": "dpo", "loss": "simpo", "gamma": 0.9}},
    {"method": {"type": "lora", **LORA}, "stage": {"type": "kto", "beta": 0.3, "desirable_weight": 1.5}},
    {"method": {"type": "lora", **LORA}, "stage": "cpt"},
    {"method": {"type": "lora", **LORA}, "stage": "reward"},
]


@pytest.mark.parametrize("tool", EXPORTERS)
@pytest.mark.parametrize("trainer_settings", BOTH, ids=str)
def test_what_is_exported_and_imported_trains_the_same(tool: str, trainer_settings: dict[str, Any]) -> None:
    config = {
        "hyperparameters": FULL,
        "base_model": "acme/base",
        "engine": {"batching": "packed", "mirror": "file:out"},
    }
    trainer = resolve_trainer(TrainerConfig.model_validate({**config, **trainer_settings}), "base")
    kind = "text" if trainer_settings.get("stage") == "cpt" else "auto"
    source = DataSourceConfig.model_validate({"path": "rows/mine.jsonl", "format": kind})
    exported = export_trainer(trainer, source, tool)
    back = import_config(exported.value, "back", (tool, TOOLS[tool]), {})
    assert back.refusals == ()
    assert back.chain is not None
    node = back.chain.nodes[1]
    assert isinstance(node, TrainerNode)
    imported = resolve_trainer(node.config, "base")
    assert imported.hyperparameters == trainer.hyperparameters
    assert resolve_method(imported.method) == trainer.method
    assert imported.stage == trainer.stage
    assert (imported.quantization, imported.base_model) == (trainer.quantization, trainer.base_model)
    assert (imported.engine.batching, imported.engine.mirror) == ("packed", "file:out")


@pytest.mark.parametrize("tool", EXPORTERS)
def test_a_setting_of_the_evaluation_is_noted_where_it_is_not_the_default(tool: str) -> None:
    for eval_settings, noted in (({}, False), ({"keep_best": 3}, True)):
        trainer = resolve_trainer(TrainerConfig.model_validate({"eval": {"share": 0.1, **eval_settings}}), "base")
        notes = export_trainer(trainer, DataSourceConfig(path="rows.jsonl"), tool).notes
        assert any(note.startswith("eval.keep_best 3 has no key") for note in notes) is noted
        assert [note for note in notes if "eval.samples" in note or "eval.load_best" in note] == []


@pytest.mark.parametrize(
    ("tool", "fields", "match"),
    [
        ("axolotl", {"method": "freeze"}, "Axolotl has no method freeze"),
        ("axolotl", {"stage": {"type": "dpo", "loss": "hinge"}}, "Axolotl has no stage dpo with these settings"),
        ("llamafactory", {"stage": "grpo"}, "LLaMA-Factory has no stage grpo"),
        ("llamafactory", {"method": "qlora", "quantization": "hqq_int4"}, "LLaMA-Factory has no method qlora"),
    ],
)
def test_what_a_tool_does_not_have(tool: str, fields: dict[str, Any], match: str) -> None:
    with pytest.raises(Refused, match=match) as error:
        export_trainer(TrainerConfig.model_validate(fields), None, tool)
    assert error.value.code == "E-EXPORT"


def test_a_setting_without_a_key_is_noted() -> None:
    fields = {"engine": {"too_long": "drop"}, "hyperparameters": {"schedule": "wsd"}}
    exported = export_trainer(TrainerConfig.model_validate(fields), None, "axolotl")
    assert "engine.too_long 'drop' has no key in Axolotl." in exported.notes
    assert "hyperparameters.schedule 'wsd' has no key in Axolotl." in exported.notes
    assert any("The rows are made by the chain" in note for note in exported.notes)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chain = {"nodes": [{"type": "data_source", "config": {"path": "a.jsonl", "format": "alpaca"}}, {"type": "trainer"}]}
    (tmp_path / "chain.yaml").write_text(yaml.safe_dump(chain))
    messages: list[str] = []

    def export_yaml(**fields: Any) -> ExportOutput:
        return export_chain(ExportConfigInput(target="chain.yaml", **fields), Context(settings(), messages.append))

    printed = export_yaml(to="axolotl")
    value = yaml.safe_load(printed.text)
    assert value["datasets"] == [{"path": "a.jsonl", "type": "alpaca", "ds_type": "json"}]
    assert (value["adapter"], value["lora_r"], value["lora_target_linear"]) == ("lora", 32, True)
    written = export_yaml(to="llamafactory", out=tmp_path / "lf.yaml")
    assert yaml.safe_load((tmp_path / "lf.yaml").read_text())["dataset"] == "a"
    assert any("dataset_info.json" in note for note in (*written.notes, *messages))
    with pytest.raises(Conflict, match="E-FILE-EXISTS"):
        export_yaml(to="llamafactory", out=tmp_path / "lf.yaml")
