"""The simulator: nights in which everything goes wrong keep every promise, and injected bugs are found."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import trainyard.testing.nights.campaign as campaign_module
from trainyard.errors import NotFound
from trainyard.night import claim, phases, worker
from trainyard.surfaces.cli.main import app
from trainyard.testing.nights.campaign import NightCampaign
from trainyard.testing.nights.injected_bugs import INJECTED_BUGS, run_campaign, simulate

FOUND_SOON = ("ledger-before-graph", "two-nights-at-once", "trains-on-live-corpus", "device-not-measured")
LATER = tuple(bug for bug in FOUND_SOON if bug != "two-nights-at-once")
"""Found in seconds, not in one."""


def test_the_same_seed_gives_the_same_nights() -> None:
    first, second = run_campaign(5), run_campaign(5)
    assert [report.model_dump() for report in first.reports] == [report.model_dump() for report in second.reports]
    assert first.checked == second.checked > 0


def test_markers_in_folders_and_in_object_stores_take_turns() -> None:
    """Without a store, a folder and the object-store double; markers in the folder, or in either store."""
    seen = {
        (type(campaign.cloud).__name__, type(campaign.markers()).__name__) for campaign in map(NightCampaign, range(60))
    }
    assert seen == {
        ("NoneType", "WatchedFolder"),
        *((cloud, kind) for cloud in ("FlakyFolder", "FlakyBucket") for kind in ("WatchedFolder", "WatchedObjects")),
    }


def test_workers_elsewhere_end_what_a_night_only_waits_for() -> None:
    remote = next(campaign for campaign in map(run_campaign, range(20)) if campaign.remote)
    assert remote.violations == []
    assert {str(state) for state in remote.markers().states().values()} <= {"completed", "failed"}
    assert [
        training for report in remote.reports for training in report.phase2.trainings if training.outcome == "published"
    ]


def test_no_invariant_is_violated() -> None:
    outcome = simulate(45, seed=1, processes=1)
    assert outcome.violations == ()
    assert outcome.exit_code == 0
    assert outcome.last_line.endswith("0 violated")


def test_a_version_that_another_process_found_survives_a_power_cut() -> None:
    """In this campaign a process dies between a manifest's rename and the flush of its folder; then power is lost."""
    assert run_campaign(2_000_031).violations == []


def test_a_version_survives_a_failed_call_and_two_power_cuts() -> None:
    """In this campaign a published version was lost while its marker was completed and the live pointer named it."""
    assert run_campaign(326_001_529).violations == []


def test_a_part_that_only_the_graph_knows_is_taken_away_when_its_file_has_it_no_more() -> None:
    """In this campaign a short document grows to three parts, the process dies between the graph and the ledger, and
    the document is short again before the next night."""
    assert run_campaign(2_027_007_002).violations == []


@pytest.mark.parametrize(
    "inject", ["two-nights-at-once", *(pytest.param(bug, marks=pytest.mark.slow) for bug in LATER)]
)
def test_an_injected_bug_is_found(inject: str) -> None:
    outcome = simulate(200, seed=7, inject=inject, processes=1, until_found=True)
    assert outcome.exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize("inject", [bug for bug in INJECTED_BUGS if bug not in FOUND_SOON])
def test_every_injected_bug_is_found_within_2000_nights(inject: str) -> None:
    assert simulate(2_000, seed=7, inject=inject, processes=1, until_found=True).exit_code == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_nights() -> None:
    argv = [sys.executable, "-m", "trainyard", "nightly", "simulate", "--nights", "10000", "--seed", "2027"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "0 violated" in done.stdout


def test_there_are_mistakes_enough_and_unknown_ones_are_told() -> None:
    assert len(INJECTED_BUGS) >= 12
    with pytest.raises(NotFound, match="Name one of no-fsync"):
        simulate(1, inject="gremlins")


def test_the_simulator_calls_what_the_flow_calls() -> None:
    """Both carry out a night through `phases.documents`, `phases.trainings` and `claim_and_train`; none is copied.

    Workers elsewhere are the product's `poll`.
    """
    assert campaign_module.run_night is phases.run_night
    assert campaign_module.poll is worker.poll
    assert worker.claim_and_train is phases.claim_and_train is claim.claim_and_train
    flow = ast.parse((Path(phases.__file__).parents[2] / "flows" / "nightly.py").read_text())
    imported = {
        name.name for node in ast.walk(flow) if isinstance(node, ast.ImportFrom) and node.module == phases.__name__
        for name in node.names
    }  # fmt: skip
    assert {"begin", "documents"} <= imported
    assert phases.phase1.__code__.co_names[:1] == ("documents",)
    assert phases.phase2.__code__.co_names[:1] == ("trainings",)


def test_a_violation_comes_with_its_campaign_and_the_line_that_replays_it() -> None:
    argv = ["nightly", "simulate", "--inject", "trains-on-live-corpus", "--processes", "1"]
    result = CliRunner().invoke(app, [*argv, "--nights", "9", "--seed", "7"])
    assert result.exit_code == 1
    lines = result.output.splitlines()
    replays = [line.split(": ", 1)[1] for line in lines if line.startswith("  replay: ")]
    first = replays[0].split()
    assert first[:4] == ["trainyard", "nightly", "simulate", "--campaign"]
    wrong = [line for line in lines if line.startswith(f"seed {first[4]}: ")]
    again = CliRunner().invoke(app, [*first[1:], "--processes", "1"]).output.splitlines()
    assert [line for line in again if line in wrong] == wrong != []
