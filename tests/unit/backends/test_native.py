"""The native backend on a tiny real model: every stage and method trains, is counted, recorded and continues."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.small_jobs import Jobs, Ran, train_as_child, train_here, write_broken_model
from trainyard.backends.base import BACKENDS, load_program, probe
from trainyard.backends.job import TeacherServer, locate_mirror
from trainyard.compute.child import Stopped
from trainyard.errors import Corrupt, InvalidInput, TrainyardError
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import Port
from trainyard.testing.vllm_server import vllm_server

NATIVE: dict[str, Any] = {"backend": "native"}
STAGES: dict[str, tuple[Port, dict[str, Any]]] = {
    "cpt": (Port.TEXT, {"stage": "cpt"}),
    "sft": (Port.SFT, {"stage": "sft"}),
    "reward": (Port.PREFERENCE, {"stage": "reward"}),
    "dpo": (Port.PREFERENCE, {"stage": "dpo"}),
    "kto": (Port.LABELLED, {"stage": "kto"}),
    "distill": (Port.SFT, {"stage": {"type": "distill", "teacher": "larger", "max_completion_length": 8}}),
}


@pytest.fixture(scope="module")
def native_run(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One SFT LoRA run in a supervised child, as a chain runs it."""
    job = jobs(**NATIVE, hyperparameters={"save_steps": 5, "epochs": 2})
    return train_as_child(job, tmp_path_factory.mktemp("native"))


def test_a_relative_mirror_is_below_the_working_folder(jobs: Jobs, tmp_path: Path) -> None:
    """What `checkpoint_dir: checkpoints/` of a posted body becomes."""
    job = jobs(**NATIVE, hyperparameters={"max_steps": 4, "save_steps": 2}, engine={"mirror": "file:check%20points/"})
    job = job.model_copy(update={"config": locate_mirror(job.config, tmp_path)})
    train_here(job, tmp_path / "run")
    (copied,) = (tmp_path / "check points").iterdir()
    assert copied.name == job.work_name
    assert any(path.suffix == ".safetensors" for path in copied.rglob("*"))
    for address in ("file:///backup", "file://localhost/backup", "gs://bucket/one", None):
        mirrored_config = job.config.model_copy(
            update={"engine": job.config.engine.model_copy(update={"mirror": address})}
        )
        assert locate_mirror(mirrored_config, tmp_path) == mirrored_config


def test_native_is_built_in_and_the_default(jobs: Jobs) -> None:
    assert BackendName.NATIVE in BACKENDS
    assert probe(BackendName.NATIVE).available
    assert load_program(BackendName.NATIVE).reasons(jobs(**NATIVE)) == []


def test_ledger_balances_and_the_record_says_what_was_done(native_run: Ran, tiny_model: Path) -> None:
    record = native_run.record
    tokens, rows = record["data"]["tokens"], record["data"]["rows"]
    assert tokens["read"] == tokens["trained"] + tokens["masked"] + tokens["truncated"] + tokens["dropped"]
    assert rows == {"read": 30, "trained": 28, "truncated": 3, "dropped_truncated": 2}
    assert record["tokens"] == {"trained": 2 * tokens["trained"], "masked": 2 * tokens["masked"]}  # two epochs
    assert (record["rows"], record["counted"]) == ({"trained": 56}, "batches")
    assert (record["stage"], record["method"], record["backend"]) == ("sft", "lora", "native")
    assert (record["threads"], record["device"], record["precision"]) == (1, "cpu", "fp32")
    assert record["steps"] == len(record["losses"]) == 14
    assert record["batching"] == "buckets"
    assert 0 <= record["padding_ratio"] < 0.3
    assert record["lora"]["rank"] == 32
    assert record["final_loss"] < record["first_loss"] - 0.15


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks transformers for it
def test_adapter_loads_through_plain_peft_and_changes_what_its_base_says(native_run: Ran, tiny_model: Path) -> None:
    ids_BT = torch.tensor([[40, 41, 42, 43, 44, 45]])
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.no_grad():
        before = base(ids_BT).logits
        after = PeftModel.from_pretrained(base, str(native_run.folder))(ids_BT).logits
    assert not torch.equal(before, after)


def test_progress_is_told_step_by_step(native_run: Ran) -> None:
    steps = native_run.of("progress")
    assert [event["step"] for event in steps] == list(range(1, 15))
    metric_names = {
        "loss",
        "learning_rate",
        "grad_norm",
        "tokens",
        "tokens_per_second",
        "padding_ratio",
        "skipped",
        "epoch",
    }
    assert metric_names <= steps[0].keys()
    assert steps[-1]["epoch"] == pytest.approx(2.0)
    assert [event["step"] for event in native_run.of("checkpoint") if event.get("tier", "disk") == "disk"] == [5, 10]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("method", ["lora", "full"])
def test_each_stage_trains(stage: str, method: str, jobs: Jobs, tmp_path: Path) -> None:
    port, config = STAGES[stage]
    hyper = {"epochs": 3, "learning_rate": 3e-3 if method == "lora" else 1e-3}
    ran = train_here(jobs(port, **NATIVE, **config, method=method, hyperparameters=hyper), tmp_path)
    assert ran.record["final_loss"] < ran.record["first_loss"]
    assert ran.folder.name == ("adapter" if method == "lora" else "model")


@pytest.mark.filterwarnings("ignore")  # bitsandbytes on a CPU says that it is slow
@pytest.mark.parametrize("method", ["qlora", "dora", "lora_plus", "oft", "freeze"])
def test_each_method_trains(method: str, jobs: Jobs, tmp_path: Path) -> None:
    small = {"freeze": {"blocks": 1}, "oft": {"block_size": 16}}.get(method, {})
    hyper = {"epochs": 2, "learning_rate": 3e-3}
    ran = train_here(jobs(**NATIVE, method={"type": method, **small}, hyperparameters=hyper), tmp_path)
    assert ran.record["final_loss"] < ran.record["first_loss"]


def test_dpo_continues_the_adapter_against_its_frozen_start(native_run: Ran, jobs: Jobs, tmp_path: Path) -> None:
    before = load_file(native_run.folder / "adapter_model.safetensors")
    hyper = {"learning_rate": 2e-3, "epochs": 4}
    ran = train_here(jobs(Port.PREFERENCE, **NATIVE, adapter=native_run.folder, hyperparameters=hyper), tmp_path)
    assert ran.record["first_loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert ran.record["final_loss"] < 0.6
    after = load_file(ran.folder / "adapter_model.safetensors")
    assert after.keys() == before.keys()
    assert any(not torch.equal(after[name], before[name]) for name in before)
    assert [entry["stage"] for entry in ran.record["lineage"]] == [None, "sft"]


def test_stopped_run_goes_on_to_the_same_bits(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs(
        **NATIVE, method={"type": "lora", "dropout": 0.1}, hyperparameters={"gradient_accumulation": 2, "epochs": 3}
    )
    whole = train_here(job, tmp_path / "whole")
    with pytest.raises(Stopped, match="a checkpoint is saved"):
        train_here(job, tmp_path / "parts", stop_after=3)
    parts = train_here(job, tmp_path / "parts")
    assert parts.of("begin")[-1]["restarted_from"] == {"step": 3}
    assert parts.record["losses"] == whole.record["losses"]
    parts_weights, whole_weights = (load_file(ran.folder / "adapter_model.safetensors") for ran in (parts, whole))
    assert all(torch.equal(parts_weights[name], whole_weights[name]) for name in whole_weights)


def test_checkpoint_of_another_config_is_refused(jobs: Jobs, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train_here(jobs(**NATIVE), tmp_path, stop_after=2)
    with pytest.raises(Corrupt, match="E-CHECKPOINT-MISMATCH: The checkpoint was made with another config"):
        train_here(jobs(**NATIVE, hyperparameters={"learning_rate": 5e-3}), tmp_path)


def test_rows_that_are_too_long_are_cut_dropped_or_refused(jobs: Jobs, tmp_path: Path) -> None:
    dropped = train_here(jobs(**NATIVE, engine={"too_long": "drop"}), tmp_path / "drop")
    assert dropped.record["data"]["tokens"]["truncated"] == 0
    with pytest.raises(InvalidInput, match="E-DATA-TOO-LONG"):
        train_here(jobs(**NATIVE, engine={"too_long": "refuse"}), tmp_path / "refuse")


def test_non_finite_loss_fails_the_run_and_leaves_no_result(jobs: Jobs, tiny_model: Path, tmp_path: Path) -> None:
    job = jobs(**NATIVE, base=write_broken_model(tiny_model, tmp_path / "broken"))
    with pytest.raises(TrainyardError, match=r"E-NON-FINITE: The loss of step 1 is nan\. .*learning_rate"):
        train_here(job, tmp_path / "run")
    assert not (tmp_path / "run" / "result").exists()


def test_control_learns_the_format_alone(jobs: Jobs, tmp_path: Path) -> None:
    ran = train_here(jobs(**NATIVE, control="shuffled_answers"), tmp_path)
    assert ran.record["control"] == "shuffled_answers"


def test_packed_rows_give_the_loss_of_padded_ones(jobs: Jobs, tmp_path: Path) -> None:
    packed, padded = (
        train_here(jobs(**NATIVE, engine={"batching": mode}), tmp_path / mode).record["losses"]
        for mode in ("packed", "padded")
    )
    assert [loss for _, loss, _ in packed] == pytest.approx([loss for _, loss, _ in padded], abs=2e-3)


def test_the_chosen_template_is_trained_with_and_saved(jobs: Jobs, tmp_path: Path) -> None:
    plain = train_here(jobs(**NATIVE), tmp_path / "own")
    templated = train_here(jobs(**NATIVE, engine={"template": "role_colon"}), tmp_path / "chosen")
    assert templated.record["renderer"] == "role_colon"
    assert templated.record["chat_template_sha256"] != plain.record["chat_template_sha256"]
    assert "assistant:" in AutoTokenizer.from_pretrained(templated.folder / "tokenizer").chat_template


def test_the_lineage_of_three_stages_is_listed_oldest_first(jobs: Jobs, tmp_path: Path) -> None:
    """cpt (full) -> sft (lora) -> dpo (lora)."""
    cpt = train_here(jobs(Port.TEXT, **NATIVE, stage="cpt", method="full"), tmp_path / "cpt")
    sft = train_here(jobs(**NATIVE, base=cpt.folder), tmp_path / "sft")
    dpo = train_here(jobs(Port.PREFERENCE, **NATIVE, base=cpt.folder, adapter=sft.folder), tmp_path / "dpo")
    assert [(entry["stage"], entry["method"]) for entry in dpo.record["lineage"]] == [
        (None, None), ("cpt", "full"), ("sft", "lora"),
    ]  # fmt: skip
    assert dpo.record["first_loss"] == pytest.approx(math.log(2), abs=1e-5)


def test_autotune_prints_what_it_takes_and_changes_nothing_that_fits(jobs: Jobs, tmp_path: Path) -> None:
    plain = train_here(jobs(**NATIVE), tmp_path / "plain")
    tuned = train_here(jobs(**NATIVE, engine={"autotune": True}), tmp_path / "tuned")
    texts = [event["text"] for event in tuned.of("autotune")]
    assert texts[0].startswith("lora on cpu:")
    assert not [text for text in texts if text.startswith("changed")]
    assert tuned.record["losses"] == plain.record["losses"]


def test_weights_that_a_technique_adds_are_said(jobs: Jobs, tmp_path: Path) -> None:
    latent = {"type": "sft", "latent": {"type": "pause", "count": 2}}
    ran = train_here(jobs(**NATIVE, stage=latent, hyperparameters={"max_steps": 1}), tmp_path)
    num_added = ran.record["lora"]["latent_parameters"]
    (event,) = ran.of("latent")
    assert num_added > 0
    assert event["text"] == f"pause adds {num_added:,} weights of its own, which are trained with method lora"


def test_a_teacher_with_the_weights_of_the_student_is_refused(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs(**NATIVE, stage={"type": "distill", "teacher": "copy"})
    copied = job.model_copy(update={"teacher": job.base, "teacher_sha256": job.base_sha256})
    assert copied.digest != job.digest
    with pytest.raises(InvalidInput, match=r"E-MODEL-INVALID: The teacher copy has the same weights"):
        train_here(copied, tmp_path)


def test_a_served_teacher_trains_as_the_one_that_is_loaded(jobs: Jobs, tmp_path: Path) -> None:
    """Asked for the whole vocabulary, it gives the same losses."""
    hyper = {"max_steps": 3}
    distill_settings = {"type": "distill", "lmbda": 0.0, "beta": 0.5}
    loaded = train_here(
        jobs(**NATIVE, stage={**distill_settings, "teacher": "larger"}, hyperparameters=hyper), tmp_path / "loaded"
    )
    teacher = AutoModelForCausalLM.from_pretrained(jobs.larger_model(), dtype=torch.float32).eval()

    def logprobs(ids: list[int]) -> list[list[float]]:
        with torch.no_grad():
            rows: list[list[float]] = teacher(torch.tensor([ids])).logits[0].log_softmax(-1).tolist()
        return rows

    vocabulary = int(teacher.config.vocab_size)
    with vllm_server("larger") as server:
        server.logprobs, server.max_logprobs = logprobs, vocabulary
        stage = {**distill_settings, "endpoint": "house", "top_k": vocabulary}
        job = jobs(**NATIVE, stage=stage, hyperparameters=hyper)
        teacher_server = TeacherServer(base_url=f"{server.url}/v1", model="larger", api_key_env="HOUSE_KEY")
        served = train_here(job.model_copy(update={"teacher": teacher_server}), tmp_path / "served")
    losses = [[loss for _, loss, *_ in ran.record["losses"]] for ran in (loaded, served)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    (event,) = served.of("teacher")
    assert event["text"] == f"the teacher larger is asked at {server.url}/v1"
