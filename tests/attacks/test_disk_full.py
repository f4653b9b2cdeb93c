"""A disk that is full: `E-DISK-FULL` with the path and a remedy wherever bytes are written, and nothing half-written.

The disk is a tmpfs of a few megabytes, which only root may mount.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainyard.app.plan.parse import parse_request
from trainyard.app.plan.refusals import check_space, list_refusals
from trainyard.app.plan.resolve import resolve_chain
from trainyard.app.run_records import RunRecord, RunResult, read_events, read_result
from trainyard.compute.child import ERROR_FILE, ERROR_RESERVE
from trainyard.compute.supervise import Status, supervise
from trainyard.errors import LimitExceeded, TrainyardError
from trainyard.night.wiring import make_night_deps
from trainyard.settings import Settings
from trainyard.spec.axes.data import Port
from trainyard.spec.night import NightConfig
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.artifacts import ArtifactStore, Produced, ProducedSet
from trainyard.stores.files import RealFiles
from trainyard.stores.jobs import JobRecord, JobStore
from trainyard.stores.whole import create_whole, write_json_durably
from trainyard.train.checkpoint import checkpoints

needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0 or sys.platform != "linux", reason="only root may mount a tmpfs"
)
FILL = "fill"
KEY = "a" * 64
CHILD = """
import sys
from pathlib import Path
from trainyard.compute.child import child_contract
with child_contract(Path(sys.argv[1])) as events:
    for step in range(100_000):
        events.emit("progress", step=step, text="x" * 1000)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(mount_point)], check=False)
    if mounted.returncode:
        pytest.skip("this container may not mount a tmpfs")
    yield mount_point
    subprocess.run(["umount", "--lazy", str(mount_point)], check=True)


def fill(disk: Path, leave_bytes: int = 0) -> None:
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    with (disk / FILL).open("wb", buffering=0) as stream:
        stream.write(bytes(max(0, free - leave_bytes)))


def big(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "weights.safetensors").write_bytes(os.urandom(1 << 20))


def make(folder: Path) -> Produced:
    big(folder / "rows")
    return Produced(outputs={Port.TEXT: ProducedSet(folder="rows", rows=1)})


def write_job(disk: Path) -> None:
    facts = {"text": "x" * 100_000}
    record = JobRecord(id="one", stage="sft", method="lora", backend="trl", facts=facts)  # type: ignore[arg-type]
    JobStore(disk / "jobs").put(record)


def register(disk: Path) -> None:
    source = disk.parent / "trained"
    big(source)
    AdapterRegistry(disk / "adapters").register("acme", "bot", source)


def make_result(disk: Path) -> RunResult:
    return RunResult(run_id="1", name="x", chain="c", digest="0", state="failed", message="m" * 100_000)


WRITERS: dict[str, Callable[[Path], object]] = {
    "spec": lambda disk: write_json_durably(disk / "spec.json", {"text": "x" * 100_000}),
    "events": lambda disk: RunRecord(disk).emit("trainer", "note", text="x" * 100_000),
    "result": lambda disk: RunRecord(disk).finish(make_result(disk)),
    "job": write_job,
    "marker": lambda disk: create_whole(RealFiles(), disk / "marker.json", b"x" * 100_000),
    "checkpoint": lambda disk: checkpoints.commit(disk / "checkpoints", 10, big),
    "artifact": lambda disk: ArtifactStore(disk / "artifacts").produce(KEY, make),
    "adapter": register,
}


@needs_root
@pytest.mark.parametrize("name", WRITERS)
def test_it_is_told_with_path_and_remedy_and_nothing_is_left(name: str, disk: Path) -> None:
    fill(disk, leave_bytes=40_960)
    with pytest.raises((TrainyardError, OSError)) as caught:
        WRITERS[name](disk)
    if name != "marker":  # whose callers translate it: `translate_os_errors` is around a whole night's step
        assert isinstance(caught.value, TrainyardError)
        assert caught.value.code == "E-DISK-FULL"
        assert str(disk) in str(caught.value) or name == "adapter"
        assert "Free" in caught.value.do
    left = [path for path in disk.rglob("*") if path.is_file() and path.name not in (FILL, ".lock", "events.jsonl")]
    assert left == [], "no half and no empty file is left"
    (disk / FILL).unlink()
    WRITERS[name](disk)


@needs_root
def test_events_are_whole_lines_again_after_space_was_freed(disk: Path) -> None:
    record = RunRecord(disk)
    record.emit("trainer", "started")
    fill(disk, leave_bytes=4_096)
    with pytest.raises(LimitExceeded, match=r"E-DISK-FULL: The events of the run were not written to .*events\.jsonl"):
        record.emit("trainer", "note", text="x" * 100_000)
    (disk / FILL).unlink()
    record.emit("trainer", "finished")
    assert [event["event"] for event in read_events(disk)] == ["started", "finished"]
    assert read_result(disk) is None


@needs_root
def test_a_child_can_still_say_that_the_disk_is_full(disk: Path) -> None:
    folder = disk / "work"
    folder.mkdir()
    ended = supervise([sys.executable, "-c", CHILD, str(folder)], folder, poll_s=0.05)
    assert ended.status is Status.FAILED
    assert ended.error is not None
    assert ended.error["code"] == "E-DISK-FULL"
    assert str(folder) in ended.error["what"]
    assert "continues from its last checkpoint" in ended.error["do"]
    assert json.loads((folder / ERROR_FILE).read_text()) == ended.error
    assert not (folder / ERROR_RESERVE).exists()
    assert [path.name for path in folder.rglob("*") if path.stat().st_size == 0 and path.name != "child.log"] == []


def test_nothing_is_started_below_the_floor(tmp_path: Path) -> None:
    """check, plan and run ask one function, and the floor is a setting."""
    here = Settings(home=tmp_path / "home", min_free_mb=1 << 30)
    (reason,) = check_space(here)
    assert reason.code == "E-DISK-FULL"
    assert str(here.home) in reason.because
    assert "TRAINYARD_MIN_FREE_MB" in reason.instead
    assert check_space(here.model_copy(update={"min_free_mb": 0})) == []
    chain = tmp_path / "chain.yaml"
    (tmp_path / "rows.jsonl").write_text('{"instruction": "a", "output": "b"}\n')
    chain.write_text("name: one\nnodes:\n- {id: data, type: data_source, config: {path: rows.jsonl}}\n")
    small_settings = here.model_copy(update={"working_folder": tmp_path})
    resolved = resolve_chain(parse_request(str(chain)).spec, small_settings)
    assert [refusal.code for refusal in list_refusals(resolved, small_settings)][:1] == ["E-DISK-FULL"]


def test_no_night_is_begun_below_the_floor(tmp_path: Path) -> None:
    """The flow, `nightly run` and `nightly worker` build their night by one function."""
    here = Settings(home=tmp_path / "home", min_free_mb=1 << 30)
    with pytest.raises(LimitExceeded, match="E-DISK-FULL"):
        make_night_deps(NightConfig(), here)
    assert not here.home.exists()
