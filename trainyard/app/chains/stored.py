"""Stored chains: created, listed, shown, changed, deleted and run. A run is by revision, never by an inline graph."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from trainyard.app.chains.run import start
from trainyard.app.context import Context
from trainyard.app.live.jobs import open_index
from trainyard.app.plan.check import FileCheck
from trainyard.app.plan.parse import deep_merge, find_file, parse_chain, parse_request
from trainyard.app.plan.refusals import list_refusals
from trainyard.app.plan.resolve import resolve_with_decisions
from trainyard.app.responses import Response
from trainyard.app.run_records import RunResult
from trainyard.app.runs import connect_runs
from trainyard.errors import Conflict, Denied, InvalidInput, Reason, TrainyardError, to_reason
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.operations import chains as requests
from trainyard.operations.chains import DiffInput
from trainyard.spec.chain import ChainSpec, ResolvedChain
from trainyard.spec.load.files import load_value
from trainyard.spec.model_schema import list_changes
from trainyard.spec.states import JobState
from trainyard.stores.chain_revisions import ChainStore, StoredChain, nodes_by_id
from trainyard.stores.live.job_ids import REVISION_TAG
from trainyard.stores.live.job_index import JobQuery

MOST_CHANGES = 20
"""Changed settings that a conflict lists one by one."""
SHOWN_CHARS = 80
ETAG = re.compile(r'(?:W/)?"?([1-9][0-9]{0,8})-([0-9a-f]+)"?')


class Revision(Response):
    revision: int
    digest: str
    author: str
    created: float


class ChainSummary(Response):
    """The newest revision of a stored chain."""

    id: str
    name: str
    description: str
    tenant: str
    revision: int
    digest: str
    """Of the resolved chain: the same on every surface. A `method: auto` is decided on this machine."""
    nodes: int
    author: str
    created: float
    etag: str


class ChainList(Response):
    chains: tuple[ChainSummary, ...]
    total: int


class LastRun(Response):
    """The newest run of a stored chain."""

    id: str
    """The job's id, or the run's own where no trainer is part of it."""
    state: JobState
    revision: int


class ChainDetail(ChainSummary):
    body: JsonObject
    """As a file has it: a chain, a job, or the call of a template."""
    revisions: tuple[Revision, ...]
    check: FileCheck | None = None
    """Whether it would run here and now; only when it is stored."""
    last_run: LastRun | None = None
    """When it is shown; None where there is no run yet, and while Prefect does not answer."""


class DeletedChain(Response):
    id: str
    name: str
    revisions: int


class ChainRun(RunResult):
    """A run of a stored chain."""

    chain_id: str
    revision: int


class RunOfChain(Response):
    id: str
    """The job's id, or the run's own where no trainer is part of it."""
    run_id: str
    name: str
    revision: int
    state: JobState
    detail: str
    message: str
    created: float | None
    started: float | None
    seconds: float
    url: str


class RunsOfChain(Response):
    id: str
    name: str
    runs: tuple[RunOfChain, ...]


def store_of(context: Context) -> ChainStore:
    return ChainStore(context.settings.chains)


def list_chains(request: requests.StoredChainsInput, context: Context) -> ChainList:
    chains = [chain for chain in store_of(context).list(context.caller.tenant) if (request.name or "") in chain.name]
    page = chains[request.offset : request.offset + request.limit]
    return ChainList(chains=tuple(summary_of(chain) for chain in page), total=len(chains))


def create_chain(request: requests.StoreChainInput, context: Context) -> ChainDetail:
    """Store a chain. Raises `Refused` with every reason for one that is not valid: it is not stored then."""
    chain, check = check_chain_body(request, context.caller.tenant, context)
    return detail_of(store_of(context).create(chain), context, check)


def show_chain(request: requests.ShowChainInput, context: Context) -> ChainDetail:
    chain = find_revision(request, context)
    return detail_of(chain, context).model_copy(update={"last_run": find_last_run(chain, context)})


def find_last_run(chain: StoredChain, context: Context) -> LastRun | None:
    """Return the newest run of a chain: from an index of jobs that is in step with Prefect, else from Prefect."""
    index = open_index(context.settings)
    now, fresh = time.time(), index.freshness()
    if fresh.is_kept(now):
        if fresh.as_of(now) is not None:
            return None
        rows = index.select(JobQuery(tenant=chain.tenant, text=chain.id)).rows
        if any(chain.id in row["tags"] for row in rows) or has_trainer(chain):
            return last_of(chain, rows)
    try:
        return last_of(chain, connect_runs(context.settings).list_tagged(chain.id, 1))
    except TrainyardError:
        return None


def last_of(chain: StoredChain, rows: Iterable[JsonMapping]) -> LastRun | None:
    """Return the first of some rows that is a run of the chain."""
    runs = (row for row in rows if chain.id in row["tags"])
    return next((LastRun(id=row["id"], state=row["state"], revision=revision_of(row["tags"])) for row in runs), None)


def has_trainer(chain: StoredChain) -> bool:
    """Return whether every run of a chain is a job; the index has no other runs."""
    nodes = chain.body.get("nodes")
    return not isinstance(nodes, list) or any(node.get("type") == "trainer" for node in nodes)


def update_chain(request: requests.UpdateChainInput, context: Context) -> ChainDetail:
    """Store a new revision; an unchanged chain makes none.

    Raises `Conflict` (`E-CONFLICT`) with the differences where another revision than the edited one is the newest.
    """
    store = store_of(context)
    newest = store.find(request.chain, context.caller.tenant)
    if not request.if_match:
        raise InvalidInput(
            f"An update of {newest.name} ({newest.id}) needs if_match, the ETag of the revision that was edited.",
            why="Without it, what somebody else has written meanwhile would be overwritten.",
            do=f"Read the chain, and send its etag; now it is {newest.etag}.", code="E-PARAMETER",
        )  # fmt: skip
    chain, check = check_chain_body(request, newest.tenant, context)
    chain = chain.model_copy(update={"id": newest.id, "revision": newest.revision + 1})
    if request.if_match.removeprefix("W/").strip('"') != newest.etag:
        raise edit_conflict_error(store, newest, request.if_match, chain)
    if chain.body == newest.body:
        return detail_of(newest, context, check)
    try:
        return detail_of(store.write(chain), context, check)
    except Conflict as error:
        raise edit_conflict_error(store, store.find(newest.id, newest.tenant), request.if_match, chain) from error


def delete_chain(request: requests.StoredName, context: Context) -> DeletedChain:
    """Remove a chain. Raises `Conflict` (`E-CONFLICT`) naming its runs that have not ended."""
    store = store_of(context)
    chain = store.find(request.chain, context.caller.tenant)
    running = [row for row in connect_runs(context.settings).list_tagged(chain.id) if not row["ended"]]
    if running:
        named = ", ".join(f"{row['name']} ({row['id']}, {row['state']})" for row in running[:5])
        more = f" and {len(running) - 5} more" if len(running) > 5 else ""
        raise Conflict(
            f"The chain {chain.name} ({chain.id}) has runs that have not ended: {named}{more}.",
            do="Wait for their end, or cancel them: `trainyard jobs cancel ID`.", code="E-CONFLICT",
        )  # fmt: skip
    store.delete(chain)
    return DeletedChain(id=chain.id, name=chain.name, revisions=chain.revision)


def run_chain(request: requests.RunChainInput, context: Context) -> ChainRun:
    """Start a run of a revision. Raises `Refused` where this machine cannot carry it out."""
    chain = find_revision(request, context)
    options = request.model_dump(include={"parameters", "watch", "refresh", "refresh_from", "tags", "yes", "group"})
    tags = (chain.id, f"revision-{chain.revision}")
    result = start(requests.RunInput(target=chain.body, **options), context, tags)
    return ChainRun(**dict(result), chain_id=chain.id, revision=chain.revision)


def list_chain_runs(request: requests.ChainRunsInput, context: Context) -> RunsOfChain:
    chain = store_of(context).find(request.chain, context.caller.tenant)
    rows = connect_runs(context.settings).list_tagged(chain.id, request.limit, request.offset)
    fields = RunOfChain.model_fields.keys() - {"revision"}
    runs = (
        RunOfChain(**{name: row[name] for name in fields}, revision=revision_of(row["tags"])) for row in rows
    )  # fmt: skip
    return RunsOfChain(id=chain.id, name=chain.name, runs=tuple(runs))


def revision_of(tags: Iterable[str]) -> int:
    """Return the revision that a run carries out, from its tags; 0 where somebody has removed the tag."""
    return next((int(match[1]) for tag in tags if (match := REVISION_TAG.fullmatch(tag))), 0)


def find_revision(request: requests.ShowChainInput | requests.RunChainInput, context: Context) -> StoredChain:
    store = store_of(context)
    chain = store.find(request.chain, context.caller.tenant)
    return chain if request.revision in (None, chain.revision) else store.show(chain, request.revision or 0)


def summary_of(chain: StoredChain) -> ChainSummary:
    fields = chain.model_dump(include=set(ChainSummary.model_fields))
    return ChainSummary(**fields, etag=chain.etag)


def detail_of(chain: StoredChain, context: Context, check: FileCheck | None = None) -> ChainDetail:
    store = store_of(context)
    newest = store.find(chain.id, chain.tenant)
    revisions = (store.show(newest, number) for number in range(1, newest.revision + 1))
    rows = tuple(Revision(**revision.model_dump(include=set(Revision.model_fields))) for revision in revisions)
    return ChainDetail(**dict(summary_of(chain)), body=chain.body, revisions=rows, check=check)


# Storage


def check_chain_body(
    request: requests.StoreChainInput | requests.UpdateChainInput, tenant: str, context: Context
) -> tuple[StoredChain, FileCheck]:
    """Return the chain as it is stored, and whether it would run here and now. Raises `Refused` for one that is not
    valid.
    """
    body = body_of(request.file, request.spec, tenant)
    chain_request = parse_request(body)
    if tenant and chain_request.spec.tenant != tenant:
        raise Denied(
            f"The chain is of the tenant {chain_request.spec.tenant!r}, and is stored for {tenant!r}.",
            do="Leave out its tenant.", code="E-SCOPE",
        )  # fmt: skip
    resolved, decisions = resolve_with_decisions(chain_request.spec, context.settings)
    check = check_of(resolved, context)
    notes = (
        *chain_request.notes,
        *(f"{decision.node}: {decision.lines()[0]}; the machine that runs it decides" for decision in decisions),
    )
    chain = StoredChain(
        id="", tenant=chain_request.spec.tenant, revision=0, name=chain_request.spec.name,
        description=chain_request.spec.description,
        body=chain_request.spec.model_dump(mode="json", exclude_unset=True) if "nodes" in body else body,
        digest=resolved.digest, nodes=len(resolved.nodes), author=context.caller.name,
    )  # fmt: skip
    return chain, check.model_copy(update={"notes": notes})


def body_of(file: Path | None, spec: Mapping[str, object], tenant: str) -> dict[str, object]:
    """Return the keys of a file with those that were given laid over it, for the tenant that it belongs to."""
    below = {} if file is None else load_value(find_file(str(file)))
    if not isinstance(below, Mapping):
        parse_chain(below)  # raises with the reason
        below = {}
    body: JsonObject = to_jsonable_python(deep_merge(below, spec))
    if tenant in ("", ChainSpec.model_fields["tenant"].default):
        return body
    if "template" in body and "nodes" not in body:
        parameters = dict(body.get("parameters") or {})
        publish = parameters.get("publish", {})
        if isinstance(publish, Mapping):
            body["parameters"] = {**parameters, "publish": {"tenant": tenant, **publish}}
    elif not (isinstance(body.get("dataset"), Mapping) and "tenant_id" in body["dataset"]):
        body = {"tenant": tenant, **body}
    return body


def check_of(chain: ResolvedChain, context: Context) -> FileCheck:
    """Return whether a valid chain would run on this machine now: files, models and trainers may come later."""
    reasons: list[Reason]
    try:
        reasons = list_refusals(chain, context.settings)
    except TrainyardError as error:
        reasons = [to_reason(error, None, "")]
    rows = tuple({**reason.as_dict(), "line": reason.line()} for reason in reasons)
    return FileCheck(file=chain.name, ok=not rows, digest=chain.digest, nodes=len(chain.nodes), reasons=rows)


def edit_conflict_error(store: ChainStore, newest: StoredChain, if_match: str, update: StoredChain) -> Conflict:
    """Return two writers of one chain: what the other one has changed since the edited revision, and what this one
    changes.
    """
    why, edited = f"It is at revision {newest.revision} now, stored by {newest.author}.", ETAG.fullmatch(if_match)
    base = newest
    if edited and 1 <= int(edited[1]) < newest.revision:
        base = store.show(newest, int(edited[1]))
        why += f" Changed since revision {base.revision}: {describe_difference(base.body, newest.body)}."
        why += f" Changed by you: {describe_difference(base.body, update.body)}."
    else:
        why += f" Yours differs from it in: {describe_difference(newest.body, update.body)}."
    return Conflict(
        f"The chain {newest.name} ({newest.id}) was changed meanwhile: {if_match!r} is not its ETag.", why=why,
        do=f"Read revision {newest.revision}, apply your change to it, and send its etag {newest.etag}.",
        code="E-CONFLICT",
    )  # fmt: skip


def describe_difference(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """`nodes.trainer.config.stage: 'sft' -> 'dpo'; …`, and how many more there are."""
    changes = list(list_changes(nodes_by_id(before), nodes_by_id(after)))
    lines = [f"{name}: {format_value(old)} -> {format_value(new)}" for name, old, new in changes[:MOST_CHANGES]]
    lines += [f"and {len(changes) - MOST_CHANGES} more"] if len(changes) > MOST_CHANGES else []
    return "; ".join(lines) or "nothing"


def format_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 1]}…"


class SettingChange(Response):
    name: str
    """Dotted, such as `nodes.trainer.config.stage`."""
    before: Any = None
    after: Any = None


class RevisionDiff(Response):
    id: str
    name: str
    before: int
    after: int
    changes: tuple[SettingChange, ...]


def show_difference(request: DiffInput, context: Context) -> RevisionDiff:
    """Raises `NotFound` (`E-NOT-FOUND`) for a revision that there is not."""
    store = store_of(context)
    newest = store.find(request.chain, context.caller.tenant)
    first, second = store.show(newest, request.before), store.show(newest, request.after or newest.revision)
    differences = list_changes(nodes_by_id(first.body), nodes_by_id(second.body))
    changes = tuple(SettingChange(name=name, before=old, after=new) for name, old, new in differences)
    return RevisionDiff(id=newest.id, name=newest.name, before=first.revision, after=second.revision, changes=changes)
