"""Adapter versions that a night publishes go to the data worker."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.data_worker import make_data_worker, serving_data
from tests.unit.night.nights import night
from trainyard.night.deps import NightDeps
from trainyard.serve.worker_uploads import upload_version
from trainyard.settings import Settings
from trainyard.stores.repositories.names import RepositoryName

pytestmark = pytest.mark.integration


def test_a_night_uploads_what_it_publishes_and_publishes_nothing_while_no_worker_answers(
    world: NightDeps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = world.stores.versions
    here = Settings(home=registry.root.parent, data_worker_uploads=("adapters",))

    def sharing(url: str) -> NightDeps:
        settings = here.model_copy(update={"data_workers": (url,)})
        share = partial(upload_version, registry=registry, settings=settings)
        return replace(world, stores=replace(world.stores, share=share))

    failed = night(sharing("http://127.0.0.1:9")).phase2.trainings
    assert [(training.outcome, getattr(training.failure, "code", "")) for training in failed] == [
        ("failed", "E-URL")
    ] * 2
    versions = registry.list()
    assert [registry.live(version.tenant, version.role).version for version in versions] == [None, None]
    with serving_data(make_data_worker(tmp_path / "worker")) as worker:
        monkeypatch.setenv("DATA_WORKER_TOKEN", worker.token(versions[0].tenant))
        done = night(sharing(worker.url), "20270103").phase2.trainings
        assert sorted(training.version for training in done) == sorted(version.name for version in versions)
        for version in versions:
            record = worker.repositories.require(RepositoryName("models", version.tenant, version.role))
            assert f"v{version.version}" in record.tags
