"""Repositories in a bucket of S3, which several data workers share without a lock of their own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from botocore.session import get_session
from moto.server import ThreadedMotoServer

from trainyard.settings import Settings
from trainyard.stores.repositories.commits import Commit, FileEntry, hash_git_blob
from trainyard.stores.repositories.names import RepositoryName
from trainyard.stores.repositories.repository import Edits
from trainyard.surfaces.hub.service import open_repositories

pytestmark = pytest.mark.integration
NAME = RepositoryName("models", "acme", "shared")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    for name, value in {**keys, "AWS_ENDPOINT": url, "AWS_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)
    get_session().create_client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket="repositories")
    yield "s3://repositories/prefix"
    server.stop()


def test_data_workers_that_share_a_bucket_lose_nothing(bucket: str, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, data_storage=bucket, data_quota_mb=40)
    first = open_repositories(settings)
    first.create(NAME, "test")

    def write(worker: int) -> None:
        repositories = open_repositories(settings)
        for number in range(3):
            data = f"{worker}{number}".encode() * 1000
            sha256, path = hashlib.sha256(data).hexdigest(), tmp_path / f"{worker}{number}"
            path.write_bytes(data)
            with repositories.reserving("acme", {sha256: len(data)}) as store:
                store(sha256, path)
            entry = FileEntry(sha256, len(data), hash_git_blob(data))
            repositories.commit(NAME, "main", Edits({f"{worker}/{number}": entry}), Commit({}, summary="add"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert len(first.resolve(NAME, "main").files) == 24
    usage = first.quotas.read("acme")
    assert (usage.stored, usage.reserved) == (48_000, {})
    large = os.urandom(20 << 20)
    sha256, path = hashlib.sha256(large).hexdigest(), tmp_path / "large"
    path.write_bytes(large)
    with first.reserving("acme", {sha256: len(large)}) as store:
        store(sha256, path)
    assert b"".join(first.read("acme", FileEntry(sha256, len(large), ""), 5, 12 << 20)) == large[5 : 12 << 20]
