"""What a training chooses for itself follows from facts, is kept, and is the same next to any other work."""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

import trainyard
from tests.small_jobs import Jobs, Ran, train_here
from trainyard.backends.choices import (
    AUTOMATIC,
    MachineChoices,
    choices_digest,
    choices_file,
    decide_choices,
    keep_choices,
    machine_facts,
)
from trainyard.backends.job import TrainingJob, prepare_job
from trainyard.compute.gpus import training_threads
from trainyard.settings import Settings
from trainyard.spec.axes.devices import Device, Precision
from trainyard.spec.training import TrainerConfig
from trainyard.train.model.precision import choose_precision, cpu_bf16, read_hidden_size

ROOT = Path(trainyard.__file__).parent
CLOCKS = frozenset(
    {"perf_counter", "monotonic", "process_time", "thread_time", "time_ns", "mem_get_info", "virtual_memory",
     "getloadavg", "cpu_percent"}
)  # fmt: skip
"""Calls whose answer depends on what else a machine does."""
SPELLING = re_names = ("choose_", "decide_", "settle_", "sound_", "fit_", "halve_")
"""How functions that decide something are named."""
NOT_OF_A_TRAINING = {"train.rows.batching:require_rows"}
NOT_AUTOMATIC = {
    "train.history:choose_comparison": "whether a metric is better low or high",
    "train.latent.dsa.indexer:choose_kernel": "the kernel of what the model is set to",
    "train.methods.reloading:choose_tolerance": "how exactly a reloaded adapter has to agree",
    "train.model.sampling:choose_reader": "the reader of a latent technique",
    "train.parallel.ddp:choose_device": "where parameters are",
    "train.rl.drawing:settle_ppo": "what a rollout is worth",
    "train.rl.drawing:settle_grpo": "what a rollout is worth",
}
"""Functions with such a name that choose nothing for the user -> what they do."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", threads=2)


def on_cpu(**hyperparameters: Any) -> TrainerConfig:
    return TrainerConfig.model_validate({"device": "cpu", "hyperparameters": hyperparameters})


# The decision


def test_decision_follows_from_the_facts_of_base_and_processor(tiny_model: Path, settings: Settings) -> None:
    width = read_hidden_size(json.loads((tiny_model / "config.json").read_text()))
    expected = choose_precision(Precision.AUTO, "cpu", native=cpu_bf16(), hidden=width)
    choices = decide_choices(on_cpu(), tiny_model, settings)
    assert (choices.device, choices.precision, choices.threads) == (Device.CPU, expected.precision, 2)
    assert choices.lines() == {"device": "cpu", "precision": f"fp32 ({expected.why})", "threads": "2"}
    assert decide_choices(on_cpu(precision="bf16"), tiny_model, settings).precision is Precision.BF16


def test_decision_is_kept_by_its_facts_and_may_be_deleted(tiny_model: Path, settings: Settings) -> None:
    first = keep_choices(on_cpu(), tiny_model, settings)
    path = choices_file(machine_facts(on_cpu(), tiny_model, settings), settings)
    assert [path] == list(settings.choices.iterdir())
    value = json.loads(path.read_text())
    value["chosen"]["precision"] = "bf16"  # as a release with another table would have decided
    path.write_text(json.dumps(value))
    assert keep_choices(on_cpu(), tiny_model, settings).precision is Precision.BF16
    path.unlink()
    assert keep_choices(on_cpu(), tiny_model, settings) == first
    path.write_text("{")
    assert decide_choices(on_cpu(), tiny_model, settings) == first
    more_threads = settings.model_copy(update={"threads": 1})
    assert keep_choices(on_cpu(), tiny_model, more_threads).threads == 1
    assert len(list(settings.choices.iterdir())) == 2


def test_trainers_that_start_together_keep_one_decision(tiny_model: Path, settings: Settings) -> None:
    with ThreadPoolExecutor(8) as pool:
        decisions = list(pool.map(lambda _: keep_choices(on_cpu(), tiny_model, settings), range(32)))
    assert len(set(decisions)) == 1
    assert [path.suffix for path in settings.choices.iterdir()] == [".json"]


def test_digest_has_the_decision_and_not_its_words(tiny_model: Path, settings: Settings) -> None:
    choices = decide_choices(on_cpu(), tiny_model, settings)
    assert choices_digest(choices) == choices_digest(choices.model_copy(update={"precision_why": "because"}))
    for name, value in (("precision", Precision.BF16), ("threads", 1), ("device", Device.MPS)):
        assert choices_digest(choices) != choices_digest(choices.model_copy(update={name: value}))


def test_control_and_adapter_share_the_decision(tiny_model: Path, settings: Settings) -> None:
    control = on_cpu().model_copy(update={"control": "shuffled_answers"})
    assert keep_choices(control, tiny_model, settings) == keep_choices(on_cpu(), tiny_model, settings)
    assert len(list(settings.choices.iterdir())) == 1


# The same next to other work


def make_job(jobs: Jobs, settings: Settings) -> TrainingJob:
    """A job whose spec leaves everything open, on two threads."""
    fixed = jobs(backend="native", device="cpu", hyperparameters={"precision": "auto", "max_steps": 3})
    inputs = {"data": fixed.data, "data_sha256": dict.fromkeys(fixed.data, "1" * 64)}
    return prepare_job(fixed.config, fixed.base, settings, **inputs)


def read_run_result(run: Ran) -> tuple[str, dict[str, Any]]:
    """Digest of the adapter's weights, and its record without what the clock says."""
    weights = hashlib.sha256((run.folder / "adapter_model.safetensors").read_bytes()).hexdigest()
    return weights, {name: value for name, value in run.record.items() if name != "seconds"}


@pytest.fixture
def busy() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Starts of processes that do nothing but compute."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.integration
def test_six_trainings_are_equal_three_of_them_beside_four_busy_processes(
    jobs: Jobs, settings: Settings, tmp_path: Path, busy: list[subprocess.Popen[bytes]]
) -> None:
    job = make_job(jobs, settings)
    results = [read_run_result(train_here(job, tmp_path / f"quiet-{n}")) for n in range(3)]
    busy += [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    results += [read_run_result(train_here(job, tmp_path / f"busy-{n}")) for n in range(3)]
    assert len({weights for weights, _ in results}) == 1
    assert all(record == results[0][1] for _, record in results)
    record = results[0][1]
    assert (record["precision"], record["threads"]) == ("fp32", training_threads(2))
    assert record["precision_why"] == job.choices.precision_why if job.choices else False


def test_a_job_for_another_device_decides_by_its_own_facts(jobs: Jobs, settings: Settings, tmp_path: Path) -> None:
    job = make_job(jobs, settings)
    elsewhere = MachineChoices(device=Device.CUDA, precision=Precision.BF16, precision_why="there", threads=0)
    record = train_here(job.model_copy(update={"choices": elsewhere}), tmp_path / "run").record
    assert (record["precision"], record["precision_why"] != "there") == ("fp32", True)
    assert job.digest == job.model_copy(update={"choices": None}).digest  # an earlier release's job continues


# The table


def open_settings(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Fields of a spec that can be `auto`, below a model."""
    for name, field in model.model_fields.items():
        for part in flatten_annotation(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from open_settings(part, f"{prefix}{name}.")
            elif part == "auto" or getattr(part, "AUTO", None) == "auto":
                yield f"{prefix}{name}"


def flatten_annotation(annotation: Any) -> Iterator[Any]:
    """The types and literals that an annotation is made of."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif arguments := get_args(annotation):
        for each in arguments:
            yield from flatten_annotation(each)
    else:
        yield annotation


def find_function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(f"trainyard.{module}"), function)


def test_every_setting_that_can_be_auto_is_in_the_table() -> None:
    named = {row.setting for row in AUTOMATIC}
    setting_names = {name.replace("stage.", "stage.") for name in open_settings(TrainerConfig)}
    assert {"hyperparameters.precision", "engine.batching", "engine.attention", "device"} <= setting_names
    assert setting_names <= named, f"not in AUTOMATIC: {sorted(setting_names - named)}"


def deciding_functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions of what trains whose name says that they decide something."""
    for room in ("train", "backends"):
        for path in sorted((ROOT / room).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef) and node.name.startswith(SPELLING):
                    yield f"{module}:{node.name}", node


def test_no_code_decides_outside_the_table() -> None:
    named = {name for row in AUTOMATIC for name in row.functions}
    functions = {name for name, _ in deciding_functions()}
    assert functions - named == set(NOT_AUTOMATIC), "add a row to AUTOMATIC, or another name"
    for name in named:
        assert callable(find_function(name))


def test_no_choice_looks_at_a_clock_or_at_free_memory() -> None:
    looked = 0
    for row in AUTOMATIC:
        for name in row.functions:
            path = ROOT / f"{name.partition(':')[0].replace('.', '/')}.py"
            nodes, function_name = ast.walk(ast.parse(path.read_text(encoding="utf-8"))), name.partition(":")[2]
            function = next(node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == function_name)
            names = {n.attr for n in ast.walk(function) if isinstance(n, ast.Attribute)}
            names |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
            assert not names & CLOCKS, f"{name} reads {names & CLOCKS}"
            looked += 1
    assert looked > 15
