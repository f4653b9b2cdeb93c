"""Three minutes of the kill storm; `python -m tests.faults.storm --minutes 15 --seed N` is the whole of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.storm import build_tiny, run_storm

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(3600), pytest.mark.xdist_group("stack faults")]


def test_a_storm_loses_nothing(tmp_path: Path) -> None:
    storm = run_storm(3, int(os.environ.get("STORM_SEED", "1")), tmp_path, build_tiny)
    assert storm.runs
    assert storm.violations == []
