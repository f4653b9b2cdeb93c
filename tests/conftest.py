"""Fixtures that every test may use: an own home for each test, and one tiny real model for the session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainyard import settings as settings_module

REPOSITORY = Path(__file__).parent.parent
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", DO_NOT_TRACK="1", TOKENIZERS_PARALLELISM="false")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty TRAINYARD_HOME; every other TRAINYARD_ and PREFECT_ variable of the caller is hidden."""
    for name in [name for name in os.environ if name.startswith("TRAINYARD_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "home"
    monkeypatch.setenv("TRAINYARD_HOME", str(folder))
    settings_module.settings.cache_clear()
    yield folder
    settings_module.settings.cache_clear()


@pytest.fixture
def shared_data() -> Path:
    """Public data sets beside the repository; tests that need them skip where they are not."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the public sample data sets are not beside the repository (../shared/data)")
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random two-layer Llama (hidden 64) with a trained byte-level BPE tokenizer of about 600 tokens."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    # A process of its own: importing torch here would cost every torch-free test run four seconds.
    subprocess.run([sys.executable, "-m", "trainyard.testing.tiny", str(folder)], check=True, capture_output=True)
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 2
    return folder
