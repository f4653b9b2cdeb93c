"""Repositories in a bucket of S3, Azure or Cloud Storage, which data workers share without a lock of their own."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import httpx
import pytest
from botocore.session import get_session
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from trainyard.compute.services import free_port
from trainyard.errors import Unavailable
from trainyard.settings import Settings
from trainyard.stores.repositories.commits import Commit, FileEntry, hash_git_blob
from trainyard.stores.repositories.names import RepositoryName
from trainyard.stores.repositories.repository import Edits
from trainyard.surfaces.hub.service import open_repositories
from trainyard.testing.bucket_xml import TOKEN, XmlBucketServer
from trainyard.testing.loopback import serving

pytestmark = pytest.mark.integration
NAME = RepositoryName("models", "acme", "shared")


AZURITE = "azurite-blob"
"""Microsoft's emulator of Azure's blobs: `npm install -g azurite`."""
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of the emulator's account, as it documents them."""


@contextmanager
def serving_s3(variables: dict[str, str]) -> Iterator[str]:
    # One request at a time: moto compares an ETag and writes in two steps, and another thread may come between.
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.port}"
    variables |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    variables |= {"AWS_ENDPOINT": url, "AWS_ALLOW_HTTP": "true"}
    client = get_session().create_client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret"
    )
    client.create_bucket(Bucket="repositories")
    yield "s3://repositories/prefix"
    client.close()
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def serving_azure(variables: dict[str, str], folder: Path) -> Iterator[str]:
    program = shutil.which(AZURITE)
    if program is None:
        pytest.skip(f"{AZURITE} is not installed")
    port = free_port(10_100)
    url = f"http://127.0.0.1:{port}"
    argv = [program, "--location", str(folder), "--blobPort", str(port), "--silent", "--disableTelemetry"]
    process = subprocess.Popen([*argv, "--skipApiVersionCheck"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    variables |= {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY}
    variables |= {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": url}
    try:
        deadline = time.monotonic() + 60
        while not create_container(url):
            assert time.monotonic() < deadline, "the emulator does not answer"
            time.sleep(0.2)
        yield "az://repositories/prefix"
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def serving_google(variables: dict[str, str], change_s: float = 0.01) -> Iterator[str]:
    with serving(XmlBucketServer(("repositories",), change_s)) as server:
        variables |= {"GOOGLE_BASE_URL": server.url, "GOOGLE_BEARER_TOKEN": TOKEN}
        yield "gs://repositories/prefix"
        assert isinstance(server, XmlBucketServer)
        assert server.refused_changes, "the limit on changes of an object was never met"


def create_container(url: str) -> bool:
    """Create the container, which obstore cannot; False while nothing answers."""
    headers = {"x-ms-date": format_datetime(datetime.now(UTC), usegmt=True), "x-ms-version": "2021-12-02"}
    path = f"{ACCOUNT}/repositories"
    lines = [*(f"{name}:{value}" for name, value in headers.items()), f"/{ACCOUNT}/{path}", "restype:container"]
    text = "PUT" + "\n" * 12 + "\n".join(lines)
    signature = hmac.digest(base64.b64decode(KEY), text.encode(), "sha256")
    headers |= {"authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}", "content-length": "0"}
    try:
        answer = httpx.put(f"{url}/{path}?restype=container", headers=headers, trust_env=False)
    except httpx.TransportError:
        return False
    assert answer.status_code == 201, answer.text
    return True


@pytest.fixture(params=["s3", "azure", "google"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    variables: dict[str, str] = {}
    servers = {
        "s3": serving_s3(variables), "azure": serving_azure(variables, tmp_path / "azurite"),
        "google": serving_google(variables),
    }  # fmt: skip
    with servers[request.param] as address:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield address


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


def test_bucket_that_refuses_the_credentials_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "a-token-that-has-expired"
    with serving(XmlBucketServer(("repositories",))) as server:
        monkeypatch.setenv("GOOGLE_BASE_URL", server.url)
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", wrong)
        repositories = open_repositories(Settings(home=tmp_path, data_storage="gs://repositories/prefix"))
        with pytest.raises(Unavailable, match="E-OBJECT-STORE") as raised:
            repositories.create(NAME, "test")
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", TOKEN)
        elsewhere = open_repositories(Settings(home=tmp_path, data_storage="gs://not-there/prefix"))
        with pytest.raises(Unavailable, match=r"E-OBJECT-STORE.*bucket does not exist"):
            elsewhere.create(NAME, "test")
    assert wrong not in str(raised.value)
    assert "401" in str(raised.value) or "Authentication" in str(raised.value)
