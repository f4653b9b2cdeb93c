"""The same small job on every backend, as a chain: each really trains the tiny model, end to end.

`make test-backends` installs the environments, runs this and writes what it found into docs/backends.md.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect.client.schemas.objects import State
from safetensors import safe_open

from flows.training_job import training_job
from tests.conftest import REPOSITORY
from tests.flows.chain_runs import read_run_result
from trainyard.backends.environments import ENVIRONMENTS
from trainyard.settings import settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.job import JobSpec
from trainyard.spec.states import JobState

pytestmark = [
    pytest.mark.usefixtures("prefect"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

CACHED = REPOSITORY / ".trainyard" / "envs"
HERE = [name for name in BackendName if not name.facts.remote]
"""Step services are trained at in tests/flows/test_step_services.py."""
METHODS = {BackendName.LLAMACPP: "full"}
"""What llama.cpp trains; the others train a LoRA."""
HYPER = {"epochs": 3, "batch_size": 4, "learning_rate": 5e-3, "max_length": 64}
SEEN_IN_TREE = {
    BackendName.DEEPSPEED: "deepspeed",
    BackendName.MLX: "envs/mlx",
    BackendName.LLAMACPP: "llama-finetune",
    BackendName.UNSLOTH: "envs/unsloth",
    BackendName.AXOLOTL: "axolotl",
    BackendName.SCRIPT: "train.py",
}
"""Backend -> what stands in the command line of a process of it."""


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "rows.jsonl"
    turns = [("user", "What does node {} read?"), ("assistant", "Node {} reads the documents and writes pairs.")]
    lines = [{"messages": [{"role": role, "content": text.format(n)} for role, text in turns]} for n in range(16)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    named = {name.value: str(CACHED / name.value) for name in ENVIRONMENTS if (CACHED / name.value).exists()}
    monkeypatch.setenv("TRAINYARD_BACKEND_ENVS", json.dumps(named))
    monkeypatch.setenv("TRAINYARD_ALLOW_SCRIPTS", "true")
    monkeypatch.setenv("TRAINYARD_WORKING_FOLDER", str(tmp_path))
    settings.cache_clear()
    return path


@contextmanager
def commands_below() -> Iterator[set[str]]:
    """The command lines of every process below this one that was seen while the block ran."""
    seen: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            for process in psutil.Process().children(recursive=True):
                try:
                    seen.add(" ".join(process.cmdline()))
                except psutil.Error:
                    continue  # it ended while we looked

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def marks(name: BackendName) -> list[pytest.MarkDecorator]:
    """The three that need no environment of their own are trained by quicker tests, too."""
    return [pytest.mark.backends] if name in ENVIRONMENTS else [pytest.mark.slow]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in HERE])
async def test_a_chain_trains_on_it(
    name: BackendName, rows: Path, tiny_model: Path, record_property: Callable[[str, object], None]
) -> None:
    if name in ENVIRONMENTS and not (CACHED / name.value / "bin" / "python").exists():
        pytest.skip(f"no environment for {name.value}: run `trainyard backends install {name.value}`")
    method = METHODS.get(name, "lora")
    job = JobSpec.model_validate(
        {
            "dataset": {"path": rows.name},
            "base_model": str(tiny_model),
            "backend": name,
            "method": method,
            "hyperparameters": HYPER,
            "device": "cpu",
        }
    )
    with commands_below() as commands:
        state: State[Any] = await training_job(job, return_state=True)
    assert state.is_completed(), state.message
    result = read_run_result(state)
    assert result.state is JobState.COMPLETED
    trained = result.node("trainer")
    (output,) = trained.outputs.values()
    record = json.loads((output.path / "training.json").read_text())
    assert record["backend"] == name
    assert record["losses"][-1][1] < record["losses"][0][1]
    assert record["tool_version"]
    assert "log_head" in record
    (weights,) = output.path.glob("*.safetensors")
    with safe_open(weights, "pt") as tensors:
        assert any("lora_B" in key for key in tensors.keys()) is (method == "lora")  # noqa: SIM118
    if pattern := SEEN_IN_TREE.get(name):
        assert any(pattern in command for command in commands), sorted(commands)
    facts = {"backend": name.value, "version": record["tool_version"], "stage": "sft", "method": method}
    facts |= {"first_loss": f"{record['first_loss']:.3f}", "final_loss": f"{record['final_loss']:.3f}"}
    for key, value in facts.items():
        record_property(key, value)
