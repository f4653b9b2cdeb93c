"""Job ids, tenants and idempotency keys on a real server without a worker."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from test_without_trainer import JOB, context, copy_data  # noqa: F401  (a server that knows `training-job/local`)

from trainyard.app.chains.run import run
from trainyard.app.context import Caller, Context
from trainyard.app.jobs import jobs
from trainyard.app.run_records import RunResult
from trainyard.errors import Conflict, Denied, InvalidInput, NotFound
from trainyard.operations.chains import RunInput
from trainyard.operations.table import Scope
from trainyard.prefect_api import listing
from trainyard.stores.live.job_ids import JOB_ID, derive_job_id

pytestmark = pytest.mark.usefixtures("prefect")

NATIVE = {"dataset": {"path": "data.jsonl"}}


@pytest.fixture
def of_tenant(context: Context) -> Callable[[str], Context]:  # noqa: F811
    def make_context(tenant: str) -> Context:
        copy_data(context, tenant)
        return replace(context, caller=Caller(f"{tenant}'s token", Scope.RUN, tenant=tenant, remote=True))

    return make_context


def create(context: Context, **parameters: Any) -> RunResult:  # noqa: F811
    return jobs.create_job(jobs.requests.CreateInput(parameters={**NATIVE, **parameters}), context)


def read_tags(run_id: str) -> set[str]:
    with get_client(sync_client=True) as client:
        return set(client.read_flow_run(UUID(run_id)).tags)


def show(job: str, context: Context) -> jobs.JobDetail:  # noqa: F811
    return jobs.show_job(jobs.requests.JobInput(job=job), context)


def test_a_job_has_its_id_from_its_creation_on_and_is_found_by_it(context: Context) -> None:  # noqa: F811
    created = create(replace(context, trace="4bf92f3577b34da6"))
    assert JOB_ID.fullmatch(created.id)
    assert read_tags(created.run_id) == {"job", created.id, "tenant:default", "trace:4bf92f3577b34da6"}
    references = (created.id, created.id[:12], created.run_id, created.run_id[:20], created.name)
    assert {show(word, context).run_id for word in references} == {created.run_id}
    assert show(created.id, context).id == created.id
    listed = jobs.list_jobs(jobs.requests.JobsInput(), context).jobs
    assert (created.id, created.run_id) in [(job.id, job.run_id) for job in listed]


def test_a_run_that_was_created_without_an_id_has_a_derived_one(context: Context) -> None:  # noqa: F811
    created = create(context)
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(created.run_id), tags=["job"])
    derived = derive_job_id(created.run_id)
    assert show(derived, context).run_id == created.run_id
    assert show(created.run_id, context).id == derived


def test_the_same_key_starts_a_job_once(context: Context) -> None:  # noqa: F811
    keyed = replace(context, idempotency_key="first")
    first, second = create(keyed), create(keyed)
    assert (first.id, first.run_id) == (second.id, second.run_id)
    assert create(replace(context, idempotency_key="second")).run_id != first.run_id
    with pytest.raises(Conflict, match="E-CONFLICT: The idempotency key belongs to the run"):
        create(keyed, hyperparameters={"epochs": 2})


def test_two_tenants_may_choose_the_same_key(of_tenant: Callable[[str], Context]) -> None:
    acme, other = (replace(of_tenant(name), idempotency_key="mine") for name in ("acme", "other"))
    assert create(acme).run_id != create(other).run_id


def test_a_job_is_its_tenants_and_not_there_for_another(of_tenant: Callable[[str], Context]) -> None:
    acme, other = of_tenant("acme-2"), of_tenant("other-2")
    created = create(acme)
    assert "tenant:acme-2" in read_tags(created.run_id)
    assert show(created.id, acme).tenant == "acme-2"
    assert show(created.id, acme).parameters["job"]["tenant"] == "acme-2"
    nothing = "job-000000000000"
    for word in (created.id, created.run_id, created.name):
        with pytest.raises(NotFound) as hidden:
            show(word, other)
        with pytest.raises(NotFound) as missing:
            show(nothing, other)
        assert str(hidden.value).replace(word, nothing) == str(missing.value)
    assert [job.run_id for job in jobs.list_jobs(jobs.requests.JobsInput(), acme).jobs] == [created.run_id]
    assert jobs.list_jobs(jobs.requests.JobsInput(), other).jobs == ()
    for verb in (jobs.pause_job, jobs.cancel_job):
        with pytest.raises(NotFound, match="E-JOB-NOT-FOUND"):
            verb(jobs.requests.StopInput(job=created.id), other)
    with pytest.raises(NotFound, match="E-JOB-NOT-FOUND"):
        jobs.resume_job(jobs.requests.ResumeInput(job=created.id), other)
    with pytest.raises(NotFound, match="E-JOB-NOT-FOUND"):
        run(RunInput(target=created.id), other)


def test_another_tenant_cannot_be_named(of_tenant: Callable[[str], Context], tmp_path: Path) -> None:
    acme = of_tenant("acme")
    assert create(acme, tenant="acme").id
    with pytest.raises(Denied, match=r"E-SCOPE: .* is for the tenant acme, and this is for other"):
        create(acme, tenant="other")
    nodes = [
        {"type": "data_source", "config": {"path": "data.jsonl"}},
        {"type": "trainer", "config": {}},
        {"type": "deployer", "config": {"tenant": "other", "unevaluated": True}},
    ]
    here = replace(acme, caller=replace(acme.caller, remote=False))  # over a network a run takes no whole chain
    for chain in ({"nodes": nodes}, {"tenant": "other", "nodes": nodes[:2]}):
        with pytest.raises(Denied, match="E-SCOPE"):
            run(RunInput(target=chain), here)
    parameters = {"documents": "data.jsonl", "publish": {"tenant": "other"}}
    with pytest.raises(Denied, match="E-SCOPE"):
        run(RunInput(target="qa-pipeline", parameters=parameters), acme)


@pytest.mark.parametrize("tag", ["tenant:other", "job-0123456789ab", "job", "trace:1"])
def test_a_tag_that_says_what_a_run_is_cannot_be_given(context: Context, tag: str) -> None:  # noqa: F811
    with pytest.raises(InvalidInput, match=f"E-PARAMETER: The tag '{tag}' cannot be given"):
        run(RunInput(target="training-job", parameters=NATIVE, tags=(tag,)), context)


def test_the_result_on_disk_keeps_the_id(context: Context) -> None:  # noqa: F811
    created = create(context)
    old = {key: value for key, value in json.loads(created.model_dump_json()).items() if key != "id"}
    assert RunResult.model_validate(old).id == ""
    assert listing.find_job(created.run_id)["id"] == created.id
