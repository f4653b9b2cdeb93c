"""Which trainers this machine has, what mends the others, and a training as a script of its own."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from trainyard.api import planning
from trainyard.api.records import RunResult, read_result
from trainyard.backends import environments, installing
from trainyard.backends.base import probe
from trainyard.backends.job import TrainingJob
from trainyard.backends.script import backend as script
from trainyard.backends.script import files
from trainyard.compute.gpus import devices_here, training_threads
from trainyard.errors import InvalidInput, NotFound, Refused
from trainyard.settings import Settings
from trainyard.spec.axes import DATA_PORTS, BackendName, Device, Port
from trainyard.spec.chain import ResolvedChain, ResolvedNode
from trainyard.spec.compat.training import BACKENDS
from trainyard.spec.nodes import DataSourceConfig
from trainyard.spec.training import TrainerConfig
from trainyard.stores.artifacts import open_reference
from trainyard.stores.models import resolve_model


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BackendRow(Model):
    """One trainer as this machine sees it."""

    name: BackendName
    available: bool
    version: str
    imports: str
    """`with trainyard`, `ok (4.2 s)`, `broken`, `not tested` or `-`."""
    devices: tuple[Device, ...]
    """What it computes on."""
    fits: bool
    """Whether this machine has one of these."""
    why: str
    fix: str


class BackendTable(Model):
    rows: tuple[BackendRow, ...]


class BackendsInput(Model):
    imports: bool = True
    """Whether to run the import tests that have not been run yet."""


class InstallInput(Model):
    names: tuple[BackendName, ...] = ()
    """None: every one that has an environment of its own."""


def backend_table(settings: Settings, *, imports: bool) -> BackendTable:
    """Every backend: version, whether it imports, whether a device fits, why it is not available, what mends it."""
    here = frozenset(devices_here())
    return BackendTable(rows=tuple(row(name, settings, here, imports=imports) for name in BackendName))


def row(name: BackendName, settings: Settings, here: frozenset[Device], *, imports: bool) -> BackendRow:
    said = tested(name, settings, imports=imports)
    found = probe(name, settings)
    devices = BACKENDS[name].devices
    fits = bool(here & set(devices))
    why, fix = found.why, found.fix
    if found.available and not fits:
        why = f"It computes on {' or '.join(devices)}, and this machine has {' and '.join(sorted(here))}."
    return BackendRow(
        name=name,
        available=found.available,
        version=found.version,
        imports=said,
        devices=devices,
        fits=fits,
        why=why,
        fix=fix,
    )


def tested(name: BackendName, settings: Settings, *, imports: bool) -> str:
    """What is known of the import of a backend; its test is run if that is wanted and it is installed."""
    if name not in environments.ENVIRONMENTS:
        return "with trainyard"
    if not (environments.folder(name, settings) / "bin" / "python").exists():
        return "-"
    health = environments.health(name, settings) if imports else environments.remembered(name, settings)
    if health is None:
        return "not tested"
    return f"ok ({health.seconds:.1f} s)" if health.ok else "broken"


def install(given: InstallInput, settings: Settings, say: Callable[[str], None]) -> BackendTable:
    """Make environments, one after another. Raises what the first that fails raises; those before it stay."""
    for name in given.names or environments.ENVIRONMENTS:
        installing.install(name, settings, say)
    return backend_table(settings, imports=False)


# A training as a script


class EjectInput(Model):
    target: str
    """A template's name, a chain or job file, or the id of a run (or its beginning)."""
    node: str | None = None
    """Id of the trainer, if there are several."""
    into: Path | None = None
    """Default: `<trainer>-script` in the current folder."""


class EjectOutput(Model):
    folder: Path
    rows: int
    command: str


def eject(given: EjectInput, settings: Settings) -> EjectOutput:
    """Write a trainer of a chain as a folder with script, spec and rows.

    Raises `NotFound` (`E-EJECT-NODE`, `E-EJECT-DATA`), `InvalidInput` (`E-EJECT-EXISTS`), `Refused` (the built-in
    script does not carry out this training).
    """
    chain, result = chain_of(given.target, settings)
    node = trainer_of(chain, given.node)
    place = (given.into or Path(f"{node.id}-script")).absolute()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            job = job_of(node, chain, Finder(chain, result, settings, Path(scratch)))
        except NotFound as error:
            raise elsewhere(error, Path(given.target), settings) from error
        reasons = script.reasons(job)
        if reasons:
            raise Refused(reasons)
        counts = files.write(job, place, keep_work=False)
    line = f"cd {shlex.quote(str(place))} && {shlex.quote(sys.executable)} {files.SCRIPT_FILE} {files.SPEC_NAME}"
    return EjectOutput(folder=place, rows=counts["written"], command=line)


def elsewhere(error: NotFound, target: Path, settings: Settings) -> NotFound:
    """The error; one about data with the command that finds them, where paths start at the file's own folder."""
    if error.code != "E-DATA-MISSING" or not target.is_file() or target.parent.resolve() == settings.working_folder:
        return error
    command = f"cd {shlex.quote(str(target.parent))} && trainyard eject {shlex.quote(target.name)}"
    do = f"Start it where its paths start, by `{command}` if that is its own folder; or correct the path."
    return NotFound(error.what, why=error.why, do=do, code=error.code)


def chain_of(target: str, settings: Settings) -> tuple[ResolvedChain, RunResult | None]:
    """The chain that a run carried out, with its result; or the one of a template or file."""
    found = sorted(settings.runs.glob(f"{target}*/chain.json")) if target.replace("-", "").isalnum() else []
    if len(found) == 1 and target not in planning.NAMES:
        return ResolvedChain.model_validate_json(found[0].read_bytes()), read_result(found[0].parent)
    return planning.resolved(planning.asked(target).spec, settings), None


def trainer_of(chain: ResolvedChain, wanted: str | None) -> ResolvedNode:
    trainers = [node for node in chain.nodes if node.type == "trainer"]
    chosen = [node for node in trainers if wanted in (None, node.id)]
    if len(chosen) != 1:
        names = ", ".join(node.id for node in trainers) or "none"
        raise NotFound(
            f"The chain has no single trainer {wanted!r}." if wanted else "It is not clear which trainer is meant.",
            why=f"Its trainers are: {names}.",
            do="Name one with --node.",
            code="E-EJECT-NODE",
        )
    return chosen[0]


class Finder:
    """Where the inputs of a node are: in the run's result, in the store, or in the files of a data source."""

    def __init__(self, chain: ResolvedChain, result: RunResult | None, settings: Settings, scratch: Path) -> None:
        self.chain, self.settings, self.scratch = chain, settings, scratch
        self.made = {one.id: one.outputs for one in result.nodes} if result else {}
        self.looks = planning.look_up(chain, settings)

    def folder(self, node: ResolvedNode, port: Port) -> Path | None:
        """The folder that fills a port of `node`; None if nothing does. Raises `NotFound` (`E-EJECT-DATA`)."""
        for source in node.inputs.get(port, ())[:1]:
            output = self.looks[source.node_id].output
            outputs = self.made.get(source.node_id) or (output.outputs if output else {})
            if source.port in outputs:
                return open_reference(outputs[source.port])
            return self.read(self.chain.node(source.node_id), source.port)
        return None

    def read(self, source: ResolvedNode, port: Port) -> Path:
        if not isinstance(source.config, DataSourceConfig):
            raise NotFound(
                f"What {source.id} makes is not there yet.",
                why="A script gets its rows as a file.",
                do="Run the chain first, then eject the id of that run.",
                code="E-EJECT-DATA",
            )
        folder = self.scratch / source.id
        read = load("trainyard.data.sources").read_source
        produced = read(source.config, folder, settings=self.settings, report=lambda _part, _text: None)
        return folder / str(produced.outputs[port].folder)


def load(module: str) -> Any:
    """Import what only this verb needs: the readers of every file format take half a second."""
    return import_module(module)


def job_of(node: ResolvedNode, chain: ResolvedChain, inputs: Finder) -> TrainingJob:
    """The trainer as a job of the script backend."""
    config, settings = node.config, inputs.settings
    if not isinstance(config, TrainerConfig):
        raise InvalidInput(f"{node.id} is no trainer.", code="E-EJECT-NODE")
    ports: Iterable[Port] = (port for port in node.inputs if port in DATA_PORTS)
    data = {port: folder for port in ports if (folder := inputs.folder(node, port)) is not None}
    model, adapter = inputs.folder(node, Port.MODEL), inputs.folder(node, Port.ADAPTER)
    base = resolve_model(str(model or config.base_model or settings.default_base_model), settings)
    own = config.launch.script if config.backend is BackendName.SCRIPT else None
    launch = config.launch.model_copy(update={"script": own})
    return TrainingJob(
        config=config.model_copy(update={"backend": BackendName.SCRIPT, "launch": launch}),
        data={port: str(folder) for port, folder in data.items()},
        base=base.location,
        base_sha256=base.sha256,
        adapter=str(adapter) if adapter else None,
        threads=training_threads(settings.threads),
        locks=str(settings.services / "devices"),
        run=chain.digest[:12],
        node=node.id,
    )
