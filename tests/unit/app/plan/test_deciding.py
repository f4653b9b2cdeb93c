"""`method: auto`: what fits is chosen, what does not is said with its numbers, and the resolved chain contains it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import trainyard
from trainyard.app.context import Context
from trainyard.app.plan.auto_method import MethodDecision
from trainyard.app.plan.check import check as check_files
from trainyard.app.plan.plan import plan_chain
from trainyard.app.plan.resolve import resolve_chain, resolve_with_decisions
from trainyard.backends.timings import add_timing, timing_key
from trainyard.compute.gpus import device_memory
from trainyard.errors import Refused
from trainyard.operations.chains import CheckInput
from trainyard.settings import Settings
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.methods import Method
from trainyard.spec.chain import ChainSpec, ResolvedChain
from trainyard.spec.estimate.memory import GIB
from trainyard.spec.estimate.timing import Problem
from trainyard.spec.graph import check, resolve
from trainyard.spec.training import TrainerConfig
from trainyard.surfaces.cli.command import render

STARTER = Path(trainyard.__file__).parent / "train" / "starter" / "model"

CHAT = '{"messages": [{"role": "user", "content": "A?"}, {"role": "assistant", "content": "It is B."}]}'


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "rows.jsonl").write_text(f"{CHAT}\n" * 40)
    shutil.copytree(STARTER, tmp_path / "base", ignore=shutil.ignore_patterns("manifest.json"))
    return Settings(
        home=tmp_path / "home", working_folder=tmp_path / "work", default_base_model=str(tmp_path / "base"),
        data_roots=(tmp_path,), min_free_mb=0,
    )  # fmt: skip


def make_chain(method: Any, **config: Any) -> ChainSpec:
    hyper = {"max_length": 512, "batch_size": 4, **config.pop("hyperparameters", {})}
    trainer = {"stage": "sft", "device": "cpu", "method": method, "hyperparameters": hyper, **config}
    nodes = [{"type": "data_source", "config": {"path": "rows.jsonl"}}, {"type": "trainer", "config": trainer}]
    return ChainSpec.model_validate({"nodes": nodes})


def decide(here: Settings, memory_gb: float, **config: Any) -> tuple[TrainerConfig, MethodDecision]:
    method = {"type": "auto", "memory_gb": memory_gb, **config.pop("method", {})}
    chain, (decision,) = resolve_with_decisions(make_chain(method, **config), here)
    trainer_config = chain.node("trainer").config
    assert isinstance(trainer_config, TrainerConfig)
    return trainer_config, decision


def test_a_part_of_the_model_is_trained_only_where_no_adapter_fits(here: Settings) -> None:
    """Of a model as small as this one an adapter takes more than two blocks."""
    decisions = [decide(here, size) for size in (9, 0.75, 0.64)]
    assert [config.method.type for config, _ in decisions] == [Method.FULL, Method.FREEZE, Method.QLORA]
    for config, decision in decisions:
        tried = [rung.method for rung in decision.rungs if not rung.knobs]
        assert config.method.type is not Method.FREEZE or tried == ["full", "lora", "qlora", "freeze"]


def test_each_rung_says_what_it_needs(here: Settings) -> None:
    config, decision = decide(here, 0.64)
    assert config.method.type is Method.QLORA
    assert [rung.method for rung in decision.rungs][:4] == ["full", "lora", "qlora", "freeze"]
    assert all("are missing" in rung.line() for rung in decision.rungs[:-1])
    assert [rung.fits for rung in decision.rungs] == [False] * (len(decision.rungs) - 1) + [True]
    needs = [rung.needed_bytes or 0 for rung in decision.rungs]
    assert all(needed > 0.64 * GIB for needed in needs[:-1])
    assert needs[-1] <= 0.64 * GIB


def test_batches_then_checkpointing_then_length(here: Settings) -> None:
    config, decision = decide(here, 0.64)
    knobs = [rung.knobs for rung in decision.rungs[4:]]
    assert knobs[:3] == [
        "batch_size 2 × gradient_accumulation 2",
        "batch_size 1 × gradient_accumulation 4",
        "batch_size 1 × gradient_accumulation 4, gradient_checkpointing",
    ]
    hyper = config.hyperparameters
    assert hyper.batch_size * hyper.gradient_accumulation == 4
    assert hyper.gradient_checkpointing
    assert any(change.startswith("hyperparameters.batch_size: 4 → 1") for change in decision.changes)


def test_rows_are_not_cut_below_the_least_length(here: Settings) -> None:
    with pytest.raises(Refused, match=r"E-MEMORY-FIT") as caught:
        decide(here, 0.3, method={"min_length": 128})
    (reason,) = caught.value.reasons
    assert "The least is qlora" in reason.because
    assert "max_length 128: needs" in reason.because
    assert "max_length 64" not in reason.because


def test_a_least_length_that_cuts_nothing_is_refused(here: Settings) -> None:
    with pytest.raises(Refused, match="R-SETTING-UNUSED"):
        decide(here, 9, method={"min_length": 4096})
    assert [problem.code for problem in check(make_chain({"type": "auto", "min_length": 4096}))] == ["R-SETTING-UNUSED"]


def test_what_a_backend_or_the_chain_refuses_is_left_out_with_its_reason(here: Settings) -> None:
    method = {"type": "auto", "memory_gb": 9}
    source, trainer = make_chain(method).model_dump(mode="json", exclude_unset=True)["nodes"]
    deployer = {"type": "deployer", "config": {"targets": [{"type": "embedded"}]}}
    spec = ChainSpec.model_validate(
        {"nodes": [source, {"type": "validator"}, trainer, {"type": "evaluator"}, deployer]}
    )
    (decision,) = resolve_with_decisions(spec, here)[1]
    full, lora = decision.rungs
    assert "is left out: " in full.why
    assert (full.needed_bytes, lora.method, lora.fits) == (None, Method.LORA, True)


def test_a_measured_lack_of_memory_counts(here: Settings) -> None:
    config, _ = decide(here, 9)
    key = timing_key(config, Path(here.default_base_model), Device.CPU, here)
    add_timing(key, Problem(time=1.0, max_length=512, rows_per_batch=4, why="ten steps ran out of memory"), here)
    config, decision = decide(here, 9)
    assert config.method.type is Method.LORA
    assert decision.rungs[0].why == "and did not fit: ten steps ran out of memory"


def test_the_digest_is_that_of_the_chosen_method(here: Settings) -> None:
    auto_chain = resolve_chain(make_chain({"type": "auto", "memory_gb": 9}), here)
    assert auto_chain.digest == resolve_chain(make_chain("full"), here).digest
    again = ResolvedChain.model_validate_json(auto_chain.model_dump_json())
    assert resolve_chain(make_chain("auto"), here, again).digest == auto_chain.digest


def test_a_continued_run_keeps_its_method_whatever_was_measured_since(here: Settings) -> None:
    spec = make_chain({"type": "auto", "memory_gb": 9})
    first = resolve_chain(spec, here)
    key = timing_key(decide(here, 9)[0], Path(here.default_base_model), Device.CPU, here)
    add_timing(key, Problem(time=1.0, max_length=512, rows_per_batch=4, why="ten steps ran out of memory"), here)
    assert resolve_chain(spec, here).digest != first.digest
    assert resolve_chain(spec, here, first).digest == first.digest


def test_a_rank_belongs_to_the_adapter(here: Settings) -> None:
    config, _ = decide(here, 0.64, method={"rank": 8})
    assert (config.method.type, getattr(config.method, "rank", None)) == (Method.QLORA, 8)


def test_an_unknown_model_or_memory_is_refused(here: Settings, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="needs the sizes of 'org/far', which is not on this machine"):
        decide(here, 10, base_model="org/far")
    (tmp_path / "base" / "model.safetensors").unlink()
    with pytest.raises(Refused, match=r"E-MODEL-INVALID trainer.config.base_model"):
        decide(here, 10)
    with pytest.raises(Refused, match=r"memory of cuda, which is not known on this machine|has no device cuda"):
        resolve_with_decisions(make_chain("auto", device="cuda"), here)
    assert device_memory(Device.CPU)


def test_without_a_machine_a_chain_is_checked_and_not_resolved() -> None:
    assert check(make_chain("auto")) == []
    assert [reason.row for reason in check(make_chain("auto", stage="dpo", backend="llamacpp"))] != []
    with pytest.raises(Refused, match="Method auto is chosen by the memory of the machine that trains"):
        resolve(make_chain("auto"))


def test_check_and_plan_print_the_decision(here: Settings, tmp_path: Path) -> None:
    spec = make_chain({"type": "auto", "memory_gb": 9}, base_model=None)
    (tmp_path / "chain.yaml").write_text(json.dumps(spec.model_dump(mode="json", exclude_unset=True)))
    (file,) = check_files(CheckInput(files=(tmp_path / "chain.yaml",)), Context(here)).files
    assert not file.reasons
    assert file.notes[0].startswith("trainer: method auto is full here, by 9.00 GiB of cpu (method.memory_gb)")
    assert file.notes[0].endswith("the machine that runs it decides")
    printed = render("plan", plan_chain(spec, here))
    assert "trainer: full: needs" in printed


def test_a_chain_with_its_defaults_written_out_is_accepted_as_well(here: Settings) -> None:
    """A run is given the chain so, and rows may be shorter than the default of `min_length`."""
    spec = make_chain({"type": "auto", "memory_gb": 9}, hyperparameters={"max_length": 64})
    written = ChainSpec.model_validate(spec.model_dump(mode="json"))
    assert resolve_chain(written, here).digest == resolve_chain(spec, here).digest
