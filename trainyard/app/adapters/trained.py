"""The adapter that a job has trained, by the job's name: what `chat`, `serve`, `merge`, `convert` and `register` take.

A word is a name that a user gave (`desk` finds the run `desk-7f12c9b8`), the name of a run, an id or the beginning of
one; `WORD/TRAINER` names one trainer of several. Nothing but the runs' folders is read: no server has to run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.app.chains.next_commands import list_ancestors
from trainyard.app.context import Context
from trainyard.app.data.row_counts import describe_rows
from trainyard.app.live.jobs import find_recorded
from trainyard.app.names import find_ended_run, require_single
from trainyard.app.run_folders import FoundArtifact, RunFolder, find_artifacts, missing_result_error, open_store
from trainyard.app.run_records import data_sources
from trainyard.errors import InvalidInput, NotFound, TrainyardError
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.serve.base_sources import NamedAdapter, find_adapter, full_name
from trainyard.serve.version_facts import base_facts
from trainyard.spec.axes.data import Port
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion, files_digest, parse_name
from trainyard.stores.artifacts import Reference, open_reference
from trainyard.stores.jobs import JobStore
from trainyard.stores.whole import describe_files


@dataclass(frozen=True)
class TrainedAdapter:
    """Adapter that one trainer of an ended job left."""

    job: str
    """Id of the job."""
    name: str
    """Name of its run, or of the job of a manager."""
    tenant: str
    node: str
    reference: Reference
    report: Reference | None = None
    """The evaluation of this very adapter, where its run has one."""
    sources: tuple[Any, ...] = ()
    """What it was trained on, as far as its run recorded that."""
    rows: JsonMapping = field(default_factory=dict)
    """How its rows were made and filtered."""

    @property
    def folder(self) -> Path:
        return self.reference.path

    @property
    def is_adapter(self) -> bool:
        return self.reference.kind is Port.ADAPTER

    def as_version(self) -> AdapterVersion:
        """Return the same with the facts that a version has, for its card; it has no number."""
        facts = {**base_facts(self.folder), "data": list(self.sources), "rows": dict(self.rows)}
        return AdapterVersion(tenant=self.tenant, role="adapter", version=0, sha256=self.reference.sha256, facts=facts)

    @property
    def label(self) -> str:
        """Under which a server loads it: other weights of the same job have another one."""
        return f"{self.job}-{self.reference.sha256[:8]}"


def find_trained(word: str, context: Context) -> TrainedAdapter:
    """Return the adapter or model of the job that a word names, every byte compared with its digest.

    Raises `NotFound` (`E-JOB-NOT-FOUND`, `E-NODE`, `E-NOT-FOUND`), `Conflict` (`E-JOB-NOT-FOUND`) for several jobs,
    `InvalidInput` (`E-NODE`) for several trainers, and `Corrupt` (`E-CORRUPT`).
    """
    name, _, node = word.partition("/")
    if recorded := find_recorded(name, context.settings, context.caller.tenant):
        return read_recorded_adapter(name, recorded, context)
    run, result = find_ended_run(name, context)
    store = open_store(context)
    results = [artifact for artifact in find_artifacts(run, store) if artifact.port in (Port.ADAPTER, Port.MODEL)]
    trained = [artifact for artifact in results if run.node_type(artifact.node) == "trainer"]
    adapter = choose_trainer(trained, run, node, name)
    reference = adapter.reference
    if reference is None:
        raise missing_result_error(adapter)
    reference = reference.model_copy(update={"uri": adapter.folder(store).as_uri()})
    open_reference(reference)
    report = next(
        (artifact.reference for artifact in find_artifacts(run, store) if is_report_on(artifact, reference.sha256)),
        None,
    )
    return TrainedAdapter(
        job=result.id or run.id, name=result.name or run.name, tenant=run.tenant or context.settings.tenant,
        node=adapter.node, reference=reference, report=report,
        sources=tuple(reference.facts.get("sources") or data_sources(run.path, context.settings.artifacts)),
        rows=describe_rows(run.path),
    )  # fmt: skip


def choose_trainer(trained: list[FoundArtifact], run: RunFolder, node: str, word: str) -> FoundArtifact:
    """Return the last trainer of a run, or the one of that id. Controls, and trainers that another continues, are left
    out.

    Raises `NotFound` (`E-NODE`) where there is none, `InvalidInput` (`E-NODE`) where several are left.
    """
    nodes: dict[str, JsonMapping] = {
        str(entry["id"]): entry for entry in run.chain.get("nodes") or () if isinstance(entry, dict)
    }
    if node:
        left = [artifact for artifact in trained if artifact.node == node]
    else:
        candidates = [artifact for artifact in trained if not (nodes[artifact.node].get("config") or {}).get("control")]
        continued = {before for artifact in candidates for before in list_ancestors(artifact.node, nodes)}
        left = [artifact for artifact in candidates if artifact.node not in continued]
    names = ", ".join(f"{word}/{artifact.node}" for artifact in trained)
    if len(left) == 1:
        return left[0]
    if not left:
        raise NotFound(
            f"The job {word} has no trained adapter{f' of {node!r}' if node else ''}.",
            do=f"Name one of {names}." if names else "Name a job whose trainer has ended.",
            code="E-NODE",
        )
    raise InvalidInput(f"The job {word} has {len(left)} adapters.", do=f"Name one of {names}.", code="E-NODE")


def is_report_on(artifact: FoundArtifact, sha256: str) -> bool:
    """Return whether a result is an evaluation of the adapter with this digest."""
    if artifact.port is not Port.REPORT or artifact.reference is None or artifact.output is None:
        return False
    path = artifact.reference.path / "report.json"
    return path.is_file() and f'"{sha256}"' in path.read_text(encoding="utf-8")


def read_recorded_adapter(word: str, rows: list[JsonObject], context: Context) -> TrainedAdapter:
    """Return the result of a job of a `TrainingManager`. Raises as `find_trained`."""
    record = JobStore(context.settings.home / "jobs").get(require_single(rows, word)["run_id"])
    folder = Path(record.result)
    if not record.result or not folder.is_dir():
        raise NotFound(
            f"The job {word} has no trained adapter.", why=f"It is {record.state.value}.",
            do="Name a job that is completed.", code="E-NODE",
        )  # fmt: skip
    kind = Port.ADAPTER if (folder / "adapter_config.json").is_file() else Port.MODEL
    reference = Reference(uri=folder.as_uri(), sha256=files_digest(describe_files(folder)), kind=kind)
    return TrainedAdapter(rows[0]["id"], record.name or record.id, record.tenant, "trainer", reference)


def find_served(word: str, context: Context) -> NamedAdapter:
    """Return the adapter that a word names: a version of the registry, else the adapter of a job.

    Raises what `find_adapter` raises where no job has the name either, what `find_trained` raises, and `InvalidInput`
    (`E-ADAPTER-INVALID`) for a whole model, which has no base.
    """
    tenant, settings = context.caller.tenant, context.settings
    settings = settings.model_copy(update={"tenant": tenant}) if tenant else settings
    try:
        adapter = find_adapter(word, settings)
    except (NotFound, InvalidInput) as error:
        if error.code not in ("E-ADAPTER-NOT-FOUND", "E-NAME"):
            raise
        return find_served_job(word, context, error)
    if tenant and parse_name(adapter.name)[0] != tenant:
        raise NotFound(
            f"There is no adapter {word!r}.", do="List them with `trainyard adapters list`.", code="E-ADAPTER-NOT-FOUND"
        )
    return adapter


def find_served_job(word: str, context: Context, error: TrainyardError) -> NamedAdapter:
    """Return the adapter of a job as a server loads it. `error` is why no version of the registry has this name."""
    trained = find_named_job(word, context, error)
    require_adapter(trained)
    return NamedAdapter(trained.label, trained.folder, alias=word if word != trained.label else None)


def require_adapter(trained: TrainedAdapter) -> None:
    """Raise `InvalidInput` (`E-ADAPTER-INVALID`) for a job that trained a whole model."""
    if not trained.is_adapter:
        raise InvalidInput(
            f"The job {trained.name} trained a whole model, not an adapter.",
            do=f"Serve it: trainyard serve {trained.name}.",
            code="E-ADAPTER-INVALID",
        )


def find_version_or_job(word: str, context: Context) -> AdapterVersion | TrainedAdapter:
    """Return the version of the registry with this name, else the result of the job with this name.

    Raises the registry's error (`E-ADAPTER-NOT-FOUND`, `E-NAME`) where no job has the name either, and what
    `find_trained` raises.
    """
    try:
        return AdapterRegistry(context.settings.adapters).show(full_name(word, context.settings))
    except (NotFound, InvalidInput) as error:
        if error.code not in ("E-ADAPTER-NOT-FOUND", "E-NAME"):
            raise
        return find_named_job(word, context, error)


def find_named_job(word: str, context: Context, error: TrainyardError) -> TrainedAdapter:
    """Return the trained adapter of a job. `error` is why no version of the registry has this name; raises it,
    too.
    """
    try:
        return find_trained(word, context)
    except NotFound as missing:
        if missing.code != "E-JOB-NOT-FOUND":
            raise
        do = f"{error.do} An ended job has one, too: `trainyard jobs list`."
        raise type(error)(error.what, why=error.why or missing.why, do=do, code=error.code) from missing
