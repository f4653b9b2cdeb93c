"""The index of jobs and a real server: what Prefect says is what lists and details say, from either."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.states import Cancelled, Completed, Running
from test_without_trainer import context, copy_data  # noqa: F401  (a server that knows `training-job/local`)

from trainyard.app.context import Caller, Context
from trainyard.app.jobs import jobs
from trainyard.app.live.jobs import open_index
from trainyard.app.run_records import RunRecord, RunResult
from trainyard.errors import InvalidInput, Unavailable
from trainyard.prefect_api import listing
from trainyard.prefect_api.synchronizing import Synchronizer
from trainyard.spec.states import JobState
from trainyard.stores.live.job_index import JobQuery, remove_database

pytestmark = pytest.mark.usefixtures("prefect")

TENANT = "indexed"


@pytest.fixture
def here(context: Context) -> Context:  # noqa: F811
    """A caller of a tenant of its own, so that the jobs of other tests are not in its way."""
    copy_data(context, TENANT)
    return replace(context, caller=Caller("indexed", tenant=TENANT))


@pytest.fixture
def synchronizer(here: Context) -> Synchronizer:
    synchronizer = Synchronizer(here.settings, lambda _text: None)
    assert synchronizer.attempt()
    return synchronizer


def create(context: Context, name: str = "guide") -> RunResult:  # noqa: F811
    parameters = {"name": name, "dataset": {"path": "data.jsonl"}}
    return jobs.create_job(jobs.requests.CreateInput(parameters=parameters), context)


def put(run_id: str, state: Any) -> None:
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(UUID(run_id), state, force=True)


def list_jobs(context: Context, **query: Any) -> jobs.JobList:  # noqa: F811
    return jobs.list_jobs(jobs.requests.JobsInput(**query), context)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def go() -> None:
        def refuse(*_arguments: object) -> Any:
            raise Unavailable("The Prefect server does not answer.", code="E-SERVER-UNREACHABLE")

        monkeypatch.setattr("trainyard.app.live.jobs.connect_runs", refuse)
        monkeypatch.setattr("trainyard.app.names.connect_runs", refuse)

    return go


def test_lists_and_details_are_the_same_from_both(here: Context) -> None:
    created = [create(here), create(here), create(here, "other")]
    put(created[0].run_id, Completed(message="2 nodes finished."))
    queries = [
        {},
        {"state": "completed"},
        {"name": "other"},
        {"text": "GUIDE"},
        {"backend": "trl"},
        {"stage": "sft", "limit": 2},
    ]
    queries = [{"name": created[2].name} if "name" in query else query for query in queries]
    by_prefect = [list_jobs(here, **query) for query in queries]
    details = [jobs.show_job(jobs.requests.JobInput(job=job.id), here) for job in created]
    assert Synchronizer(here.settings, print).attempt()
    unasked = replace(here, settings=here.settings)
    assert [list_jobs(unasked, **query) for query in queries] == by_prefect
    assert [jobs.show_job(jobs.requests.JobInput(job=job.id), here) for job in created] == details
    assert [len(page.jobs) for page in by_prefect] == [3, 1, 1, 2, 0, 2]
    assert by_prefect[5].next is not None


def test_pages_follow_each_other_the_newest_first(here: Context, synchronizer: Synchronizer) -> None:
    for _ in range(5):
        create(here)
    synchronizer.attempt()
    whole = [job.id for job in list_jobs(here).jobs]
    for answer in (lambda query: list_jobs(here, **query), lambda query: list_by_prefect(here, query)):
        seen, cursor = [], None
        while True:
            page = answer({"limit": 2, "cursor": cursor})
            seen += [job.id for job in page.jobs]
            if (cursor := page.next) is None:
                break
        assert seen == whole
    created = [job.created for job in list_jobs(here).jobs]
    assert created == sorted(created, reverse=True)
    with pytest.raises(InvalidInput, match="E-PARAMETER: 'nonsense' is not a cursor"):
        list_jobs(here, cursor="nonsense")


def list_by_prefect(context: Context, query: dict[str, Any]) -> jobs.JobList:  # noqa: F811
    remove_database(open_index(context.settings).path)
    return list_jobs(context, **query)


def test_a_change_in_prefect_is_in_the_index_after_the_next_look(here: Context, synchronizer: Synchronizer) -> None:
    created = create(here)
    index = open_index(here.settings)
    assert index.read_rows([created.run_id])[created.run_id]["state"] is JobState.PENDING, "written when it was created"
    put(created.run_id, Running())
    assert synchronizer.attempt()
    assert index.read_rows([created.run_id])[created.run_id]["state"] is JobState.RUNNING
    put(created.run_id, Cancelled(message="enough"))
    assert synchronizer.attempt()
    row = index.read_rows([created.run_id])[created.run_id]
    assert (row["state"], row["message"]) == (JobState.CANCELED, "enough")
    assert created.run_id not in index.open_runs()


def test_a_run_that_prefect_removed_leaves_the_index(here: Context, synchronizer: Synchronizer) -> None:
    first, second = create(here), create(here)
    put(second.run_id, Completed())
    synchronizer.attempt()
    with get_client(sync_client=True) as client:
        client.delete_flow_run(UUID(first.run_id))
        client.delete_flow_run(UUID(second.run_id))
    synchronizer.attempt()
    assert open_index(here.settings).read_rows([first.run_id]) == {}, "it was open"
    synchronizer.whole_due = 0.0
    synchronizer.attempt()
    assert open_index(here.settings).read_rows([second.run_id]) == {}


def test_a_verb_writes_what_it_changed(here: Context, synchronizer: Synchronizer) -> None:
    created = create(here)
    jobs.cancel_job(jobs.requests.StopInput(job=created.id), here)
    assert open_index(here.settings).read_rows([created.run_id])[created.run_id]["state"] is JobState.CANCELED
    assert [job.state for job in list_jobs(here).jobs if job.id == created.id] == [JobState.CANCELED]


def test_with_prefect_away_the_index_answers_and_says_how_old_it_is(
    here: Context, synchronizer: Synchronizer, away: Callable[[], None]
) -> None:
    created = create(here)
    synchronizer.attempt()
    assert list_jobs(here).as_of is None, "it is fresh"
    away()
    synchronizer.now = lambda: time.time() - 3600.0  # when it was last in step, and last tried
    synchronizer.attempt()
    answer = list_jobs(here)
    assert answer.as_of is not None
    assert time.time() - answer.as_of > 3590
    assert created.id in [job.id for job in answer.jobs]
    detail = jobs.show_job(jobs.requests.JobInput(job=created.id), here)
    assert (detail.run_id, detail.as_of) == (created.run_id, answer.as_of)
    with pytest.raises(Unavailable, match="E-SERVER-UNREACHABLE"):
        jobs.show_job(jobs.requests.JobInput(job="job-000000000000"), here)
    remove_database(open_index(here.settings).path)
    with pytest.raises(Unavailable, match="E-SERVER-UNREACHABLE"):
        list_jobs(here)


def test_a_synchroniser_says_once_that_prefect_is_away_and_is_back(
    here: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    synchronizer = Synchronizer(here.settings, messages.append)
    with monkeypatch.context() as patch:
        patch.setattr("trainyard.prefect_api.synchronizing.require_api_url", lambda _: "http://127.0.0.1:9/api")
        assert [synchronizer.attempt() for _ in range(3)] == [False] * 3
    assert synchronizer.attempt()
    assert [line.partition(":")[0] for line in messages] == [
        "the index of jobs is not in step with Prefect", "the index of jobs is in step with Prefect again",
    ]  # fmt: skip


def test_a_damaged_index_is_made_again(here: Context, synchronizer: Synchronizer) -> None:
    created, path = create(here), open_index(here.settings).path
    remove_database(path)
    path.write_bytes(b"not a database" * 1000)
    assert created.id in [job.id for job in list_jobs(here).jobs], "Prefect answers"
    assert [synchronizer.attempt(), synchronizer.attempt()] == [False, True]
    assert created.run_id in open_index(here.settings).runs()


def test_the_index_has_the_progress_of_the_trainers(here: Context, synchronizer: Synchronizer) -> None:
    created = create(here)
    record, work = RunRecord(here.settings.runs / created.run_id), here.settings.home / "work"
    record.folder.mkdir(parents=True)
    work.mkdir()
    record.emit("trainer", "job", digest="d", folder=str(work))
    now = time.time()
    (work / "events.jsonl").write_text(
        f'{{"event":"begin","time":{now},"total_steps":9}}\n{{"event":"progress","time":{now},"step":4,"loss":2.5}}\n'
    )
    synchronizer.attempt()
    (progress,) = [job for job in list_jobs(here).jobs if job.id == created.id]
    assert (progress.step, progress.total_steps, progress.loss) == (4, 9, 2.5)
    (training,) = jobs.show_job(jobs.requests.JobInput(job=created.id), here).trainings
    assert (training.node, training.step, training.folder) == ("trainer", 4, str(work))
    put(created.run_id, Completed())
    rows = []
    for _ in range(3):  # the end, and two whole looks at what has ended
        synchronizer.whole_due = 0.0
        assert synchronizer.attempt()
        rows += [job for job in list_jobs(here).jobs if job.id == created.id]
    assert [row.node for row in rows] == ["trainer"] * 3
    assert rows[0] == rows[1] == rows[2]


def test_the_server_and_a_query_agree_on_what_is_wanted(here: Context) -> None:
    created = create(here)
    row = listing.find_job(created.id)
    assert JobQuery(tenant=TENANT, text=created.id[-6:]).accepts(row)
    assert not JobQuery(tenant="other").accepts(row)
