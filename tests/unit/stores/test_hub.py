"""Models that are not on this machine, over the Hub's real client at a data worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data_worker import make_data_worker, serving_data
from trainyard.stores.models import model_sha256

pytestmark = pytest.mark.integration

PROGRAM = """
import sys
from trainyard.errors import TrainyardError
from trainyard.settings import Settings
from trainyard.stores.model_hub import download_model
for name in sys.argv[1:]:
    try:
        source = download_model(name, Settings())
        print(source.path, source.sha256)
    except TrainyardError as error:
        print(error)
"""


def download(endpoint: str, home: Path, *names: str) -> list[str]:
    """What `download_model` prints for each name in a process of its own, which reads the endpoint when it starts."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(home / "hub")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.splitlines()


def test_model_of_the_hub_is_downloaded_once_and_named_by_its_files(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    for path in tiny_model.iterdir():
        (tmp_path / "served" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "served" / "pytorch_model.bin").write_bytes(b"pickle")
    with serving_data(make_data_worker(tmp_path / "worker"), everybody=True) as worker:
        worker.fill("models", "org/tiny", tmp_path / "served")
        worker.gated.add("org/closed")
        first, again, unknown, closed = download(
            worker.url, tmp_path, "org/tiny", "org/tiny", "org/nothing", "org/closed"
        )
    folder, digest = first.rsplit(" ", 1)
    assert again == first
    assert digest == model_sha256(Path(folder)) == model_sha256(tiny_model)
    assert not (Path(folder) / "pytorch_model.bin").exists()
    assert len([path for method, path in worker.requests if method == "GET" and path.endswith(".safetensors")]) == 1
    assert unknown.startswith("E-MODEL-NOT-FOUND: The Hub has no model 'org/nothing'")
    assert closed.startswith("E-MODEL-NOT-FOUND: The Hub does not give 'org/closed' to this account.")


def test_hub_that_cannot_be_reached_is_a_code(tmp_path: Path) -> None:
    (line,) = download("http://127.0.0.1:9", tmp_path, "org/tiny")
    assert line.startswith("E-MODEL-DOWNLOAD: The model 'org/tiny' is not on this machine and could not be downloaded.")
    assert "Do: Run it again when the Hub can be reached" in line
