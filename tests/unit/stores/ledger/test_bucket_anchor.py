"""An anchor in a bucket with retention: the real client against moto's S3, whose versions cannot be removed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

from trainyard.app.artifacts.anchors import anchor
from trainyard.app.artifacts.ledger import verify
from trainyard.app.context import Context
from trainyard.operations import ledger as requests
from trainyard.settings import Settings
from trainyard.stores.ledger.log import Ledger

pytestmark = pytest.mark.integration
BUCKET = "ledger-archive"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket whose versions can be locked, and the client of its owner.

    moto takes no object by checksum alone where a whole bucket has a retention, as S3 does: the test locks the object.
    """
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ALLOW_HTTP": "true", "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "canary-secret", "AWS_DEFAULT_REGION": "us-east-1", "AWS_REGION": "us-east-1",
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=variables["AWS_ENDPOINT_URL"])
    client.create_bucket(Bucket=BUCKET, ObjectLockEnabledForBucket=True)
    yield client
    client.close()
    server.stop()


def test_a_checkpoint_in_a_bucket_outlives_another_history(bucket: Any, tmp_path: Path) -> None:
    setting = {"kind": "bucket", "address": f"s3://{BUCKET}/ledgers"}
    context = Context(Settings(home=tmp_path, ledger_anchors={"archive": setting}))
    ledger = Ledger.at_home(tmp_path)
    for keys in ("ab", "cd"):
        ledger.append(*({"kind": "trained", "key": key} for key in keys))
        assert anchor(requests.LedgerAnchorInput(), context).exit_code == 0
    result = verify(requests.LedgerVerifyInput(anchor=True), context)
    assert (result.problems, result.anchors[0].size, result.anchors[0].checkpoints) == ((), 6, 2)
    (version, *_) = bucket.list_object_versions(Bucket=BUCKET)["Versions"]
    retention = {"Mode": "COMPLIANCE", "RetainUntilDate": datetime.now(UTC) + timedelta(days=365)}
    bucket.put_object_retention(Bucket=BUCKET, Key=version["Key"], VersionId=version["VersionId"], Retention=retention)
    with pytest.raises(ClientError, match="AccessDenied"):
        bucket.delete_object(Bucket=BUCKET, Key=version["Key"], VersionId=version["VersionId"])
    assert b"canary-secret" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    (ledger.folder / "checkpoint").unlink()
    for path in sorted((ledger.folder / "tile").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    ledger.index_path.unlink()
    Ledger.at_home(tmp_path).append(*({"kind": "trained", "key": f"x{number}"} for number in range(9)))
    assert "not the first ones" in verify(requests.LedgerVerifyInput(anchor=True), context).problems[0].problem
