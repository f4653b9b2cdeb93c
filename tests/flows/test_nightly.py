"""The night as a flow: its tasks on a real Prefect server, real stores, the rule-based model in a real process."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect.states import Scheduled

from flows.nightly import nightly
from trainyard.compute.lease import slot_lock
from trainyard.night.report import read_report
from trainyard.night.training import tenant_root
from trainyard.settings import settings
from trainyard.spec.night import NightConfig, read_night
from trainyard.stores.files import RealFiles

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.usefixtures("prefect")
def test_a_night_runs_as_a_flow_and_only_once(home: Path) -> None:
    config = read_night({"phase2": {"train": False}, "documents": str(REPOSITORY / "examples" / "night")})
    state = nightly(config, return_state=True)
    assert state.is_completed(), state.message
    assert "documents read" in (state.message or "")
    again = nightly(config, return_state=True)
    assert (again.name, again.is_completed()) == ("Skipped", True)
    assert "done already" in (again.message or "")
    folders = list((tenant_root(settings(), "default") / "nights").iterdir())
    assert len(folders) == 1
    report = read_report(folders[0], RealFiles())
    assert report is not None
    assert report.phase1.done >= 20
    assert report.phase1.device_free


@pytest.mark.usefixtures("prefect")
def test_a_late_night_has_the_date_of_its_schedule(home: Path) -> None:
    """Clocks go forward at one in London: the schedule starts at midnight, and the machine was asleep until now."""
    config = read_night({"phase2": {"train": False}, "window": {"zone": "Europe/London", "starts": "01:00"}})
    parameters = {"config": config.model_dump(mode="json")}
    with get_client(sync_client=True) as client:
        due = Scheduled(scheduled_time=datetime(2026, 3, 29, tzinfo=UTC))
        late = client.create_flow_run(nightly, parameters=parameters, state=due)
    state = run_flow(nightly, flow_run=late, parameters=parameters, return_type="state")
    assert state.is_completed(), state.message
    assert [path.name for path in (tenant_root(settings(), "default") / "nights").iterdir()] == ["20260329"]


@pytest.mark.usefixtures("prefect")
def test_a_training_that_no_chain_may_have_fails_before_the_night_begins(home: Path) -> None:
    """A form makes the config by its types alone."""
    training = {"method": "lora", "quantization": "nf4"}
    state = nightly(NightConfig.model_validate({"phase2": {"training": training}}), return_state=True)
    assert state.is_failed()
    assert "R-QUANTIZATION phase2.training.quantization" in (state.message or "")
    assert not (tenant_root(settings(), "default") / "nights").exists()


HOLDER = """
import sys
from pathlib import Path
from trainyard.compute.lease import device_lock
with device_lock(Path(sys.argv[1]), run="somebody-else"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
def test_a_night_waits_for_the_device_no_longer_than_its_window(home: Path) -> None:
    """Another process holds the lease all night: the run has failed, and says who it was."""
    lock = slot_lock(settings(), 0)
    command = [sys.executable, "-c", HOLDER, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        began = time.monotonic()
        state = nightly(read_night({"window": {"window_s": 3}}), return_state=True)
        waited = time.monotonic() - began
        other.stdin.close()
        other.wait()
    assert state.is_failed()
    message = state.message or ""
    assert "E-DEVICE-BUSY: The night did not begin: device 0 was in use for its whole window of 3 s" in message
    assert f"process {other.pid} of run somebody-else" in message
    assert 3 <= waited < 20
    assert not (tenant_root(settings(), "default") / "nights").exists()


def test_the_deployment_sleeps_and_cancels_a_second_run() -> None:
    config = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())
    night = next(
        deployment for deployment in config["deployments"] if deployment["entrypoint"] == "flows/nightly.py:nightly"
    )
    assert night["name"] == "two-phase"
    assert night["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
    assert [(schedule["active"], schedule["timezone"]) for schedule in night["schedules"]] == [(False, "UTC")]
