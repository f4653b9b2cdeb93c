"""`export --to skypilot | kubeflow`: the file contains the same chain, and a TrainJob fits Kubeflow's own models."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from kubeflow_trainer_api import models

from trainyard.app.chains.launch_files import END
from trainyard.app.chains.other_tools import export_chain
from trainyard.app.context import Context
from trainyard.errors import InvalidInput, Refused
from trainyard.operations.chains import ExportConfigInput
from trainyard.settings import Settings
from trainyard.spec.chain import ChainSpec
from trainyard.spec.graph import resolve

TRAINER = {"type": "trainer", "config": {"stage": "dpo", "hyperparameters": {"epochs": 2.0}, "launch": {"processes": 2,
           "strategy": "ddp"}, "base_model": "starter"}}  # fmt: skip
HUB = {"type": "data_source", "config": {"hub": {"name": "org/pairs"}, "format": "preference"}}
LOCAL = {"type": "data_source", "config": {"path": "pairs.jsonl", "format": "preference"}}


def export(folder: Path, source: dict[str, object], to: str, **options: object) -> dict[str, object]:
    path = folder / "chain.yaml"
    path.write_text(yaml.safe_dump({"name": "desk", "max_spend": "5", "nodes": [source, TRAINER]}))
    request = ExportConfigInput(target=str(path), to=to, **options)  # type: ignore[arg-type]
    result = export_chain(request, Context(Settings(home=folder), say=lambda _: None))
    value = yaml.safe_load(result.text)
    assert isinstance(value, dict)
    return value


def read_chain(script: str) -> ChainSpec:
    text = script.partition(f"<<'{END}'\n")[2].partition(f"{END}\n")[0]
    return ChainSpec.model_validate(yaml.safe_load(text))


def test_a_skypilot_task_has_the_gpus_and_the_same_chain(tmp_path: Path) -> None:
    task = export(tmp_path, LOCAL, "skypilot", gpu="H100")
    assert task["resources"] == {"accelerators": "H100:2"}
    assert (task["name"], task["num_nodes"], task["workdir"]) == ("desk", 1, ".")
    chain = read_chain(str(task["run"]))
    written = ChainSpec.model_validate(yaml.safe_load((tmp_path / "chain.yaml").read_text()))
    assert (resolve(chain).digest, str(chain.max_spend)) == (resolve(written).digest, "5")


def test_a_train_job_fits_the_models_of_kubeflow(tmp_path: Path) -> None:
    value = export(tmp_path, HUB, "kubeflow")
    job = models.TrainerV1alpha1TrainJob.from_dict(value)
    assert job is not None
    assert job.to_dict() == value  # no field is unknown to them
    assert job.spec.runtime_ref.name == "torch-distributed"
    assert job.spec.trainer.resources_per_node.limits["nvidia.com/gpu"].to_dict() == "2"
    assert read_chain(job.spec.trainer.args[0]).name == "desk"


def test_what_a_launcher_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"E-EXPORT gpu: SkyPilot chooses a machine by the name of its GPU"):
        export(tmp_path, HUB, "skypilot")
    with pytest.raises(Refused, match=r"E-EXPORT data-source.config.path: It reads files of this machine"):
        export(tmp_path, LOCAL, "kubeflow")
    with pytest.raises(Refused, match="would have no effect"):
        export(tmp_path, HUB, "kubeflow", gpu="H100")
    with pytest.raises(InvalidInput, match="runs whole chains"):
        export(tmp_path, HUB, "kubeflow", node="trainer")
    with pytest.raises(InvalidInput, match="names no GPU"):
        export(tmp_path, LOCAL, "axolotl", gpu="H100")
