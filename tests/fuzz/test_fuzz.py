"""The fuzzer finds what it is made to find, and nothing in a short run over the kept seeds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.planted import PLANTED
from tests.fuzz.targets import TARGETS

REPOSITORY = Path(__file__).parents[2]


def run_fuzzer(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: it forks, and nothing of a test may be inherited."""
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


@pytest.mark.faults
@pytest.mark.parametrize("target", TARGETS)
def test_the_kept_seeds_are_read(target: str) -> None:
    done = run_fuzzer("--target", target, "--minutes", "0.2", "--seed", "3")
    assert done.returncode == 0, done.stdout
    assert "no finding" in done.stdout


@pytest.mark.faults
@pytest.mark.parametrize("bug", PLANTED)
@pytest.mark.parametrize("target", TARGETS)
def test_a_planted_bug_is_found(target: str, bug: str) -> None:
    done = run_fuzzer("--target", target, "--minutes", "10", "--seed", "3", "--planted", bug)
    assert done.returncode == 0, done.stdout
    assert "replay: " in done.stdout
