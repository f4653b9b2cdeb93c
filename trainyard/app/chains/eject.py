"""A training as a script of its own: a folder with a plain script to edit and run by hand, its spec and its rows."""

from __future__ import annotations

import shlex
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from trainyard.app.context import Context
from trainyard.app.names import find_run
from trainyard.app.plan.estimate import find_results
from trainyard.app.plan.parse import NAMES, parse_request
from trainyard.app.plan.resolve import resolve_chain
from trainyard.app.responses import Response
from trainyard.app.run_folders import CHAIN_FILE
from trainyard.app.run_records import RunResult, read_result
from trainyard.backends.job import TrainingJob, prepare_job
from trainyard.backends.script import files
from trainyard.backends.script.backend import BACKEND as SCRIPT
from trainyard.data.sources import read_source
from trainyard.errors import InvalidInput, NotFound, Refused, Unavailable
from trainyard.operations.chains import EjectInput
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import DATA_PORTS, Port
from trainyard.spec.chain import ResolvedChain, ResolvedNode
from trainyard.spec.nodes import DataSourceConfig
from trainyard.spec.training import TrainerConfig
from trainyard.stores.artifacts import open_reference


class EjectOutput(Response):
    folder: Path
    rows: int
    command: str


def eject(request: EjectInput, context: Context) -> EjectOutput:
    """Write a trainer of a chain as a folder with script, spec and rows.

    Raises `NotFound` (`E-NODE`, `E-DATA-NOT-FOUND`), `InvalidInput` (`E-FILE-EXISTS`), `Refused` (the built-in
    script does not carry out this training).
    """
    settings = context.settings
    chain, result = chain_of(request.target, context)
    node = trainer_of(chain, request.node)
    folder = (request.into or Path(f"{node.id}-script")).absolute()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            job = job_of(node, chain, Finder(chain, result, settings, Path(scratch)))
        except NotFound as error:
            raise add_folder_hint(error, Path(request.target), settings) from error
        reasons = SCRIPT.reasons(job)
        if reasons:
            raise Refused(reasons)
        counts = files.write(job, folder, keep_work=False)
    line = f"cd {shlex.quote(str(folder))} && {shlex.quote(sys.executable)} {files.SCRIPT_FILE} {files.SPEC_NAME}"
    return EjectOutput(folder=folder, rows=counts["written"], command=line)


def add_folder_hint(error: NotFound, target: Path, settings: Settings) -> NotFound:
    """Return the error; one about data with the command that finds them, where paths start at the file's own folder."""
    if error.code != "E-DATA-NOT-FOUND" or not target.is_file() or target.parent.resolve() == settings.working_folder:
        return error
    command = f"cd {shlex.quote(str(target.parent))} && trainyard eject {shlex.quote(target.name)}"
    do = f"Start it where its paths start, by `{command}` if that is its own folder; or correct the path."
    return NotFound(error.what, why=error.why, do=do, code=error.code)


def chain_of(target: str, context: Context) -> tuple[ResolvedChain, RunResult | None]:
    """Return the chain that a job ran, with its result; or the one of a template or file."""
    settings = context.settings
    if target not in NAMES and not Path(target).is_file():
        with suppress(NotFound, Unavailable):  # then the error says what else it could have been
            folder = find_run(target, context).path
            return ResolvedChain.model_validate_json((folder / CHAIN_FILE).read_bytes()), read_result(folder)
    return resolve_chain(parse_request(target).spec, settings), None


def trainer_of(chain: ResolvedChain, node_id: str | None) -> ResolvedNode:
    trainers = [node for node in chain.nodes if node.type == "trainer"]
    matches = [node for node in trainers if node_id in (None, node.id)]
    if len(matches) != 1:
        names = ", ".join(node.id for node in trainers) or "none"
        raise NotFound(
            f"The chain has no single trainer {node_id!r}." if node_id else "It is not clear which trainer is meant.",
            why=f"Its trainers are: {names}.",
            do="Name one with --node.",
            code="E-NODE",
        )
    return matches[0]


class Finder:
    """Where the inputs of a node are: in the run's result, in the store, or in the files of a data source."""

    def __init__(self, chain: ResolvedChain, result: RunResult | None, settings: Settings, scratch: Path) -> None:
        self.chain, self.settings, self.scratch = chain, settings, scratch
        self.outputs = {node.id: node.outputs for node in result.nodes} if result else {}
        self.looks = find_results(chain, settings)

    def folder(self, node: ResolvedNode, port: Port) -> Path | None:
        """Return the folder that fills a port of `node`; None if nothing does. Raises `NotFound`
        (`E-DATA-NOT-FOUND`).
        """
        for source in node.inputs.get(port, ())[:1]:
            output = self.looks[source.node_id].output
            outputs = self.outputs.get(source.node_id) or (output.outputs if output else {})
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
                code="E-DATA-NOT-FOUND",
            )
        folder = self.scratch / source.id
        produced = read_source(source.config, folder, settings=self.settings, report=lambda _part, _text: None)
        return folder / str(produced.outputs[port].folder)


def job_of(node: ResolvedNode, chain: ResolvedChain, inputs: Finder) -> TrainingJob:
    """Return the trainer as a job of the script backend."""
    config, settings = node.config, inputs.settings
    if not isinstance(config, TrainerConfig):
        raise InvalidInput(f"{node.id} is not a trainer.", code="E-NODE")
    ports = (port for port in node.inputs if port in DATA_PORTS)
    data = {port: str(folder) for port in ports if (folder := inputs.folder(node, port)) is not None}
    model, adapter = inputs.folder(node, Port.MODEL), inputs.folder(node, Port.ADAPTER)
    script = config.launch.script if config.backend is BackendName.SCRIPT else None
    launch = config.launch.model_copy(update={"script": script})
    return prepare_job(
        config.model_copy(update={"backend": BackendName.SCRIPT, "launch": launch}),
        str(model or config.base_model or settings.default_base_model),
        settings,
        data=data,
        adapter=str(adapter) if adapter else None,
        run=chain.digest[:12],
        node=node.id,
    )
