"""A process that is killed while its checkpoint is written: what is there afterwards is whole, and it is the newest.

One program imports torch once and forks a child for each case, while it has a single thread.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainyard.train.checkpoint.checkpoints import find_damage
from trainyard.train.checkpoint.writer import find_newest, load_checkpoint

pytestmark = pytest.mark.faults

SEEDS = int(os.environ.get("SEEDS", "3"))

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
import torch
from trainyard.compute.child import faultpoint
from trainyard.train.checkpoint.writer import CheckpointWriter

def child(folder, case):
    os.environ["TRAINYARD_FAULT"] = case.get("fault", "")
    mirror = (folder / "mirror").as_uri() if case["mirror"] else None
    with CheckpointWriter(folder / "here", mirror=mirror, at=faultpoint) as writer:
        for step in case["steps"]:
            state = {"weights": torch.full((case["numbers"],), float(step)), "more": torch.arange(step)}
            writer.save(step, state, {"step": step})
            faultpoint(f"saved.{step}")
            if case["wait"]:
                writer.wait()

for line in sys.stdin:
    case = json.loads(line)
    pid = os.fork()
    if pid == 0:
        try:
            child(Path(case["folder"]), case)
            os._exit(0)
        finally:
            os._exit(1)
    if "kill_after_s" in case:
        time.sleep(case["kill_after_s"])
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


@pytest.fixture(scope="module")
def server() -> Any:
    """Takes a case as a line of JSON, answers with the child's exit code."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def run(server: subprocess.Popen[str], folder: Path, **case: Any) -> int:
    """Exit code of a child that saves `steps`; -9 when it was killed."""
    request = {"folder": str(folder), "mirror": False, "wait": True, "numbers": 1000, "steps": [1, 2, 3], **case}
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return int(server.stdout.readline())


def require_whole(folder: Path, step: int) -> None:
    """The newest checkpoint is that step, to the bit, and nothing half-written is left beside it."""
    newest = find_newest(folder / "here")
    assert (newest.step, newest.quarantined) == (step, ())
    if newest.path is not None:
        tensors, values = load_checkpoint(newest.path)
        assert bool((tensors["weights"] == step).all())
        assert torch.equal(tensors["more"], torch.arange(step))
        assert values == {"step": step}
    names = [path.name for path in (folder / "here").iterdir()]
    assert all(name.startswith("step-") for name in names), names


@pytest.mark.parametrize(
    ("fault", "left"),
    [
        ("checkpoint.written", 0),
        ("checkpoint.written#2", 1),
        ("checkpoint.synced#2", 1),
        ("checkpoint.manifest#2", 1),
        ("checkpoint.renamed#2", 2),
        ("checkpoint.renamed#3", 3),
    ],
)
def test_killed_at_a_named_point(server: subprocess.Popen[str], tmp_path: Path, fault: str, left: int) -> None:
    assert run(server, tmp_path, fault=fault) == -9
    require_whole(tmp_path, left)
    assert run(server, tmp_path, steps=[left + 1, left + 2]) == 0
    require_whole(tmp_path, left + 2)


def test_killed_while_a_checkpoint_of_the_same_step_is_replaced(server: subprocess.Popen[str], tmp_path: Path) -> None:
    assert run(server, tmp_path, steps=[1, 2, 2], fault="checkpoint.replaced") == -9
    require_whole(tmp_path, 2)


@pytest.mark.parametrize("case", [{"fault": "checkpoint.mirrored#2"}, {"fault": "checkpoint.renamed#2"}])
def test_killed_around_the_mirror_and_the_disk_is_lost(
    server: subprocess.Popen[str], tmp_path: Path, case: dict[str, str]
) -> None:
    assert run(server, tmp_path, mirror=True, **case) == -9
    for path in (tmp_path / "mirror").iterdir():
        assert find_damage(path) is None
    (tmp_path / "here").rename(tmp_path / "lost")
    newest = find_newest(tmp_path / "here", (tmp_path / "mirror").as_uri())
    assert newest.step == (2 if "mirrored" in case["fault"] else 1)
    require_whole(tmp_path, newest.step)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_killed_at_any_moment(server: subprocess.Popen[str], tmp_path: Path, seed: int) -> None:
    """Saves overlap and are large enough to be met half-written; the mirror is cut at the same moment."""
    after = random.Random(seed).uniform(0.0, 0.4)
    steps = list(range(1, 200))
    assert run(server, tmp_path, kill_after_s=after, steps=steps, numbers=1 << 18, wait=False, mirror=True) in (-9, 0)
    (tmp_path / "here").mkdir(exist_ok=True)
    here = find_newest(tmp_path / "here")
    require_whole(tmp_path, here.step)
    (tmp_path / "here").rename(tmp_path / "lost")
    newest = find_newest(tmp_path / "here", (tmp_path / "mirror").as_uri())
    assert newest.quarantined == ()
    assert newest.step <= here.step
    if newest.path is not None:
        require_whole(tmp_path, newest.step)
