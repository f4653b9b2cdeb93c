"""The programs of `examples/` for `TrainingManager` and for providers run as they are written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from examples import cloud_training, local_training
from trainyard import AlignmentMethod, ComputeDevice, InstructDataset, PreferenceDataset, TrainingManager
from trainyard.app.context import Context
from trainyard.app.jobs.checkpoints import list_checkpoints, verify_checkpoints
from trainyard.backends.manager import Options
from trainyard.errors import NotFound, Refused
from trainyard.operations.jobs import CheckpointsInput, VerifyInput
from trainyard.settings import settings
from trainyard.testing.loopback import serving
from trainyard.testing.providers.double import KEY
from trainyard.testing.providers.openai import OpenAiDouble
from trainyard.testing.providers.together import TogetherDouble

pytestmark = pytest.mark.integration
EXAMPLES = Path(local_training.__file__).parent / "alignment"


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, value in {"WORKING_FOLDER": tmp_path, "DEFAULT_BASE_MODEL": tiny_model, "THREADS": 1}.items():
        monkeypatch.setenv(f"TRAINYARD_{name}", str(value))
    settings.cache_clear()
    for name in ("instructions", "preferences"):
        lines = (EXAMPLES / f"{name}.jsonl").read_text().splitlines(keepends=True)[:24]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    return tmp_path


def test_a_local_training_fills_its_checkpoints_and_is_found_by_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = TrainingManager(options=Options(poll_s=0.05))
    job = local_training.train_adapter(manager, InstructDataset.from_file("instructions.jsonl"))
    assert "Step 0, loss: None" in capsys.readouterr().out
    assert local_training.follow(manager, "adapter", 0.05).startswith("Done! Train loss: ")
    assert [record.id for record in manager.list_jobs("completed")] == [job]
    status = manager.status("adapter")
    assert (status.step, status.loss) == (9, manager.progress(job).loss)
    facts = manager.find("adapter").facts
    assert (facts["requested"]["device"], facts["device"]) == ("wgpu", "cpu")
    context = Context(settings(), say=lambda _text: None)
    (checkpoint,) = list_checkpoints(CheckpointsInput(job="adapter"), context).checkpoints
    assert (checkpoint.step, checkpoint.bytes > 0) == (9, True)
    (verified,) = verify_checkpoints(VerifyInput(job="adapter"), context).checkpoints
    assert (verified.name, verified.damage) == (checkpoint.name, "")
    assert [path.name for path in folder.glob("checkpoints/*/*")] == [checkpoint.name]
    artifact = manager.download("adapter", folder / "out")
    assert artifact.adapter_config is not None
    shape = {name: artifact.adapter_config[name] for name in ("r", "lora_alpha", "lora_dropout", "target_modules")}
    assert shape | {"target_modules": sorted(shape["target_modules"])} == {
        "r": 16, "lora_alpha": 32.0, "lora_dropout": 0.05, "target_modules": ["k_proj", "q_proj", "v_proj"],
    }  # fmt: skip


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="a GPU is here")
@pytest.mark.usefixtures("folder")
def test_an_alignment_needs_the_gpu_and_the_file_that_it_names() -> None:
    manager = TrainingManager()
    with pytest.raises(Refused, match=r"R-DEVICE .* This machine has no device cuda"):
        local_training.align(manager, PreferenceDataset.from_file("preferences.jsonl"))
    with pytest.raises(NotFound, match="E-DATA-NOT-FOUND"):
        PreferenceDataset.from_file("absent.jsonl")
    assert manager.list_jobs() == []


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_an_alignment_on_pairs_trains_dpo() -> None:
    manager = TrainingManager(options=Options(poll_s=0.05))
    pairs = PreferenceDataset.from_file("preferences.jsonl")
    job = local_training.align(manager, pairs, ComputeDevice.WGPU)
    assert local_training.follow(manager, job, 0.05).startswith("Done!")
    assert manager.find("aligned").stage == AlignmentMethod.DPO
    assert manager.progress("aligned").step == 6


def test_a_program_waits_for_openai_and_starts_at_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    pytest.importorskip("together")
    turns = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A node."}]
    for name in ("train.jsonl", "eval.jsonl"):
        (folder / name).write_text(json.dumps({"messages": turns, "name": name}) + "\n")
    with serving(OpenAiDouble()) as openai, serving(TogetherDouble()) as together:
        assert isinstance(openai, OpenAiDouble)
        assert isinstance(together, TogetherDouble)
        monkeypatch.setenv("OPENAI_BASE_URL", f"{openai.url}/v1")
        monkeypatch.setenv("TOGETHER_BASE_URL", f"{together.url}/v1")
        job = cloud_training.train_at_openai(KEY, "train.jsonl", "eval.jsonl", 0.01)
        assert list(openai.jobs) == [job]
        body = openai.jobs[job].body
        assert [openai.files[body[name]] for name in ("training_file", "validation_file")] == [
            (folder / name).read_bytes() for name in ("train.jsonl", "eval.jsonl")
        ]
        job = cloud_training.train_at_together(KEY, "train.jsonl")
        assert together.jobs[job].body["model"] == "meta-llama/Llama-3-8b"
