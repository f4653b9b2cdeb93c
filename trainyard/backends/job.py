"""The input of a training child: `spec.json` as a model. Data, base and earlier adapter are folders, never content."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainyard.backends.choices import MachineChoices, keep_choices
from trainyard.compute.child import SPEC_FILE
from trainyard.compute.gpus import training_threads
from trainyard.compute.lease import device_folder, device_lock
from trainyard.data.functions import ENVIRONMENT
from trainyard.errors import NotFound
from trainyard.settings import Settings, settings
from trainyard.spec.axes.backends import SERVICE_VARIABLES, BackendName
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.rewards import JudgeReward
from trainyard.spec.chain import digest
from trainyard.spec.model_schema import list_changes
from trainyard.spec.money import Dollars
from trainyard.spec.training import TrainerConfig
from trainyard.stores.files import DISK
from trainyard.stores.live.job_ids import read_chain_facts
from trainyard.stores.models import ModelSource, resolve_model
from trainyard.stores.whole import move_folder, write_json_durably


class TeacherServer(BaseModel):
    """The endpoint of a teacher, a judge or a step service as a training child asks it; the key is in the child's
    environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str
    model: str
    api_key_env: str | None = None
    private_hosts: tuple[str, ...] | None = Field(None, exclude_if=lambda value: value is None)
    """Names that may lead to an address inside this network, where a chain gives the address; None: every name."""


class OtherModels(BaseModel):
    """The models that a training reads next to the one that it trains."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    teacher: str | TeacherServer | None = Field(None, exclude_if=lambda value: value is None)
    """The frozen model that a distillation imitates: its folder, its name on the Hub, or where it answers."""
    teacher_sha256: str = Field("", exclude_if=lambda value: not value)
    reward_model: str | None = Field(None, exclude_if=lambda value: value is None)
    """Folder of the reward model whose scores a stage reads: an adapter, or a whole model."""
    reward_sha256: str = Field("", exclude_if=lambda value: not value)
    judges: dict[str, TeacherServer] = Field({}, exclude_if=lambda value: not value)
    """What a reward's judge is known by -> where it answers."""
    service: TeacherServer | None = Field(None, exclude_if=lambda value: value is None)
    """The step service that trains, and its name for the base."""


class JobData(OtherModels):
    """The rows that a training reads."""

    data: dict[Port, str]
    """Port -> folder with `rows.arrow`."""
    data_sha256: dict[Port, str] = {}


class JobMachine(BaseModel):
    """The machine that a training runs on, and what it decides."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    threads: int = 1
    choices: MachineChoices | None = Field(None, exclude_if=lambda value: value is None)
    """What this machine decides for the training; a part of its content key."""
    locks: str
    """Folder of the device locks."""
    devices: tuple[int, ...] = (0,)
    """The devices of this host that it has, by NVML's numbers; of a machine without a GPU the CPU is 0."""


class TrainingJob(JobData, JobMachine):
    """A training execution, resolved: nothing in it needs a lookup any more."""

    config: TrainerConfig
    """Stage, method, backend and settings, as `resolve_trainer` returns them."""
    base: str
    """Folder of the base model, or its name on the Hub."""
    base_sha256: str = ""
    """Digest of the base's files; an adapter trained on other bytes is refused."""
    adapter: str | None = None
    """Folder of the earlier adapter that `config.adapter` speaks of."""
    environment: str | None = Field(None, exclude_if=lambda value: value is None)
    """`FILE.py:function` or `module:function` that answers a policy between its turns, where that is the operator's."""
    environment_sha256: str = Field("", exclude_if=lambda value: not value)
    parents: tuple[str, ...] = ()
    """Digests of the earlier adapter's or model's references."""
    run: str = ""
    tenant: str = Field("", exclude_if=lambda value: not value)
    """Whose training it is; empty for one that belongs to no run of a tenant."""
    node: str = ""
    continues: str = Field("", exclude_if=lambda value: not value)
    """Run or sweep whose work it continues: of a job that was retried the first one; empty for its own run's."""
    template_day: str = Field("", exclude_if=lambda value: not value)
    """ISO date that chat templates write; that of the first start. Empty in a job that has not begun."""
    until: int | None = None
    """Step after which this execution saves and stops; the same job continues from there. None: its last step."""
    max_spend: Dollars | None = Field(None, exclude_if=lambda value: value is None)
    """US dollars that its run may spend."""

    @property
    def teacher_folder(self) -> str | None:
        return self.teacher if isinstance(self.teacher, str) else None

    @property
    def teacher_server(self) -> TeacherServer | None:
        return self.teacher if isinstance(self.teacher, TeacherServer) else None

    @property
    def output(self) -> Port:
        return Port.ADAPTER if self.config.method.facts.adapter else Port.MODEL

    @property
    def is_probe(self) -> bool:
        """Whether a few steps are trained for their time and memory alone."""
        return self.run.startswith(PROBE_RUN)

    @property
    def digest(self) -> str:
        """Names what is trained: equal jobs have the same digest, whose and in which run they are.

        Where things lie is left out, what they contain is in. With `reuse: false` each run's job is another one.
        """
        content = self.model_dump(mode="json", exclude=PLACES)
        base = {} if self.base_sha256 else {"base": self.base}
        data = {} if self.data_sha256 else {"data": {port.value: path for port, path in self.data.items()}}
        run = {} if self.config.reuse else {"run": self.run}
        return digest({**content, **base, **data, **run, "adapter": bool(self.adapter)})

    @property
    def work_name(self) -> str:
        """Names the work folder: a run that is resumed or retried finds its checkpoints, log and metrics; an equal job
        of another run or tenant begins with none.
        """
        run = self.continues or self.run
        owner = {"run": run, "tenant": self.tenant} if run or self.tenant else {}
        return (digest({"job": self.digest, **owner}) if owner else self.digest)[:32]

    @property
    def turn_name(self) -> str:
        """Names the turn that equal jobs of one tenant take: who waited finds the finished result."""
        return (digest({"job": self.digest, "tenant": self.tenant}) if self.tenant else self.digest)[:32]


def prepare_job(config: TrainerConfig, base: str, settings: Settings, **inputs: object) -> TrainingJob:
    """The job of a resolved trainer on this machine: its base checked, its mirror located, threads and locks set.

    `inputs` are the fields of `TrainingJob` that differ between two places that make a job.

    Raises what `resolve_model` raises for a base that is not here.
    """
    is_elsewhere = config.backend.facts.provider is not None
    model = find_provider_base(base, settings) if is_elsewhere else resolve_model(base, settings)
    if config.stage.teacher_model is not None:
        teacher = resolve_model(config.stage.teacher_model, settings)
        inputs |= {"teacher": teacher.location, "teacher_sha256": teacher.sha256}
    if config.stage.teacher_server is not None:
        inputs["teacher"] = find_endpoint(config.stage.teacher_server, settings)
    if config.stage.judges:
        inputs["judges"] = {judge.server: find_judge(judge, settings) for judge in config.stage.judges}
    if (name := config.stage.environment_function) is not None:
        inputs["environment"] = ENVIRONMENT.find_reference(name, settings.environments)
        inputs["environment_sha256"] = ENVIRONMENT.digest(name, settings.environments)
    if config.backend.facts.remote:
        inputs["service"] = find_step_service(config, base, settings)
    return TrainingJob(
        config=locate_mirror(config, settings.working_folder),
        base=model.location,
        base_sha256=model.sha256,
        threads=training_threads(settings.threads),
        choices=keep_choices(config, model.path, settings),
        locks=str(device_folder(settings)),
        **{"tenant": settings.tenant, **inputs},
    )


def find_provider_base(name: str, settings: Settings) -> ModelSource:
    """Return the base of a provider's job: it has the model itself, and here it may be, for what comes after."""
    try:
        source = resolve_model(name, settings)
    except NotFound:
        return ModelSource(name, None, "")
    return source if source.path is not None else ModelSource(name, None, "")


def find_endpoint(endpoint: str, settings: Settings) -> TeacherServer:
    """Return an endpoint of the settings."""
    server = settings.endpoint(endpoint)
    return TeacherServer(base_url=server.base_url, model=server.model or endpoint, api_key_env=server.api_key_env)


def find_judge(reward: JudgeReward, settings: Settings) -> TeacherServer:
    """Where the judge of a reward answers: at an endpoint of the settings, or at an address without a key."""
    if reward.endpoint is not None:
        server = find_endpoint(reward.endpoint, settings)
        return server.model_copy(update={"model": reward.model or server.model})
    assert reward.base_url is not None, "the spec has either an endpoint or an address"
    assert reward.model is not None, "asked for with an address"
    return TeacherServer(base_url=reward.base_url, model=reward.model, private_hosts=settings.private_hosts)


def find_step_service(config: TrainerConfig, base: str, settings: Settings) -> TeacherServer:
    """Where the service of a trainer answers: at an endpoint, at an address without a key, or where the SDK looks."""
    service = config.service
    model = (service.base_model if service is not None else None) or config.base_model or base
    if service is not None and service.endpoint is not None:
        return find_endpoint(service.endpoint, settings).model_copy(update={"model": model})
    if service is not None and service.base_url is not None:
        return TeacherServer(base_url=service.base_url, model=model, private_hosts=settings.private_hosts)
    if (provider := config.backend.facts.provider) is not None:
        return TeacherServer(base_url=os.environ.get(provider.address, ""), model=model, api_key_env=provider.key)
    variables = SERVICE_VARIABLES[config.backend]
    return TeacherServer(base_url=os.environ.get(variables.url, ""), model=model, api_key_env=variables.key)


def locate_mirror(config: TrainerConfig, folder: Path) -> TrainerConfig:
    """Return the config whose mirror, where it is a relative folder such as `file:checkpoints`, is below `folder`."""
    parts = urlsplit(config.engine.mirror or "")
    if parts.scheme != "file" or parts.netloc or not parts.path or parts.path.startswith("/"):
        return config
    address = (folder / unquote(parts.path)).resolve().as_uri()
    return config.model_copy(update={"engine": config.engine.model_copy(update={"mirror": address})})


def mirror_address(job: TrainingJob) -> str | None:
    """Return the job's own folder in the object store: another job must never continue from it.

    Without `engine.mirror` it is a repository of the data worker, where the setting `data_worker_uploads` says so.
    """
    address = job.config.engine.mirror
    is_private = job.run.startswith((PROBE_RUN, REPRODUCED_RUN))
    uploads = settings().data_worker_uploads if job.config.backend is BackendName.NATIVE and not is_private else ()
    if address is None and "checkpoints" in uploads:
        return f"data-worker://{job.tenant or settings().tenant}/checkpoints-{job.work_name}"
    return f"{address.rstrip('/')}/{job.work_name}" if address else None


def mirror_folder(job: TrainingJob) -> Path | None:
    """Return the folder of this machine to which the checkpoints of a job are copied; None for none, or a bucket."""
    parts = urlsplit(mirror_address(job) or "")
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


PROBE_RUN = "plan-"
"""Begins the name of the run of a measurement."""
REPRODUCED_RUN = "reproduce-"
"""Begins the name of the run of a training that is carried out again: it leaves nothing elsewhere."""
PLACES = {
    "threads",
    "choices",
    "locks",
    "devices",
    "run",
    "tenant",
    "node",
    "continues",
    "until",
    "template_day",
    "max_spend",
    "data",
    "base",
    "adapter",
    "teacher",
    "reward_model",
    "judges",
    "service",
    "environment",
}
"""Where things lie, who runs it, on which machine, and how far for now: no part of what is trained."""


def list_differences(work: Path, job: TrainingJob) -> list[str]:
    """Return the differences from the job whose work folder this is: `config.method.rank: 8 before, 16 now`."""
    before = read_job(work)
    changes = list_changes(before.model_dump(mode="json"), job.model_dump(mode="json")) if before else ()
    return [f"{name}: {old} before, {new} now" for name, old, new in changes if name.partition(".")[0] not in PLACES]


def read_job(work: Path) -> TrainingJob | None:
    """The job of a work folder as this version reads it; None if there is none, or one that it cannot carry out."""
    path = work / SPEC_FILE
    try:
        return TrainingJob.model_validate_json(path.read_bytes()) if path.is_file() else None
    except ValidationError:
        return None


# Work folders of earlier versions: they name the same training by another digest, because a new setting changes it. The
# folder contains the job (`spec.json`), so the name that this version gives it can be computed. Checkpoints name the
# digest of their config: those of earlier versions are listed in `earlier.json`.

EARLIER_FILE = "earlier.json"


def work_folders_of_earlier_versions(
    trainings: Path, complete: Callable[[TrainingJob], TrainingJob]
) -> Iterator[tuple[Path, Path]]:
    """(folder, folder as this version names it) for each work folder whose name would be another one today.

    `complete` adds to a job what earlier versions did not write: whose it is, and whose work it continues.
    """
    for spec in sorted(trainings.glob(f"*/{SPEC_FILE}")):
        job = read_job(spec.parent)
        if job is None:
            continue
        today = trainings / complete(job).work_name[: len(spec.parent.name)]
        if today != spec.parent and not today.exists():
            yield spec.parent, today


def adopt_earlier_work(folder: Path, job: TrainingJob, settings: Settings) -> Path | None:
    """Give the work folder of an earlier version the name `folder`, if there is one; returns what it was called.

    Raises `Conflict` while a process of that version works there.
    """

    def complete(earlier: TrainingJob) -> TrainingJob:
        changes = {"tenant": earlier.tenant or job.tenant, "continues": job.continues}
        return earlier.model_copy(update=changes) if earlier.run == job.run else earlier

    if folder.exists():
        return None
    for earlier, today in work_folders_of_earlier_versions(folder.parent, complete):
        if today == folder:
            return rename_work_folder(earlier, today, settings)
    return None


def complete_tenant(settings: Settings, job: TrainingJob) -> TrainingJob:
    """The job of a work folder with its tenant: that of its run's chain, or of this machine for a job without a run."""
    facts = read_chain_facts(settings.runs / job.run) if job.run else None
    tenant = job.tenant or (facts or {}).get("tenant") or settings.tenant
    return job.model_copy(update={"tenant": tenant})


def rename_work_folder(earlier: Path, today: Path, settings: Settings) -> Path:
    with device_lock(settings.services / "works" / f"{earlier.name}.lock", run="", wait_s=0):
        config = orjson.loads((earlier / SPEC_FILE).read_bytes())["config"]
        write_json_durably(earlier / EARLIER_FILE, {"configs": [*earlier_configs(earlier), digest(config)]})
        move_folder(DISK, earlier, today)
    return earlier


def earlier_configs(work: Path) -> list[str]:
    """Digests that earlier versions gave to the config of this work folder's job."""
    path = work / EARLIER_FILE
    return list(orjson.loads(path.read_bytes())["configs"]) if path.is_file() else []
