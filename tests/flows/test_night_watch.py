"""No success by six in the morning: found at six in the zone of the schedule, once, on a real server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.schedules import CronSchedule
from prefect.states import Completed, Failed, Scheduled

from trainyard.prefect_api.alerts import NightWatch, last_due
from trainyard.prefect_api.server import NIGHT_MISSING, NO_SUCCESS, ensure_automations, night_automations
from trainyard.prefect_api.states import SKIPPED
from trainyard.settings import settings

pytestmark = pytest.mark.usefixtures("prefect")
ZONE = "Europe/Berlin"
NIGHT = datetime(2031, 6, 3, 1, 0, tzinfo=ZoneInfo(ZONE))
"""In summer: six o'clock there is four o'clock UTC."""


@flow(name="nightly")
def nightly() -> None:
    """Stands for the night: only its runs on the server count here."""


@pytest.fixture
def prefect_client() -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def deployment(prefect_client: SyncPrefectClient) -> Iterator[Callable[[bool], UUID]]:
    """Makes a deployment of the night with an awake or a sleeping schedule."""
    deployment_ids: list[UUID] = []

    def make(awake: bool) -> UUID:
        schedule = DeploymentScheduleCreate(schedule=CronSchedule(cron="0 1 * * *", timezone=ZONE), active=awake)
        flow_id = prefect_client.create_flow(nightly)
        deployment_ids.append(
            prefect_client.create_deployment(flow_id, f"watched-{len(deployment_ids)}", schedules=[schedule])
        )
        return deployment_ids[-1]

    yield make
    for deployment_id in deployment_ids:
        prefect_client.delete_deployment(deployment_id)


def find_scheduled_run(client: SyncPrefectClient, deployment: UUID, night: datetime = NIGHT) -> UUID:
    """The run that the server's own scheduler makes for that night."""
    window = {"start_time": night - timedelta(hours=1), "end_time": night + timedelta(hours=1)}
    body = {name: moment.astimezone(UTC).isoformat() for name, moment in window.items()}
    client.request(
        "POST", "/deployments/{id}/schedule", path_params={"id": deployment},
        json={**body, "min_runs": 1, "max_runs": 1},
    )  # fmt: skip
    only = DeploymentFilter(id=DeploymentFilterId(any_=[deployment]))
    runs = client.read_flow_runs(deployment_filter=only)
    (scheduled,) = [run for run in runs if run.expected_start_time == night]
    assert scheduled.auto_scheduled
    return scheduled.id


def read_events(client: SyncPrefectClient, deployment: UUID) -> list[dict[str, Any]]:
    """The events about a deployment that arrived within some seconds."""
    resource = {"id": [f"prefect.deployment.{deployment}"]}
    query = {"filter": {"event": {"name": [NO_SUCCESS]}, "resource": resource}}
    for _ in range(40):
        events: list[dict[str, Any]] = client.request("POST", "/events/filter", json=query).json()["events"]
        if events:
            return events
        time.sleep(0.25)
    return []


def watch_at(moment: datetime) -> NightWatch:
    return NightWatch(settings(), now=moment.timestamp)


def morning(hour: int, minute: int = 0) -> datetime:
    return NIGHT.replace(hour=hour, minute=minute)


def test_six_oclock_is_a_local_one() -> None:
    due = last_due(datetime(2031, 6, 3, 4, 0, tzinfo=UTC).timestamp(), ZONE)
    assert due == morning(6)
    assert last_due(datetime(2031, 6, 3, 3, 59, tzinfo=UTC).timestamp(), ZONE) == morning(6) - timedelta(days=1)
    winter = last_due(datetime(2031, 12, 3, 5, 0, tzinfo=UTC).timestamp(), ZONE)
    assert (winter.hour, winter.utcoffset()) == (6, timedelta(hours=1))
    changed = last_due(datetime(2031, 3, 30, 4, 0, tzinfo=UTC).timestamp(), ZONE)  # the night had 23 hours
    assert (changed.day, changed.hour, changed.utcoffset()) == (30, 6, timedelta(hours=2))


def test_a_night_without_success_is_told_at_six_and_once(
    prefect_client: SyncPrefectClient, deployment: Callable[[bool], UUID]
) -> None:
    deployment_id = deployment(True)
    find_scheduled_run(prefect_client, deployment_id)
    assert watch_at(morning(5, 59)).look() == []
    (message,) = watch_at(morning(6)).look()
    assert message == "no night of watched-0 succeeded by 2031-06-03 06:00 (Europe/Berlin)"
    assert watch_at(morning(6, 5)).look() == []  # another watchdog, after a restart
    (event,) = read_events(prefect_client, deployment_id)
    assert event["payload"] == {"due": "2031-06-03T06:00:00+02:00"}


def test_a_night_that_succeeded_is_no_news(
    prefect_client: SyncPrefectClient, deployment: Callable[[bool], UUID]
) -> None:
    run = find_scheduled_run(prefect_client, deployment(True))
    prefect_client.set_flow_run_state(run, Completed(), force=True)
    assert watch_at(morning(6)).look() == []


def test_a_skipped_night_is_none(prefect_client: SyncPrefectClient, deployment: Callable[[bool], UUID]) -> None:
    run = find_scheduled_run(prefect_client, deployment(True))
    prefect_client.set_flow_run_state(run, Completed(name=SKIPPED), force=True)
    assert len(watch_at(morning(6)).look()) == 1


def test_a_failed_night_is_told_unless_a_second_one_succeeded(
    prefect_client: SyncPrefectClient, deployment: Callable[[bool], UUID]
) -> None:
    deployment_id = deployment(True)
    prefect_client.set_flow_run_state(find_scheduled_run(prefect_client, deployment_id), Failed(), force=True)
    assert len(watch_at(morning(6)).look()) == 1
    following = NIGHT + timedelta(days=1)
    prefect_client.set_flow_run_state(
        find_scheduled_run(prefect_client, deployment_id, following), Failed(), force=True
    )
    by_hand = prefect_client.create_flow_run_from_deployment(
        deployment_id, state=Scheduled(scheduled_time=(following + timedelta(hours=2)).astimezone(UTC))
    )
    prefect_client.set_flow_run_state(by_hand.id, Completed(), force=True)
    assert watch_at(morning(6) + timedelta(days=1)).look() == []


def test_a_success_after_six_is_too_late(prefect_client: SyncPrefectClient, deployment: Callable[[bool], UUID]) -> None:
    past = NIGHT.replace(year=2026)
    run = find_scheduled_run(prefect_client, deployment(True), past)
    prefect_client.set_flow_run_state(run, Completed(), force=True)  # it ends now, which is later
    assert len(watch_at(past.replace(hour=9)).look()) == 1


def test_a_sleeping_schedule_expects_nothing(
    prefect_client: SyncPrefectClient, deployment: Callable[[bool], UUID]
) -> None:
    deployment(False)
    assert watch_at(morning(6)).look() == []


def test_the_server_is_asked_once_a_minute(
    prefect_client: SyncPrefectClient, deployment: Callable[[bool], UUID]
) -> None:
    moment = [morning(5, 59).timestamp()]
    watch = NightWatch(settings(), now=lambda: moment[0])
    find_scheduled_run(prefect_client, deployment(True))
    watch.look()
    moment[0] += 30
    assert watch.look() == []
    moment[0] += 31
    assert len(watch.look()) == 1


def test_the_automation_waits_for_the_event_and_the_outdated_one_goes(prefect_client: SyncPrefectClient) -> None:
    ensure_automations(night_automations())
    automations = prefect_client.request("POST", "/automations/filter", json={}).json()
    (missing,) = [automation for automation in automations if automation["name"] == NIGHT_MISSING]
    assert (missing["trigger"]["expect"], missing["trigger"]["posture"]) == ([NO_SUCCESS], "Reactive")
    old = {**missing, "name": "trainyard: no night succeeded for a day"}
    prefect_client.request(
        "POST", "/automations/", json={key: old[key] for key in ("name", "description", "trigger", "actions")}
    )
    ensure_automations(night_automations())
    names = [automation["name"] for automation in prefect_client.request("POST", "/automations/filter", json={}).json()]
    assert names.count(NIGHT_MISSING) == 1
    assert old["name"] not in names
