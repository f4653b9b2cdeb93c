"""The night as a flow: its tasks on a real Prefect server, real stores, the rule-based model in a real process."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from flows.nightly import nightly
from trainyard.night.phases import read_report
from trainyard.night.training import tenant_root
from trainyard.settings import settings
from trainyard.spec.night import read_night
from trainyard.stores.files import RealFiles

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.usefixtures("prefect")
def test_a_night_runs_as_a_flow_and_only_once(home: Path) -> None:
    config = read_night({"phase2": {"train": False}, "documents": str(REPOSITORY / "examples" / "night")})
    state = nightly(config, return_state=True)
    assert state.is_completed(), state.message
    assert "documents read" in (state.message or "")
    again = nightly(config, return_state=True)
    assert again.is_completed()
    assert "done already" in (again.message or "")
    folders = list((tenant_root(settings(), "default") / "nights").iterdir())
    assert len(folders) == 1
    report = read_report(folders[0], RealFiles())
    assert report is not None
    assert report.phase1.done >= 20
    assert report.phase1.device_free


def test_the_deployment_sleeps_and_cancels_a_second_run() -> None:
    given = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())
    night = next(one for one in given["deployments"] if one["entrypoint"] == "flows/nightly.py:nightly")
    assert night["name"] == "two-phase"
    assert night["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
    assert [(one["active"], one["timezone"]) for one in night["schedules"]] == [(False, "UTC")]
