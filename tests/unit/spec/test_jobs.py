"""Bodies of jobs as other tools write them, and the canonical chains that they stand for."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.spec.chains import GOLDEN, RESOURCES, chain, node, reasons, source
from trainyard.data.paths import data_roots
from trainyard.errors import Reason
from trainyard.settings import load_settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import DataFormat, Port
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.axes.stages import PreferenceLoss, Stage
from trainyard.spec.compat.context import RunFacts
from trainyard.spec.compat.table import run_reasons
from trainyard.spec.graph import check, resolve
from trainyard.spec.job import JobSpec, chain_of_job
from trainyard.spec.load.files import load_chain, load_value, read_chain
from trainyard.spec.migrate import trainer_words
from trainyard.spec.nodes import DataSourceConfig
from trainyard.spec.training import TrainerConfig

BODIES = sorted(path for path in (RESOURCES / "bodies").glob("*.json"))


@pytest.mark.parametrize("path", BODIES, ids=lambda path: path.stem)
def test_each_body_is_accepted_unchanged_and_has_its_canonical_chain(path: Any) -> None:
    """`GOLDEN=write` writes the canonical chains anew, for a person to read."""
    assert check(load_value(path)) == []
    resolved_chain = resolve(load_chain(path))
    text = json.dumps(resolved_chain.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"
    golden = GOLDEN / "specs" / path.name
    if os.environ.get("GOLDEN") == "write":
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
    assert resolve(load_chain(path)).digest == resolved_chain.digest


def job(name: str) -> Any:
    return resolve(load_chain(RESOURCES / "bodies" / f"{name}.json"))


def test_a_lora_job_for_mlx() -> None:
    resolved_chain = job("lora-job-mlx")
    trainer = resolved_chain.node("trainer").config
    assert resolved_chain.name == "finetune-llama"
    assert (trainer.stage.type, trainer.method.type, trainer.backend) == (Stage.SFT, Method.LORA, BackendName.MLX)
    assert trainer.base_model == "mlx-community/Llama-3.2-3B-Instruct-4bit"
    assert (trainer.method.rank, trainer.method.alpha) == (16, 32)
    hyper = trainer.hyperparameters
    assert (hyper.epochs, hyper.batch_size, hyper.learning_rate) == (3, 4, 2e-4)
    assert resolved_chain.node("data-source").config.format is DataFormat.ALPACA


def test_a_dpo_job_whose_pairs_are_in_openai_format() -> None:
    resolved_chain = job("dpo-job-trl")
    trainer = resolved_chain.node("trainer").config
    assert (trainer.stage.type, trainer.method.type, trainer.backend) == (Stage.DPO, Method.LORA, BackendName.TRL)
    assert trainer.hyperparameters.learning_rate == 5e-5
    assert list(resolved_chain.node("trainer").inputs) == [Port.PREFERENCE]


def test_a_job_at_a_data_worker_is_read() -> None:
    resolved_chain = job("job-data-worker")
    (_, _, source_set) = resolved_chain.node("data-source").config.named_sets()[0]
    assert (resolved_chain.tenant, source_set.data_worker) == ("default", "http://dataworker1:8892")
    assert source_set.path == "/datasets/training/qa-pairs.jsonl"


@pytest.mark.parametrize(
    ("device_name", "device"),
    [("cuda:0", "cuda"), ("Cuda(0)", "cuda"), ("wgpu", "auto"), ("Metal", "mps"), ("MPS", "mps"), ("cpu", "cpu")],
)
def test_devices_in_the_words_of_other_tools_are_read(device_name: str, device: str) -> None:
    spec = JobSpec.model_validate({"dataset": {"path": "rows.jsonl"}, "device": device_name})
    assert spec.device.value == device
    assert resolve(chain_of_job(spec)).node("trainer").config.device.value == device


def test_a_gpu_is_not_picked_by_its_number() -> None:
    (reason,) = check(chain(source(), node("trainer", device="cuda:1")))
    assert reason.line() == (
        "E-SPEC-VALUE trainer.config.device: The device cuda:1 names a GPU, and a training takes the first one that is "
        "free. Instead: Use device cuda; a worker started with CUDA_VISIBLE_DEVICES=1 uses only that GPU."
    )


def leads_out(path: str) -> Reason:
    return Reason("R-PATH-ROOT", None, "", f"The path {path!r} leads out.", "Add its folder.")


def test_a_chain_for_another_machine_is_refused_only_at_run() -> None:
    facts = RunFacts(endpoints=frozenset(), path_problem=leads_out, backends={BackendName.TRL: None})
    assert [reason.row for reason in run_reasons(job("chain-three-nodes"), facts)] == [
        "path-root", "engine-unresolved", "backend-missing",
    ]  # fmt: skip


def test_a_local_job_names_its_schedule_and_its_folder_of_checkpoints_in_its_own_words() -> None:
    resolved_chain = job("local-lora-job")
    trainer = resolved_chain.node("trainer").config
    assert (trainer.method.type, trainer.method.rank, trainer.method.target_modules) == (
        "lora",
        16,
        ("q_proj", "k_proj", "v_proj"),
    )
    assert trainer.hyperparameters.schedule is Schedule.COSINE
    assert trainer.engine.mirror == "file:checkpoints/"
    paths: list[str] = []
    assert run_reasons(resolved_chain, RunFacts(path_problem=paths.append)) == []
    assert paths == ["/data/train.jsonl", "checkpoints/"]
    aligned = job("local-dpo-job").node("trainer").config
    assert (aligned.stage.type, aligned.method.type) == (Stage.DPO, Method.LORA)
    assert aligned.stage.loss is PreferenceLoss.SIGMOID


@pytest.mark.parametrize(
    ("scheduler", "schedule"),
    [("OneCycle", "one_cycle"), ("one_cycle", "one_cycle"), ("Linear", "linear"), ("Constant", "constant")],
)
def test_a_scheduler_in_the_words_of_an_enumeration(scheduler: str, schedule: str) -> None:
    assert trainer_words({"hyperparams": {"lr_scheduler": scheduler}}) == {"hyperparameters": {"schedule": schedule}}
    assert (
        TrainerConfig.model_validate({"hyperparameters": {"lr_scheduler": scheduler}}).hyperparameters.schedule
        == schedule
    )


@pytest.mark.parametrize(("alignment", "loss"), [("Dpo", "sigmoid"), ("ORPO", "orpo")])
def test_an_alignment_is_a_stage_and_a_loss(alignment: str, loss: str) -> None:
    body = {"dataset": {"path": "a.jsonl"}, "adapter": "QLoRA", "alignment": alignment, "preference": {"beta": 0.3}}
    spec = JobSpec.model_validate(body)
    assert (spec.stage.type, spec.method.type) == (Stage.DPO, Method.QLORA)
    assert (spec.stage.loss, spec.stage.beta) == (loss, 0.3)


def test_the_tenant_of_a_data_set_is_the_tenant_of_its_job() -> None:
    """Whose folder, `tenants/guests`, then is one of those that the data may be in."""
    body = {"dataset": {"path": "a.jsonl", "tenant_id": "guests", "max_rows": 5}}
    job_chain = chain_of_job(JobSpec.model_validate(body))
    assert job_chain.tenant == "guests"
    assert job_chain.nodes[0].config == DataSourceConfig(path="a.jsonl", max_rows=5)
    assert JobSpec.model_validate({**body, "tenant": "guests"}).tenant == "guests"
    assert load_settings().home / "tenants" / "guests" in data_roots(load_settings(), job_chain.tenant)
    with pytest.raises(ValidationError, match="tenant_id"):
        JobSpec.model_validate({**body, "tenant": "others"})


def test_the_tenant_of_rows_on_a_data_worker_is_that_of_the_chain() -> None:
    config = {"path": "/datasets/a/b.jsonl", "data_worker": "http://w:8892", "tenant_id": "guests"}
    nodes = [{"type": "data_source", "config": config}, {"type": "trainer"}]
    assert check({"nodes": nodes}) == []
    spec, _ = read_chain({"nodes": nodes})
    assert spec is not None
    assert resolve(spec).tenant == "guests"
    assert [reason.code for reason in check({"nodes": nodes, "tenant": "others"})] == ["E-SPEC-KEY"]


def test_a_data_source_has_no_tenant_of_its_own() -> None:
    (reason,) = reasons(source(tenant_id="guests"))
    assert (reason.code, reason.instead) == ("E-SPEC-KEY", "Write `tenant` at the top of the chain or job.")


def test_a_job_is_its_data_and_its_trainer() -> None:
    body = {
        "name": "one", "tenant": "guests", "dataset": {"path": "rows.jsonl", "format": "alpaca"},
        "method": {"type": "dora", "rank": 4}, "base_model": "org/base", "hyperparameters": {"epochs": 1},
        "device": "cpu", "budget_s": 60,
    }  # fmt: skip
    job_chain = chain_of_job(JobSpec.model_validate(body))
    assert (job_chain.name, job_chain.tenant) == ("one", "guests")
    expected = node(
        "trainer", method={"type": "dora", "rank": 4}, base_model="org/base", hyperparameters={"epochs": 1},
        device="cpu", budget_s=60,
    )  # fmt: skip
    same = chain(source(format="alpaca"), expected, name="one", tenant="guests")
    assert resolve(job_chain).digest == resolve(same).digest


def test_a_job_needs_only_a_data_set() -> None:
    resolved_chain = resolve(chain_of_job(JobSpec.model_validate({"dataset": {"path": "rows.jsonl"}})))
    assert resolved_chain.name == "training-job"
    assert resolved_chain.node("trainer").config.base_model == "starter"
    assert resolved_chain.node("trainer").config.backend is BackendName.NATIVE


def test_a_job_has_the_settings_of_its_engine() -> None:
    body = {
        "dataset": {"path": "rows.jsonl"},
        "method": {"type": "freeze", "blocks": 4},
        "engine": {"too_long": "drop"},
    }
    config = resolve(chain_of_job(JobSpec.model_validate(body))).node("trainer").config
    assert (config.method.blocks, config.engine.too_long, config.engine.batching) == (4, "drop", "auto")


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ({}, "dataset"),
        ({"dataset": {}}, "path"),
        ({"dataset": {"path": "a"}, "hyperparam": {}}, "hyperparam"),
        ({"dataset": {"path": "a"}, "engine": {"freeze_block": 4}}, "freeze_block"),
        ({"dataset": {"path": "a"}, "name": "Not A Name"}, "name"),
        ({"dataset": {"path": "a", "format": "csv"}}, "format"),
        ({"dataset": {"path": "a"}, "method": "dpo", "stage": "sft"}, "method"),
        ({"dataset": {"path": "a"}, "alignment": "dpo", "stage": "sft"}, "alignment"),
        ({"dataset": {"path": "a"}, "adapter": "lora", "method": "dora"}, "adapter"),
        ({"dataset": {"path": "a"}, "adapter": "stack"}, "adapter"),
        (
            {"dataset": {"path": "a"}, "hyperparameters": {"schedule": "linear", "lr_scheduler": "cosine"}},
            "lr_scheduler",
        ),
        ({"dataset": {"path": "a"}, "checkpoint_dir": "a", "engine": {"mirror": "file:b"}}, "checkpoint_dir"),
        ({"dataset": {"path": "a", "max_rows": 0}}, "max_rows"),
        ([], "dictionary"),
    ],
)
def test_a_wrong_body_is_refused(body: Any, match: str) -> None:
    with pytest.raises(ValidationError, match=match):
        JobSpec.model_validate(body)


@pytest.mark.parametrize(
    ("method_name", "stage", "method"),
    [
        ("sft", "sft", "lora"), ("dpo", "dpo", "lora"), ("ppo", "ppo", "lora"), ("rlhf", "ppo", "lora"),
        ("RLHF", "ppo", "lora"), ("kto", "kto", "lora"), ("reward", "reward", "lora"), ("cpt", "cpt", "lora"),
        ("grpo", "grpo", "lora"),
    ],
)  # fmt: skip
def test_an_objective_that_is_called_a_method(method_name: str, stage: str, method: str) -> None:
    assert trainer_words({"method": method_name}) == {"method": method, "stage": stage}
    config = TrainerConfig.model_validate({"method": method_name})
    assert (config.stage.type, config.method.type) == (Stage(stage), Method(method))


def test_words_that_need_no_change_stay() -> None:
    assert trainer_words({"method": "dora", "stage": "dpo"}) == {"method": "dora", "stage": "dpo"}
    assert trainer_words({"method": "dpo", "stage": "dpo"}) == {"method": "lora", "stage": "dpo"}
    assert trainer_words({"method": "dpo", "stage": "sft"}) == {"method": "dpo", "stage": "sft"}
    assert trainer_words({"method": 3}) == {"method": 3}
    assert trainer_words({}) == {}
    assert trainer_words(None) is None
    config = TrainerConfig()
    assert TrainerConfig.model_validate(config) == config


def test_two_spellings_of_one_key_are_not_merged() -> None:
    assert trainer_words({"hyperparams": {"epochs": 1}}) == {"hyperparameters": {"epochs": 1}}
    both = {"hyperparams": {"epochs": 1}, "hyperparameters": {"epochs": 2}}
    assert trainer_words(both) == both
    with pytest.raises(ValidationError, match="hyperparams"):
        TrainerConfig.model_validate(both)


def test_a_trainer_in_a_chain_is_read_in_the_same_words() -> None:
    resolved_chain = resolve(chain(source(), node("trainer", method="dpo", hyperparams={"epochs": 1})))
    assert resolved_chain.node("trainer").config.stage.type is Stage.DPO


def test_rewards_of_a_job_reach_its_trainer() -> None:
    rollouts = {"rewards": [{"type": "regex", "pattern": "yes"}, {"type": "length", "max_tokens": 9}]}
    job = JobSpec.model_validate({"dataset": {"path": "a.jsonl"}, "method": "grpo", "rollouts": rollouts})
    trainer = chain_of_job(job).nodes[-1].config
    assert isinstance(trainer, TrainerConfig)
    assert [reward.type for reward in trainer.stage.rewards] == ["regex", "length"]
    assert (trainer.stage.num_generations, trainer.stage.loss, trainer.stage.beta) == (8, "dapo", 0.0)


@pytest.mark.parametrize("name", ["openai", "together", "fireworks", "bedrock", "vertex", "hf_jobs"])
def test_a_cloud_provider_trains_a_base_of_its_own(name: str) -> None:
    in_chain = check(chain(source(), node("trainer", backend=name)))
    in_job = check({"backend": name, "dataset": {"path": "a.jsonl"}})
    for refusals in (in_chain, in_job):
        assert [(reason.code, reason.field) for reason in refusals] == [("R-BACKEND-SETTING", "config.base_model")]
        assert "none is named" in refusals[0].because
    assert check({"provider": name, "model": "m", "training_file": "a.jsonl", "suffix": "mine"}) == []


@pytest.mark.parametrize("name", ["anyscale", "mistral", "cohere"])
def test_a_provider_that_trains_no_more_is_refused_with_another(name: str) -> None:
    in_chain = check(chain(source(), node("trainer", backend=name)))
    in_job = check({"backend": name, "dataset": {"path": "a.jsonl"}})
    in_body = check({"provider": name, "model": "m", "training_file": "a.jsonl", "suffix": "mine"})
    for refusals, field in ((in_chain, "config.backend"), (in_job, "backend"), (in_body, "provider")):
        assert [(reason.code, reason.field) for reason in refusals] == [("R-PROVIDER", field)]
        assert refusals[0].because.startswith(f"The provider {name} trains no more")
        assert "together" in refusals[0].instead


def test_a_word_that_no_provider_has_is_still_a_misspelt_backend() -> None:
    (reason,) = check(chain(source(), node("trainer", backend="opnai")))
    assert reason.code == "E-SPEC-VALUE"
