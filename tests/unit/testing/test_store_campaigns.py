"""Artifacts, checkpoints, job records and the adapter registry on a disk that forgets; injected bugs are found."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.selection import choose_by_default
from trainyard.testing.store_faults import INJECTED_BUGS, run_campaign, simulate

pytestmark = pytest.mark.integration

SOON = ("no-fsync", "no-folder-fsync", "moved-not-flushed")


def test_the_same_seed_gives_the_same_campaign() -> None:
    first, second = run_campaign(3), run_campaign(3)
    assert first.disk.snapshot() == second.disk.snapshot()
    assert first.checked == second.checked > 0


def test_nothing_that_was_promised_is_lost() -> None:
    assert simulate(8, seed=1, processes=1).violations == ()


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_nothing_is_lost_in_two_thousand_campaigns() -> None:
    argv = [sys.executable, "-m", "trainyard.testing.store_faults", "--campaigns", "2000", "--seed", "2"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "2,000 campaigns" in done.stdout


@pytest.mark.parametrize("inject", choose_by_default(SOON, INJECTED_BUGS))
def test_an_injected_bug_is_found(inject: str) -> None:
    assert simulate(2_000, seed=7, inject=inject, processes=1, until_found=True).failed
