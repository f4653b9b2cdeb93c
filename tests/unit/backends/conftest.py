"""Fixtures of the training tests: jobs on the tiny model, and one shared run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.small_jobs import Jobs, Ran, train_here, write_data


@pytest.fixture(scope="session")
def jobs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    return Jobs(tiny_model, write_data(tmp_path_factory.mktemp("data")), tmp_path_factory.mktemp("locks"))


@pytest.fixture(scope="session")
def sft_run(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One SFT LoRA run, shared by the tests that only look at it."""
    return train_here(jobs(hyperparameters={"save_steps": 5}), tmp_path_factory.mktemp("sft"))
