"""The operations on stored chains, but for those that need a server of Prefect."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from trainyard import here
from trainyard.app.context import Caller, Context
from trainyard.errors import Conflict, Denied, InvalidInput, NotFound, Refused, TrainyardError, Unavailable
from trainyard.operations.chains import stored_chain_text
from trainyard.operations.fields import FieldError
from trainyard.settings import settings
from trainyard.spec.states import JobState
from trainyard.stores.live.job_index import JobIndex
from trainyard.surfaces.invocation import build_request, execute_operation

ROWS = '{"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]}\n'
BODIES = REPOSITORY / "tests" / "resources" / "bodies"
ACME = Caller("laptop", tenant="acme", remote=True)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text(ROWS * 8)
    monkeypatch.chdir(tmp_path)
    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def context() -> Context:
    return Context(settings(), say=lambda _text: None)


Do = Callable[..., Any]


@pytest.fixture
def do(context: Context) -> Do:
    """Carry out an operation as a caller, by default the owner."""

    def carry(operation: str, caller: Caller | None = None, /, **fields: Any) -> Any:
        caller_context = replace(context, caller=caller) if caller else context
        return execute_operation(operation, build_request(operation, fields), caller_context)

    return carry


def make_body(steps: int = 3, name: str = "guide", **more: Any) -> dict[str, Any]:
    trainer = {"type": "trainer", "config": {"stage": "sft", "hyperparameters": {"max_steps": steps}}}
    return {"name": name, "nodes": [{"type": "data_source", "config": {"path": "rows.jsonl"}}, trainer], **more}


def test_a_body_is_stored_and_has_the_digest_of_its_file(do: Do, tmp_path: Path) -> None:
    stored = do("chains create", spec=make_body())
    assert (stored.name, stored.revision, stored.nodes, stored.author) == ("guide", 1, 2, "owner")
    assert stored.check.ok, stored.check.reasons
    (tmp_path / "chain.json").write_text(json.dumps(make_body()))
    assert stored.digest == here.check(files=(tmp_path / "chain.json",)).files[0].digest
    assert here.check(files=(stored.body,)).files[0].digest == stored.digest
    assert here.chains.create(file=tmp_path / "chain.json", spec={"name": "other"}).nodes == 2
    assert [chain.name for chain in do("chains list").chains] == ["other", "guide"]
    assert do("chains list", name="uid").total == 1
    assert [chain.name for chain in do("chains list", limit=1, offset=1).chains] == ["guide"]


def test_the_given_chain_of_three_nodes_is_stored_as_written(do: Do) -> None:
    chain = json.loads((BODIES / "chain-three-nodes.json").read_text())
    stored = do("chains create", spec=chain)
    assert (stored.name, stored.nodes) == ("qa-pipeline", 3)
    assert not stored.check.ok  # this machine has neither /data/docs nor llama3.2
    shown_chain = do("chains show", chain="qa-pipeline")
    chain["nodes"][2]["config"]["method"] = {"type": "lora"}
    assert (shown_chain.body, shown_chain.digest) == (chain, stored.digest)


def test_a_chain_that_is_not_valid_is_refused_with_every_reason(do: Do) -> None:
    wrong = {"nodes": [{"type": "trainr"}, {"type": "trainer", "config": {"foo": 1}}]}
    with pytest.raises(Refused) as refused:
        do("chains create", spec=wrong)
    assert [reason.code for reason in refused.value.reasons][:2] == ["E-SPEC-TYPE", "E-SPEC-KEY"]
    for nothing in ({}, {"nodes": []}, {"nodes": "x"}, {"name": "x"}):
        with pytest.raises(Refused):
            do("chains create", spec=nothing)
    assert do("chains list").total == 0


@pytest.mark.parametrize("count", [2, 10_000])
def test_a_cycle_is_refused_quickly(do: Do, count: int) -> None:
    nodes = [
        {"id": f"n{index}", "type": "validator", "needs": [f"n{(index - 1) % count}"], "config": {}}
        for index in range(count)
    ]
    start_s = time.monotonic()
    with pytest.raises(Refused, match=r"cycle|circle"):
        do("chains create", spec={"nodes": nodes})
    assert time.monotonic() - start_s < 60


@pytest.mark.integration
def test_a_chain_of_ten_thousand_nodes_is_answered_quickly(do: Do) -> None:
    nodes = [{"type": "data_source", "config": {"path": "rows.jsonl"}}, *({"type": "validator"} for _ in range(9_999))]
    start_s = time.monotonic()
    assert do("chains create", spec={"nodes": nodes}).nodes == 10_000
    with pytest.raises(Refused, match="E-SPEC-SYNTAX"):
        do("chains create", spec={"nodes": [*nodes, {"type": "trainer"}]})
    assert time.monotonic() - start_s < 60


def test_two_writers_of_one_chain(do: Do) -> None:
    first = do("chains create", spec=make_body(3))
    updated = do("chains update", chain=first.id, if_match=f'"{first.etag}"', spec=make_body(5))
    assert (updated.revision, [revision.revision for revision in updated.revisions]) == (2, [1, 2])
    with pytest.raises(Conflict) as conflict:
        do("chains update", chain="guide", if_match=first.etag, spec=make_body(9))
    text = str(conflict.value)
    assert "E-CONFLICT" in text
    assert "Changed since revision 1: nodes.trainer.config.hyperparameters.max_steps: 3 -> 5." in text
    assert "Changed by you: nodes.trainer.config.hyperparameters.max_steps: 3 -> 9." in text
    assert updated.etag in text
    with pytest.raises(InvalidInput, match=r"E-PARAMETER: An update of guide .* needs if_match"):
        do("chains update", chain="guide", spec=make_body(9))
    with pytest.raises(Conflict, match=r"Yours differs from it in: nodes.trainer"):
        do("chains update", chain="guide", if_match="7-abc", spec=make_body(9))
    assert do("chains update", chain="guide", if_match=updated.etag, spec=make_body(5)).revision == 2
    assert do("chains show", chain="guide", revision=1).digest == first.digest
    with pytest.raises(Refused):
        do("chains update", chain="guide", if_match=updated.etag, spec={"nodes": [{"type": "trainr"}]})


def test_a_tenant_stores_for_itself(do: Do) -> None:
    acme_chain = do("chains create", ACME, spec=make_body())
    assert (acme_chain.tenant, acme_chain.author) == ("acme", "laptop")
    called = do("chains create", ACME, spec={"template": "code-tuning", "parameters": {"count": 7}})
    assert called.tenant == "acme"
    other_chain = do("chains create", spec=make_body(name="theirs"))
    assert {chain.id for chain in do("chains list", ACME).chains} == {acme_chain.id, called.id}
    with pytest.raises(NotFound, match="E-NOT-FOUND"):
        do("chains show", ACME, chain=other_chain.id)
    with pytest.raises(Denied, match="E-SCOPE: The chain is of the tenant 'default'"):
        do("chains create", ACME, spec=make_body(tenant="default"))
    with pytest.raises(Denied, match="E-LOCAL: file of chains create"):
        do("chains create", ACME, file=Path("/etc/passwd"))
    updated = do("chains update", chain=acme_chain.id, if_match=acme_chain.etag, spec=make_body(4))
    assert updated.tenant == "acme"


def test_a_run_is_by_revision(do: Do, tiny_model: Path) -> None:
    stored = do("chains create", spec=make_body())
    with pytest.raises(FieldError, match="nodes"):
        do("chains run", chain=stored.id, nodes=make_body()["nodes"])
    with pytest.raises(InvalidInput, match="takes no parameters"):
        do("chains run", chain=stored.id, parameters={"count": 1})
    with pytest.raises(NotFound, match="has no revision 2"):
        do("chains run", chain=stored.id, revision=2)
    with pytest.raises(Unavailable, match="E-NO-SERVER"):
        do("chains run", chain=stored.id)
    for name in ("chains delete", "chains runs"):
        with pytest.raises(Unavailable, match="E-NO-SERVER"):
            do(name, chain=stored.id)


@pytest.mark.parametrize(("name", "reason"), [
    ("lora-job-mlx", "R-|E-"), ("dpo-job-trl", "R-PATH-ROOT"), ("job-data-worker", "R-DATA-WORKER"),
])  # fmt: skip
def test_a_given_job_is_taken_as_written(do: Do, name: str, reason: str) -> None:
    """What it is refused for concerns this machine: its files, its trainers and its data workers."""
    parameters = json.loads((BODIES / f"{name}.json").read_text())
    with pytest.raises(TrainyardError, match=reason) as refused:
        do("jobs create", parameters=parameters)
    reasons = getattr(refused.value, "reasons", ())
    assert not [reason for reason in reasons if reason.code.startswith("E-SPEC")]


def test_a_run_from_a_node_that_the_chain_lacks_is_not_started(do: Do) -> None:
    stored = do("chains create", spec=make_body())
    with pytest.raises(NotFound, match="no node 'nobody'") as refused:
        do("chains run", chain=stored.id, refresh_from="nobody")
    assert "data-source, trainer" in str(refused.value)


def test_the_last_run_is_that_of_the_index(do: Do) -> None:
    stored = do("chains create", spec=make_body())
    index = JobIndex(settings().home / "live" / "jobs.sqlite3")

    def put(number: int, state: JobState, *tags: str, tenant: str = "default") -> None:
        run_id = f"{number:08x}-0000-4000-8000-{number:012x}"
        row = {"run_id": run_id, "id": f"job-{run_id[-12:]}", "name": "guide", "tenant": tenant, "state": state}
        index.put(
            [{**row, "created": 1000.0 + number, "message": "", "base_model": "", "tags": list(tags)}], time.time()
        )

    def last_run() -> Any:
        index.note_try(time.time())
        index.note_success(time.time())
        return do("chains show", chain="guide").last_run

    assert last_run() is None
    put(1, JobState.COMPLETED, stored.id, "revision-1")
    put(2, JobState.RUNNING, stored.id, "revision-2")
    put(3, JobState.FAILED, f"{stored.id}-other")
    put(4, JobState.FAILED, stored.id, "revision-1", tenant="acme")
    run = last_run()
    assert (run.id, run.state, run.revision) == ("job-000000000002", JobState.RUNNING, 2)
    assert "last run: job-000000000002, revision 2, running" in stored_chain_text(do("chains show", chain="guide"))
    index.note_try(time.time())
    index.note_success(time.time() - 60)
    assert do("chains show", chain="guide").last_run is None, "Prefect is away: nobody knows"
