"""The Tinker SDK of three versions and the cookbook's loops, unmodified, against a real server and worker.

`TINKER_PYTHONS` names interpreters of environments that have an SDK, joined by colons; a version that none of them has
is installed by the tests that are marked `network`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.flows.real_stack import Stack, standing
from tests.unit.backends.session_host import host_session, make_record
from trainyard.app.services import running
from trainyard.settings import Settings
from trainyard.stores.models import SHIPPED_STARTER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.xdist_group("stack faults")]

VERSIONS = ("0.38.0", "0.24.1", "0.19.0")
PROGRAM, BATCHES = (REPOSITORY / "tests" / name for name in ("tinker_program.py", "tinker_cookbook_batches.py"))
CONFIGURED = [
    *filter(None, os.environ.get("TINKER_PYTHONS", "").split(":")),
    *([sys.executable] if find_spec("tinker") is not None else []),
]
MODEL, REVISION = "Qwen/Qwen3-8B-Base", "0" * 40
"""A name that the cookbook has a renderer for; in the Hub's cache of this test it is the starter."""
RANK, BATCH, STEPS, MAX_LENGTH, RATE = 8, 8, 20, 512, 2e-3
SUFFIX = " Provide a numerical answer without units, written inside \\boxed{}."
"""Of the questions of rl_loop."""


@cache
def read_version(python: str, package: str) -> str:
    """Return the version of a package in an environment; empty if it has none."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip()


def find_configured(package: str, version: str = "") -> str | None:
    """Return a configured interpreter with a package, or with one version of it."""
    for python in CONFIGURED:
        present = read_version(python, package)
        if present and version in ("", present):
            return python
    return None


def find_or_install(folder: Path, package: str, version: str = "") -> str:
    """Return an interpreter of an environment with a package."""
    if (python := find_configured(package.partition("[")[0], version)) is not None:
        return python
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    python = str(folder / "bin" / "python")
    requirement = f"{package}=={version}" if version else package
    subprocess.run([python, "-m", "pip", "install", "-q", requirement], check=True, timeout=1500)
    return python


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the Hub that has the starter under the name of a model of which the cookbook knows the renderer."""
    cache = tmp_path_factory.mktemp("hub")
    repository = cache / "hub" / f"models--{MODEL.replace('/', '--')}"
    shutil.copytree(SHIPPED_STARTER, repository / "snapshots" / REVISION)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)
    return cache


@pytest.fixture(scope="module")
def stack(hub: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    variables = {"HF_HOME": str(hub), "HF_HUB_OFFLINE": "1"}
    folder = tmp_path_factory.mktemp("tinker")
    with standing(folder, SHIPPED_STARTER, lambda stack: stack.environment.update(variables)) as stack:
        yield stack


@pytest.fixture(scope="module")
def environment(stack: Stack, hub: Path) -> dict[str, str]:
    """What a program of the SDK is started with."""
    token = stack.json("tokens", "create", "--name", "sdk", "--scope", "run")["token"]
    api = running(stack.settings, "api")
    assert api is not None
    return {
        "PATH": os.environ["PATH"], "HOME": str(hub), "HF_HOME": str(hub), "HF_HUB_OFFLINE": "1",
        "TINKER_BASE_URL": f"{api.url}/tinker", "TINKER_API_KEY": f"tml-{token}", "TINKER_TELEMETRY": "0",
    }  # fmt: skip


def run_program(environment: dict[str, str], folder: Path, *argv: str, timeout_s: float = 900) -> str:
    """Return what a program prints. Its errors are the test's."""
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


def check_report(environment: dict[str, str], folder: Path, python: str, version: str) -> None:
    """Run the program with one SDK, and compare what it reports."""
    report = json.loads(run_program(environment, folder, python, "-P", str(PROGRAM), "starter").splitlines()[-1])
    assert report["version"] == version
    assert report["losses"][-1] < report["losses"][0]
    assert report["interleaved"] == report["losses"]
    assert report["other"] != report["losses"]
    assert report["resumed"] == report["onward"]
    assert all(loss == pytest.approx(expected, rel=1e-5) for loss, expected in report["scores"].values())
    samples = report["samples"]
    assert (samples["lengths"], samples["repeats"]) == (samples["logprobs"], [True, True])
    assert samples["prompt_difference"] < 1e-4
    assert {"weights/state-1", "sampler_weights/sampler-1"} <= set(report["checkpoints"])
    assert report["files"] == ["archive"] or "adapter_model.safetensors" in report["files"]
    texts = report["refused"]
    assert "outside of" in texts["vocabulary"]
    assert "NaN" in texts["not a number"]
    assert "stable_reinforce" in texts["loss"]  # by the SDK where it does not know it
    assert "no/such" in texts["base"]
    assert "no checkpoint" in texts["deleted"]


@pytest.mark.network
@pytest.mark.parametrize("version", VERSIONS)
def test_sdk_of_each_version_trains_and_samples(
    version: str, environment: dict[str, str], stack: Stack, tmp_path: Path
) -> None:
    python = find_or_install(tmp_path / "sdk", "tinker", version)
    check_report(environment, tmp_path, python, version)
    operations = [row["operation"] for row in stack.json("audit", "list", "--limit", "1000")["entries"]]
    assert {"tinker create_model", "tinker forward_backward", "tinker optim_step", "tinker asample"} <= set(operations)


@pytest.mark.skipif(find_configured("tinker") is None, reason="TINKER_PYTHONS names no environment with the SDK")
def test_configured_sdk_trains_and_samples(environment: dict[str, str], tmp_path: Path) -> None:
    python = find_configured("tinker")
    assert python is not None
    check_report(environment, tmp_path, python, read_version(python, "tinker"))


# The cookbook


@pytest.fixture(scope="module")
def cookbook(tmp_path_factory: pytest.TempPathFactory) -> str:
    return find_or_install(tmp_path_factory.mktemp("cookbook") / "env", "tinker-cookbook[math-rl]")


def write_data(folder: Path) -> None:
    """Write what stands in for the two data sets: rows in folders of their names, which `load_dataset` takes."""
    robots, math_rows = folder / "HuggingFaceH4" / "no_robots", folder / "openai" / "gsm8k"
    for path in (robots, math_rows):
        path.mkdir(parents=True)
    turns = [
        [
            {"role": "user", "content": f"What is {number} minus {number - answer}?{SUFFIX}"},
            {"role": "assistant", "content": f"\\boxed{{{answer}}}"},
        ]
        for number in range(10, 90)
        for answer in (3, 4)
    ]
    (robots / "train.jsonl").write_text("\n".join(json.dumps({"messages": pair}) for pair in turns))
    problems = [{"question": f"What is {n} minus {n - 3}?", "answer": "Subtract.\n#### 3"} for n in range(10, 40)]
    (math_rows / "main.jsonl").write_text("\n".join(json.dumps(row) for row in problems))
    card = "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main.jsonl\n---\n"
    (math_rows / "README.md").write_text(card)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run_native(
    settings: Settings, model: Path, batches: list[list[dict[str, Any]]], rates: list[float], seed: int
) -> list[float]:
    """Return the losses of the native engine on the same rows: stage sft with the mean of each row."""
    method = {"type": "lora", "rank": RANK, "alpha": 32.0, "dropout": 0.0, "target_modules": TARGETS}
    options = {"stage": {"type": "sft", "average": "row"}, "hyperparameters": {"optimizer": "adamw"}}
    losses = []
    with host_session(settings, make_record(model, method=method, **options)) as session:
        session.call("open_slot", name="native", seed=seed)
        for rows, rate in zip(batches, rates, strict=True):
            batch = {name: [row[name] for row in rows] for name in ("input_ids", "labels")}
            forward = session.call("forward", slot="native", batch=batch)
            losses.append(forward["loss"])
            session.call("backward", slot="native", forward_id=forward["forward_id"], scale=float(len(rows)))
            adam = {"betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0}
            session.call("step", slot="native", learning_rate=rate, max_grad_norm=0, options=adam)
            session.call("zero_grad", slot="native")
    return losses


TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
"""All linear layers and the output layer: the SDK trains it unless it is told not to."""


@pytest.mark.network
def test_cookbook_loops_run_unmodified(
    cookbook: str, environment: dict[str, str], stack: Stack, tmp_path: Path
) -> None:
    """`sl_loop` comes to the losses of the native engine; `rl_loop` goes on from its state and is rewarded."""
    write_data(tmp_path)
    options = [f"model_name={MODEL}", f"lora_rank={RANK}", f"batch_size={BATCH}", f"max_steps={STEPS}"]
    run_program(
        environment, tmp_path, cookbook, "-m", "tinker_cookbook.recipes.sl_loop", *options, f"learning_rate={RATE}",
        f"max_length={MAX_LENGTH}", "save_every=10", "log_path=sl",
    )  # fmt: skip
    metrics = read_lines(tmp_path / "sl" / "metrics.jsonl")
    assert len(metrics) == STEPS
    printed = run_program(environment, tmp_path, cookbook, str(BATCHES), MODEL, str(BATCH), str(STEPS), str(MAX_LENGTH))
    batches = [json.loads(line) for line in printed.splitlines()]
    state = read_lines(tmp_path / "sl" / "checkpoints.jsonl")[-1]["state_path"]
    model_id = state.removeprefix("tinker://").partition("/")[0]
    record = next((stack.settings.home / "tinker").rglob(f"{model_id.partition(':')[0]}.json"))
    seed = json.loads(record.read_bytes())["models"][model_id]["seed"]
    native = run_native(
        Settings(home=tmp_path / "native", threads=1), SHIPPED_STARTER, batches,
        [row["learning_rate"] for row in metrics], seed,
    )  # fmt: skip
    losses = [row["train_mean_nll"] for row in metrics]
    assert losses == pytest.approx(native, abs=1e-5)
    assert losses[-1] < losses[0] / 4

    (tmp_path / "rl").mkdir()
    (tmp_path / "rl" / "checkpoints.jsonl").write_text(
        json.dumps({"name": "sl", "batch": 0, "state_path": state}) + "\n"
    )
    run_program(
        environment, tmp_path, cookbook, "-m", "tinker_cookbook.recipes.rl_loop", f"model_name={MODEL}",
        f"lora_rank={RANK}", "batch_size=2", "group_size=8", "max_tokens=16", "max_steps=4", "learning_rate=1e-3",
        "save_every=2", "log_path=rl",
    )  # fmt: skip
    rewards = read_lines(tmp_path / "rl" / "metrics.jsonl")
    assert len(rewards) == 4
    assert any(0 < row["reward/total"] < 1 for row in rewards)
    assert any(row.get("grad_norm:mean", 0) > 0 for row in rewards)
    names = [row["name"] for row in read_lines(tmp_path / "rl" / "checkpoints.jsonl")]
    assert names == ["sl", "000002", "final"]
