"""Fixtures of the training tests: jobs on the tiny model, and one shared run."""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.small_jobs import Jobs, Ran, train_here, write_data
from trainyard.settings import settings


@pytest.fixture(scope="session")
def jobs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    return Jobs(tiny_model, write_data(tmp_path_factory.mktemp("data")), tmp_path_factory.mktemp("locks"))


@pytest.fixture(scope="session")
def sft_run(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One SFT LoRA run, shared by the tests that only look at it."""
    return train_here(jobs(hyperparameters={"save_steps": 5}), tmp_path_factory.mktemp("sft"))


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of four rows for a provider, in the working folder; providers are asked every 20 ms."""
    path = tmp_path / "train.jsonl"
    turns = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A node."}]
    path.write_text((json.dumps({"messages": turns}) + "\n") * 4)
    monkeypatch.setenv("TRAINYARD_WORKING_FOLDER", str(tmp_path))
    monkeypatch.setenv("TRAINYARD_PROVIDER_POLL_S", "0.02")
    monkeypatch.setenv("TRAINYARD_PROVIDER_SETTLE_S", "0.05")
    settings.cache_clear()
    return path


@pytest.fixture
def provider(rows: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Start the double of a provider by `provider(name, faults, key=…)`, and point this process at it."""
    from huggingface_hub import constants  # for tests of providers

    from benchmarks.providers import ADDRESSES, DOUBLES, VARIABLES
    from trainyard.loading import load_object
    from trainyard.spec.axes.providers import PROVIDERS
    from trainyard.testing.loopback import serving
    from trainyard.testing.providers.double import KEY

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # as in the child of a job
    with ExitStack() as stack:

        def start(name: str, faults: Any = None, *, key: str = KEY) -> Any:
            server = stack.enter_context(serving(load_object(DOUBLES[name])(faults)))
            for variable, value in VARIABLES.items():
                monkeypatch.setenv(variable, value)
            monkeypatch.setenv(PROVIDERS[name].address, server.url + ADDRESSES.get(name, ""))
            monkeypatch.setenv(PROVIDERS[name].key, key)
            if name == "bedrock":
                monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
            return server

        yield start
    with warnings.catch_warnings():  # botocore leaves the connection of a refused upload to the collector
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
