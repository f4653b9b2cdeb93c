"""What a training child is told: `spec.json` as a model. Data, base and earlier adapter are folders, never content."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict, Unpack
from urllib.parse import unquote, urlsplit

import orjson
from pydantic import BaseModel, ConfigDict

from trainyard.compute.child import SPEC_FILE
from trainyard.compute.gpus import training_threads
from trainyard.compute.lease import device_folder
from trainyard.settings import Settings
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import digest
from trainyard.spec.load.changes import list_changes
from trainyard.spec.training import TrainerConfig
from trainyard.stores.models import resolve_model


class TrainingJob(BaseModel):
    """One training execution, resolved: nothing in it needs a lookup any more."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: TrainerConfig
    """Stage, method, backend and settings, as `resolve_trainer` returns them."""
    data: dict[Port, str]
    """Port -> folder with `rows.arrow`."""
    data_sha256: dict[Port, str] = {}
    base: str
    """Folder of the base model, or its name on the Hub."""
    base_sha256: str = ""
    """Digest of the base's files; an adapter trained on other bytes is refused."""
    adapter: str | None = None
    """Folder of the earlier adapter that `config.adapter` speaks of."""
    parents: tuple[str, ...] = ()
    """Digests of the earlier adapter's or model's references."""
    threads: int = 1
    locks: str
    """Folder of the device locks."""
    devices: tuple[int, ...] = (0,)
    """The devices of this host that it has, by NVML's numbers; of a machine without a GPU the CPU is 0."""
    run: str = ""
    node: str = ""

    @property
    def output(self) -> Port:
        return Port.ADAPTER if self.config.method.facts.adapter else Port.MODEL

    @property
    def digest(self) -> str:
        """Names the work folder: the same job in a restarted run finds its checkpoints, another job never does.

        Where things lie is left out, what they contain is in. With `reuse: false` each run starts for itself.
        """
        content = self.model_dump(mode="json", exclude=PLACES)
        places = {} if self.base_sha256 else {"base": self.base}
        data = {} if self.data_sha256 else {"data": {port.value: path for port, path in self.data.items()}}
        own = {} if self.config.reuse else {"run": self.run}
        return digest({**content, **places, **data, **own, "adapter": bool(self.adapter)})


class JobInputs(TypedDict, total=False):
    """What differs between two places that make a job: the fields of `TrainingJob` by these names."""

    data: dict[Port, str]
    data_sha256: dict[Port, str]
    adapter: str | None
    parents: tuple[str, ...]
    devices: tuple[int, ...]
    run: str
    node: str


def job_for(config: TrainerConfig, base: str, settings: Settings, **inputs: Unpack[JobInputs]) -> TrainingJob:
    """The job of a resolved trainer on this machine: its base checked, its mirror located, threads and locks set.

    Raises what `resolve_model` raises for a base that is not here.
    """
    model = resolve_model(base, settings)
    return TrainingJob(
        config=locate_mirror(config, settings.working_folder),
        base=model.location,
        base_sha256=model.sha256,
        threads=training_threads(settings.threads),
        locks=str(device_folder(settings)),
        **inputs,
    )


def locate_mirror(config: TrainerConfig, folder: Path) -> TrainerConfig:
    """The config whose mirror, where it is a relative folder such as `file:checkpoints`, is below `folder`."""
    parts = urlsplit(config.engine.mirror or "")
    if parts.scheme != "file" or parts.netloc or not parts.path or parts.path.startswith("/"):
        return config
    place = (folder / unquote(parts.path)).resolve().as_uri()
    return config.model_copy(update={"engine": config.engine.model_copy(update={"mirror": place})})


PLACES = {"threads", "locks", "devices", "run", "node", "data", "base", "adapter"}
"""Where things lie and who runs it: no part of what is trained."""


def changed_since(work: Path, job: TrainingJob) -> list[str]:
    """What is different from the job whose work folder this is: `config.lora.rank: 8 before, 16 now`."""
    path = work / SPEC_FILE
    if not path.is_file():
        return []
    changes = list_changes(orjson.loads(path.read_bytes()), job.model_dump(mode="json"))
    return [f"{name}: {old} before, {new} now" for name, old, new in changes if name.partition(".")[0] not in PLACES]
