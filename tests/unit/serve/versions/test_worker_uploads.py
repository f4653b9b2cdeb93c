"""Checkpoints and adapter versions that go to the data worker without being asked, and come back from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, constants

from tests.data_worker import DataWorker, make_data_worker, serving_data
from tests.unit.serve.conversion.adapter_files import make_adapter
from trainyard.errors import Unavailable
from trainyard.serve.data_card import write_cards
from trainyard.serve.versions.hub import HubAddress, pull_from_hub, push_to_hub
from trainyard.serve.worker_uploads import upload_version
from trainyard.settings import Settings, settings
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.repositories.names import RepositoryName
from trainyard.stores.signing.keys import SigningKeys

pytestmark = pytest.mark.integration
MIRROR = "data-worker://default/checkpoints-one"


@pytest.fixture
def worker(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataWorker]:
    with serving_data(make_data_worker(tmp_path / "worker")) as worker:
        monkeypatch.setenv("DATA_WORKER_TOKEN", worker.token("default"))
        monkeypatch.setenv("TRAINYARD_DATA_WORKERS", json.dumps([worker.url]))
        settings.cache_clear()
        yield worker


def register(registry: AdapterRegistry, folder: Path, seed: int) -> AdapterVersion:
    make_adapter(folder, base_model_name_or_path="org/tiny")
    (folder / "training.json").write_text(json.dumps({"base_model": "org/tiny", "seed": seed}))
    return registry.register("default", "coder", folder, facts={"base_model": "org/tiny"}, run_key=f"{seed}")


def test_lost_disk_comes_back_from_the_data_worker(worker: DataWorker, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from trainyard.train.checkpoint.writer import CheckpointWriter, find_newest, load_checkpoint

    here = tmp_path / "here"
    reports: list[dict[str, Any]] = []
    with CheckpointWriter(here, mirror=MIRROR, report=reports.append) as writer:
        for step in (1, 2, 3):
            writer.save(step, {"weights": torch.full((700_000,), float(step))}, {"step": step})
            writer.wait()
    assert not [record for record in reports if "error" in record]
    shutil.rmtree(here)
    here.mkdir()
    checkpoint = find_newest(here, MIRROR)
    assert (checkpoint.step, checkpoint.fetched_from) == (3, MIRROR)
    assert checkpoint.path is not None
    assert load_checkpoint(checkpoint.path)[0]["weights"].eq(3.0).all()
    name = RepositoryName("models", "default", "checkpoints-one")
    steps = {path.split("/")[0] for path in worker.repositories.resolve(name, "main").files}
    assert steps == {"step-0000000002", "step-0000000003"}
    worker.repositories.pins.clear()
    worker.repositories.collect("default", grace_s=-60.0)
    assert worker.repositories.quotas.read("default").stored < 2.5 * 4 * 700_000, "what is pruned gives its room back"


def test_versions_are_uploaded_once_and_pulled_by_the_hubs_client(
    worker: DataWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = AdapterRegistry(tmp_path / "a" / "adapters")
    here = Settings(home=tmp_path / "a", data_workers=(worker.url,), data_worker_uploads=("adapters",))
    versions = [register(registry, tmp_path / f"made-{seed}", seed) for seed in (1, 2)]
    commits = [upload_version(version, registry, here) for version in (*versions, versions[0])]
    assert commits[0] == commits[2] != commits[1]
    for name, value in {"HF_ENDPOINT": worker.url, "HF_TOKEN": worker.token("default"), "HF_HUB_OFFLINE": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    there = Settings(home=tmp_path / "b")
    SigningKeys(there.home).trust(SigningKeys(here.home).own().pem, "here")
    cards = write_cards(versions[0], registry.path(versions[0]), here.home, "default/pushed")
    pushed = [push_to_hub(versions[0], registry, HubAddress("default/pushed"), cards) for _ in range(2)]
    assert [sent.changed for sent in pushed] == [True, False]
    assert HfApi(endpoint=worker.url).model_info("default/pushed").private
    for repository in ("coder", "pushed"):
        files = worker.repositories.resolve(RepositoryName("models", "default", repository), "main").files
        assert {"README.md", "DATA_CARD.md"} <= files.keys()
    pulled = [pull_from_hub(HubAddress("default/coder", revision), there) for revision in ("v1", None)]
    assert [version.facts["origin"]["name"] for version in pulled] == ["default/coder/v1", "default/coder/v2"]
    assert [version.facts["origin"]["revision"] for version in pulled] == commits[:2]


def test_upload_is_off_by_default_and_a_worker_that_is_down_is_an_error(tmp_path: Path) -> None:
    registry = AdapterRegistry(tmp_path / "adapters")
    version = register(registry, tmp_path / "made", 1)
    assert upload_version(version, registry, Settings(home=tmp_path)) is None
    down = Settings(home=tmp_path, data_workers=("http://127.0.0.1:9",), data_worker_uploads=("adapters",))
    with pytest.raises(Unavailable, match="No data worker answers"):
        upload_version(version, registry, down)
    nowhere = Settings(home=tmp_path, data_worker_uploads=("adapters",))
    with pytest.raises(Unavailable, match="No data worker is set"):
        upload_version(version, registry, nowhere)
