"""Bugs that are injected into the stores on purpose: each is a plausible mistake, and is found.

python -m trainyard.testing.store_faults.simulate --campaigns 2000 --inject found-not-flushed    ends with exit code 1

The stores of a home on a disk that forgets: failed calls, deaths between any two calls, power cuts.

    campaign = run_campaign(seed)           a pure function of its seed
    campaign.violations                     what was promised and is not there

Artifacts, checkpoints, job records and the adapter registry work through `Files`; here it is the disk in memory of
`simulated_files`. What a call returned is a promise: it has to be there after every later fault, whole. What a call
did not return may be there or not, but never half. Nights have a simulator of their own (`testing/nights`).

Simulate faults over the stores: `python -m trainyard.testing.store_faults.simulate --campaigns 2000`.

Prints each violation with its campaign's seed and the line that replays it. Exit code 1 when something was violated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainyard.errors import TrainyardError
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.stages import Stage
from trainyard.spec.states import JobState
from trainyard.stores import adapters, artifacts, files, whole
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.artifacts import ArtifactStore, Produced, ProducedSet
from trainyard.stores.files import make_folders
from trainyard.stores.jobs import JobRecord, JobStore
from trainyard.testing.disk_campaign import HOME, DiskCampaign, run_command
from trainyard.testing.simulated_files import SimulatedFiles
from trainyard.testing.simulation import Simulator, Swap, always
from trainyard.train.checkpoint import checkpoints


def moves_without_flush(disk: files.Files, source: Path, target: Path) -> None:
    files.make_folders(disk, target.parent)
    disk.rename_noreplace(source, target)


def moves_into_an_unflushed_folder(disk: files.Files, source: Path, target: Path) -> None:
    """The folder that it moves to may be new itself."""
    missing = [parent for parent in reversed(target.parents) if not disk.is_folder(parent)]
    for parent in missing:
        disk.mkdir(parent)
    disk.rename_noreplace(source, target)
    disk.fsync_folder(target.parent)


def flushes_files_only(disk: files.Files, folder: Path) -> None:
    for path in whole.list_files(disk, folder):
        disk.fsync(path)
    disk.fsync_folder(folder)


def manifest_before_flush(
    disk: files.Files, folder: Path, described: Any, facts: Any = whole.NO_FACTS, *_: object
) -> None:
    whole.write_json_durably(folder / whole.MANIFEST, {**facts, "files": described}, disk)


def believes_the_version(_self: object, version: object) -> object:
    return version


def removes_first(disk: files.Files, replaced: Path, final: Path) -> None:
    """The old result goes before the new one is there for certain."""
    if disk.is_folder(replaced):
        whole.remove_folder(disk, replaced)


def writes_in_place(disk: files.Files, path: Path, data: bytes) -> None:
    disk.write(path, data)
    disk.fsync(path)
    disk.fsync_folder(path.parent)


def renames_unflushed(disk: files.Files, path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    disk.write(temporary, data)
    disk.replace(temporary, path)
    disk.fsync_folder(path.parent)


def build_swaps() -> dict[str, tuple[Swap, ...]]:
    """Name -> replaced attributes."""
    return {
        "no-fsync": ((SimulatedFiles, "fsync", always()),),
        "no-folder-fsync": ((SimulatedFiles, "fsync_folder", always()),),
        "moved-not-flushed": ((whole, "move_folder", moves_without_flush),),
        "new-folder-not-flushed": ((whole, "move_folder", moves_into_an_unflushed_folder),),
        "sub-folders-not-flushed": ((whole, "flush_tree", flushes_files_only),),
        "rename-before-fsync": ((whole, "seal", manifest_before_flush),),
        "found-not-flushed": ((artifacts, "flush_name", always()),),
        "found-checkpoint-not-flushed": ((checkpoints, "flush_name", always()),),
        "found-version-not-flushed": ((adapters.AdapterRegistry, "flushed", believes_the_version),),
        "old-removed-first": ((whole, "finish_exchange", removes_first),),
        "written-in-place": tuple((module, "write_whole", writes_in_place) for module in (adapters, whole)),
        "file-renamed-before-fsync": tuple((module, "write_whole", renames_unflushed) for module in (adapters, whole)),
    }  # fmt: skip


INJECTED_BUGS = tuple(build_swaps())


STEPS = 14
"""Calls of a store in one campaign, each of them perhaps struck by a fault."""
QUIET = 3
"""Calls without a fault at its end: whatever happened before, each of the stores still works."""
MOST_CALLS = 60
"""File-system calls within which a fault falls; an artifact of three files takes about forty."""
KEYS = tuple(letter * 64 for letter in "ab")
ROLES = ("bot", "coder")


class StoreCampaign(DiskCampaign):
    """The disk, and what the stores have promised."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.counter = 0
        self.artifacts: dict[str, set[str]] = {}
        """Key -> the contents that may be there; more than one after a call that did not return."""
        self.step, self.newest = 0, 0
        self.jobs: dict[str, set[str]] = {}
        self.versions: dict[str, tuple[str, str]] = {}
        """Name -> (run key, SHA-256) of every adapter version that was promised."""
        self.live: dict[str, set[int | None]] = {role: {None} for role in ROLES}

    # The stores, as a new process finds them.

    def store(self) -> ArtifactStore:
        return ArtifactStore(HOME / "artifacts", self.disk)

    def registry(self) -> AdapterRegistry:
        return AdapterRegistry(HOME / "adapters", self.disk, self.time)

    def job_store(self) -> JobStore:
        return JobStore(HOME / "jobs", self.disk, self.time)

    @property
    def steps(self) -> Path:
        return HOME / "runs" / "work" / "checkpoints"

    def time(self) -> float:
        """Return a clock whose readings, and so the bytes of every record, depend on the seed alone."""
        self.seconds += 1.0
        return self.seconds

    def content(self) -> str:
        self.counter += 1
        return f"content {self.counter} " * self.random.randint(1, 20)

    # What processes do.

    def make_artifact(self) -> None:
        key, text, replace = self.random.choice(KEYS), self.content(), self.random.random() < 0.4
        store, temporary = self.store(), HOME / "artifacts" / f".{key[:12]}-work"
        for other in KEYS:  # as `produce` sweeps the work folders of the dead
            store.settle(HOME / "artifacts" / f".{other[:12]}-work")
        result = store.find(key)
        if result is not None:
            self.artifacts[key] = {str(result.facts["text"])}
            if not replace:
                return
        make_folders(self.disk, temporary.parent)
        self.artifacts.setdefault(key, {""}).add(text)
        make_folders(self.disk, temporary / "rows" / "part")
        for name in ("one", "part/two"):
            self.disk.write(temporary / "rows" / name, f"{name} {text}".encode())
        produced = Produced(outputs={Port.TEXT: ProducedSet(folder="rows", rows=1)}, facts={"text": text})
        output = store.commit(key, temporary, produced, replace=replace)
        self.artifacts[key] = {str(output.facts["text"])}
        store.settle(temporary)

    def make_checkpoint(self) -> None:
        checkpoint = checkpoints.newest_valid(self.steps, self.disk)
        self.check_newest(checkpoint)
        self.newest = checkpoint.step
        step = checkpoint.step if checkpoint.step and self.random.random() < 0.3 else checkpoint.step + 10
        text = self.content()

        def write(folder: Path) -> None:
            make_folders(self.disk, folder / "adapter")
            self.disk.write(folder / "state.json", text.encode())
            self.disk.write(folder / "adapter" / "weights", text.encode() * 3)

        checkpoints.commit(self.steps, step, write, files=self.disk)
        self.newest = step

    def write_job(self) -> None:
        name, text = self.random.choice(("one", "two")), self.content()
        self.jobs.setdefault(name, {""})
        if self.random.random() < 0.15:
            self.jobs[name].add("")
            self.job_store().delete(name)
            self.jobs[name] = {""}
            return
        record = JobRecord(
            id=name, detail=text, state=JobState.RUNNING, stage=Stage.SFT, method=Method.LORA, backend=BackendName.TRL
        )
        self.jobs[name].add(text)
        self.job_store().put(record)
        self.jobs[name] = {text}

    def register_adapter(self) -> None:
        role, source, registry = self.random.choice(ROLES), HOME / "trained", self.registry()
        key = f"key-{self.random.randint(1, 4)}"
        make_folders(self.disk, source)
        self.disk.write(source / "adapter_model.safetensors", f"weights of {role} {key}".encode())
        version = registry.register("acme", role, source, run_key=key)
        first_name = next(
            (name for name, (other, _) in self.versions.items() if other == f"{role} {key}"), version.name
        )
        if first_name != version.name:
            self.violated(f"{role} {key} is registered as {first_name} and as {version.name}")
        self.versions[version.name] = (f"{role} {key}", version.sha256)
        if self.random.random() < 0.6:
            self.live[role].add(version.version)
            registry.promote(version.name)
            self.live[role] = {version.version}

    # The invariants.

    def check(self) -> None:
        """Everything that was promised is there and whole."""
        for rule in (self.check_artifacts, self.check_checkpoints, self.check_jobs, self.check_adapters):
            self.checked += 1
            try:
                rule()
            except (TrainyardError, OSError, ValueError) as error:
                self.violated(f"{rule.__name__}: {type(error).__name__}: {error}")

    def check_artifacts(self) -> None:
        for key, allowed in self.artifacts.items():
            result = self.store().find(key)
            text = str(result.facts["text"]) if result else ""
            if text not in allowed and not (text == "" and self.may_be_exchanged(key)):
                self.violated(f"the artifact {key[:2]} is {text[:12]!r}, promised was {sorted(allowed)}"[:200])
            self.artifacts[key] = {text} if text else allowed | {""}

    def may_be_exchanged(self, key: str) -> bool:
        """Whether its old bytes wait to be put back by the next process, since the exchange was interrupted."""
        return self.disk.is_folder(HOME / "artifacts" / f".{key[:12]}-work.replaced")

    def check_checkpoints(self) -> None:
        checkpoint = checkpoints.newest_valid(self.steps, self.disk)
        self.check_newest(checkpoint)
        self.newest = checkpoint.step

    def check_newest(self, checkpoint: checkpoints.FoundCheckpoint) -> None:
        if checkpoint.step < self.newest:
            self.violated(f"the newest checkpoint is of step {checkpoint.step}, promised was {self.newest}")
        for line in checkpoint.quarantined:
            self.violated(line)

    def check_jobs(self) -> None:
        details = {record.id: record.detail for record in self.job_store().list()}
        for name, allowed in self.jobs.items():
            if details.get(name, "") not in allowed:
                self.violated(f"the job {name} is {details.get(name, '')[:12]!r}, not one of {sorted(allowed)}"[:200])

    def check_adapters(self) -> None:
        registry = self.registry()
        there = {version.name: registry.verify(version) for version in registry.list()}
        for name, (_, sha256) in self.versions.items():
            if name not in there:
                self.violated(f"{name} is gone")
            elif there[name].sha256 != sha256:
                self.violated(f"{name} became another adapter")
        for role, allowed in self.live.items():
            live = registry.live("acme", role).version
            if live not in allowed:
                self.violated(f"v{live} of {role} is live, promised was {allowed}")
            if live is not None and f"acme/{role}/v{live}" not in there:
                self.violated(f"acme/{role}/v{live} is live and does not exist")


def run_campaign(seed: int) -> StoreCampaign:
    """Return one campaign, carried out; it ends at the first violation."""
    campaign = StoreCampaign(seed, MOST_CALLS)
    acts = (campaign.make_artifact, campaign.make_checkpoint, campaign.write_job, campaign.register_adapter)
    for number in range(STEPS):
        campaign.attempt(campaign.random.choice(acts), quiet=False)
        if number % 2 or campaign.random.random() < 0.3:
            campaign.check()
        if campaign.violations:
            return campaign
    for _ in range(QUIET):
        for act in acts:
            campaign.attempt(act, quiet=True)
    campaign.check()
    check_nothing_left(campaign)
    return campaign


def check_nothing_left(campaign: StoreCampaign) -> None:
    """No temporary file of a process that died is left after the next one has worked in its place."""
    campaign.checked += 1
    names = [Path(name) for name in campaign.disk.snapshot()]
    left = [path for path in names if any(".replaced" in part or part.endswith("-work") for part in path.parts)]
    if left:
        campaign.violated(f"left behind: {sorted(map(str, left))[:3]}")


simulate = Simulator(run_campaign, build_swaps).run
REPLAY = "python -m trainyard.testing.store_faults.simulate"


if __name__ == "__main__":
    raise SystemExit(run_command(simulate, INJECTED_BUGS, REPLAY))
