"""The one Prefect client against a real server: what `up` writes, starting, refusing, translating states."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter
from prefect.client.schemas.objects import State, StateType
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Failed, Late, Paused, Pending, Running, Suspended

from flows.qa_pipeline import qa_pipeline
from tests.flows.real_stack import wait_until
from trainyard.app.run_records import NodeState
from trainyard.app.services import worker_name
from trainyard.errors import InvalidInput, NotFound
from trainyard.prefect_api import listing, server, states, watching
from trainyard.prefect_api.watching import report_state, worker_runs
from trainyard.settings import Settings, settings
from trainyard.spec.states import JobState
from trainyard.stores.live.job_ids import JOB_TAG

ASKED = {"documents": "docs"}

pytestmark = pytest.mark.usefixtures("prefect")


@pytest.fixture
def deployed(home: Path) -> Settings:
    """A server that knows `qa-pipeline/test`, without a worker that would run it."""
    server.bootstrap(settings())
    deployment = qa_pipeline.to_deployment(name="test", work_pool_name=settings().work_pool)
    deployment.entrypoint = "flows/qa_pipeline.py:qa_pipeline"
    deployment.apply(work_pool_name=settings().work_pool)
    return settings()


def test_bootstrap_twice_leaves_one_of_each() -> None:
    server.bootstrap(settings())
    server.bootstrap(settings())
    with get_client(sync_client=True) as client:
        assert client.read_work_pool("trainyard").type == "process"
        assert client.read_global_concurrency_limit_by_name(server.limit_name()).limit == 1
        automations = client.request("POST", "/automations/filter", json={}).json()
    assert [automation["name"] for automation in automations].count(server.ZOMBIES) == 1


def test_the_automation_crashes_a_run_after_three_missed_beats() -> None:
    automation = server.zombie_automation()
    assert automation.trigger.within.total_seconds() == 90
    assert automation.actions[0].state is StateType.CRASHED
    assert "trainyard up" in automation.actions[0].message


def test_bootstrap_keeps_a_limit_that_an_operator_changed() -> None:
    server.bootstrap(settings())
    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(server.limit_name(), limit=2)
        server.bootstrap(settings())
        assert client.read_global_concurrency_limit_by_name(server.limit_name()).limit == 2
        client.upsert_global_concurrency_limit_by_name(server.limit_name(), limit=1)


def test_an_unknown_queue_names_the_known_ones_and_is_not_made(deployed: Settings) -> None:
    with pytest.raises(
        NotFound, match=r"E-PARAMETER: The work pool trainyard has no queue 'gpu-none'.*It has: default"
    ):
        watching.start_run("qa-pipeline/test", ASKED, settings=deployed, queue="gpu-none")
    assert watching.start_run("qa-pipeline/test", ASKED, settings=deployed, queue="default").state is JobState.PENDING
    with get_client(sync_client=True) as client:
        assert "gpu-none" not in {row.name for row in client.read_work_queues(work_pool_name=deployed.work_pool)}


def test_an_unknown_deployment_names_the_known_ones(deployed: Settings) -> None:
    with pytest.raises(NotFound, match=r"E-NOT-FOUND: There is no deployment 'qa-pipeline/nope'.*qa-pipeline/test"):
        watching.start_run("qa-pipeline/nope", {}, settings=deployed)


def test_a_name_without_a_slash_is_an_unknown_deployment(deployed: Settings) -> None:
    with pytest.raises(NotFound, match="E-NOT-FOUND: There is no deployment 'qa-pipeline' on this server"):
        watching.start_run("qa-pipeline", {}, settings=deployed)


def test_wrong_parameters_are_one_sentence_with_the_field(deployed: Settings) -> None:
    with pytest.raises(InvalidInput, match=r"E-PARAMETER: The parameters for qa-pipeline/test are not valid.*count"):
        watching.start_run("qa-pipeline/test", {**ASKED, "count": 0}, settings=deployed)


def test_a_misspelt_parameter_is_refused(deployed: Settings) -> None:
    with pytest.raises(InvalidInput, match="epochz"):
        watching.start_run("qa-pipeline/test", {**ASKED, "training": {"epochz": 1}}, settings=deployed)


def test_a_started_run_carries_the_caller_s_folders(deployed: Settings) -> None:
    started = watching.start_run("qa-pipeline/test", {**ASKED, "count": 5}, settings=deployed, tags=("mine",))
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(started.run_id)
    assert run.job_variables is not None
    assert run.job_variables["env"]["TRAINYARD_WORKING_FOLDER"] == str(deployed.working_folder)
    assert "mine" in run.tags
    assert started.state is JobState.PENDING
    assert started.url.endswith(f"/runs/flow-run/{started.run_id}")


def test_a_run_has_its_name_from_its_creation_on(deployed: Settings) -> None:
    runs_of_one_chain = [
        watching.start_run("qa-pipeline/test", ASKED, settings=deployed, called="guide-12ab") for _ in "123"
    ]
    assert [run.name for run in runs_of_one_chain] == ["guide-12ab", "guide-12ab-2", "guide-12ab-3"]
    with get_client(sync_client=True) as client:
        for run in runs_of_one_chain:
            client.update_flow_run(UUID(run.run_id), tags=[JOB_TAG])
    assert [listing.find_job(run.name)["run_id"] for run in runs_of_one_chain] == [
        run.run_id for run in runs_of_one_chain
    ]
    assert watching.start_run("qa-pipeline/test", ASKED, settings=deployed, called="guide-12").name == "guide-12"


def test_a_run_that_a_schedule_has_planned_is_a_job_once_it_is_due(deployed: Settings) -> None:
    deployment = qa_pipeline.to_deployment(
        name="scheduled", work_pool_name=deployed.work_pool, tags=[JOB_TAG], cron="0 3 * * *", parameters=ASKED
    )
    deployment.entrypoint = "flows/qa_pipeline.py:qa_pipeline"
    scheduled_by = DeploymentFilter.model_validate({"id": {"any_": [deployment.apply()]}})
    with get_client(sync_client=True) as client:
        wait_until(lambda: client.read_flow_runs(deployment_filter=scheduled_by), 60, "the calendar")
        planned = client.read_flow_runs(deployment_filter=scheduled_by)
        assert all(run.auto_scheduled and JOB_TAG in run.tags for run in planned)
        assert not {run.id for run in planned} & {run.id for run in listing.read_job_runs(client)}
        client.set_flow_run_state(planned[0].id, Late(), force=True)
        assert [
            run.id for run in listing.read_job_runs(client) if run.id in {planned_run.id for planned_run in planned}
        ] == [planned[0].id]


def test_watching_ends_with_a_run_that_was_cancelled(deployed: Settings) -> None:
    started = watching.start_run("qa-pipeline/test", ASKED, settings=deployed)
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(started.run_id, Cancelled(message="no longer wanted"), force=True)
    messages: list[str] = []
    result = watching.watch(started.run_id, settings=deployed, on_progress=lambda event: messages.append(event["text"]))
    assert result.state is JobState.CANCELED
    assert result.message == "no longer wanted"
    assert messages == ["canceled"]


def test_a_run_that_waits_names_the_missing_worker_only_when_none_runs(deployed: Settings) -> None:
    run_id = watching.start_run("qa-pipeline/test", ASKED, settings=deployed).run_id
    messages: list[str] = []

    def look() -> str:
        with get_client(sync_client=True) as client:
            alone = not worker_runs(client, deployed)
            report_state(
                client.read_flow_run(UUID(run_id)), "", lambda event: messages.append(event["text"]), alone=alone
            )
        return messages[-1]

    assert look() == "pending: no worker runs that could take it; `trainyard up` starts one"
    with get_client(sync_client=True) as client:
        client.send_worker_heartbeat(deployed.work_pool, worker_name(deployed))
    assert "no worker" in look(), "this home's own one beat a moment ago, and its process is gone"
    with get_client(sync_client=True) as client:
        client.send_worker_heartbeat(deployed.work_pool, "another-machine")
    assert look() == "pending"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, (JobState.PENDING, "")),
        (Pending(), (JobState.PENDING, "starting")),
        (Late(), (JobState.PENDING, "late")),
        (Running(), (JobState.RUNNING, "")),
        (Paused(), (JobState.PAUSED, "")),
        (Suspended(), (JobState.PAUSED, "")),
        (Cancelling(), (JobState.RUNNING, "cancelling")),
        (Completed(), (JobState.COMPLETED, "")),
        (Failed(), (JobState.FAILED, "")),
        (Crashed(), (JobState.FAILED, "crashed")),
        (Cancelled(), (JobState.CANCELED, "")),
    ],
)
def test_prefect_s_run_states_in_our_words(state: State[None] | None, expected: tuple[JobState, str]) -> None:
    assert states.run_state(state) == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, NodeState.PENDING),
        (Pending(name="NotReady"), NodeState.SKIPPED),
        (Completed(name="Cached"), NodeState.REUSED),
        (Completed(), NodeState.COMPLETED),
        (Failed(), NodeState.FAILED),
        (Crashed(), NodeState.FAILED),
        (Cancelled(), NodeState.CANCELED),
        (Running(), NodeState.RUNNING),
    ],
)
def test_prefect_s_task_states_in_our_words(state: State[None] | None, expected: NodeState) -> None:
    assert states.node_state(state) is expected


def test_every_state_type_of_prefect_has_a_word() -> None:
    assert set(states.STATES) == set(StateType)
