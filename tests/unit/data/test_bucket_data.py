"""Data in buckets: s3:// by the real client over moto's server, gs:// over the object store's double."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.unit.data.reading import json_lines
from tests.unit.data.test_hub_data import read
from trainyard.stores.objects.addresses import open_store
from trainyard.testing.object_server import ObjectServer

PAIR = {"prompt": "Why?", "completion": "Because."}
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
ALLOWED = '["s3://rows", "gs://rows"]'


@pytest.fixture
def s3() -> Iterator[tuple[str, Any]]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=url, aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
    )
    client.create_bucket(Bucket="rows")
    yield url, client
    client.close()
    server.stop()


def test_files_and_folders_of_s3_are_read_and_a_change_is_seen(s3: tuple[str, Any], tmp_path: Path) -> None:
    url, client = s3
    for name, body in {
        "chats/a.jsonl": json_lines(PAIR), "chats/sub/b.jsonl": json_lines(PAIR | {"prompt": "Who?"}),
        "chats/.hidden.jsonl": "{", "docs/rails.md": "# Rails\n\nIron.",
    }.items():  # fmt: skip
        client.put_object(Bucket="rows", Key=name, Body=body.encode())
    single, folder = {"url": "s3://rows/chats/a.jsonl"}, {"url": "s3://rows/chats", "format": "prompt_completion"}
    variables = {**KEYS, "AWS_ENDPOINT_URL": url, "TRAINYARD_DATA_BUCKETS": ALLOWED}
    first, both, docs, missing, other = read(
        "", tmp_path, {**single, "run": "1"}, folder, {"url": "s3://rows/docs/"}, {"url": "s3://rows/nothing"},
        {"url": "s3://private/rows.jsonl"}, **variables,
    )  # fmt: skip
    assert (first["port"], first["rows"], first["facts"]["address"]) == ("sft", [f"{single['url']}:1"], single["url"])
    assert len(first["facts"]["versions"]["a.jsonl"]) > 32
    assert sorted(both["rows"]) == ["a.jsonl:1", "b.jsonl:1"]
    assert (docs["port"], docs["rows"]) == ("documents", ["rails.md"])
    assert missing.startswith("E-DATA-NOT-FOUND: There is nothing at s3://rows/nothing.")
    assert "R-SOURCE" in other
    assert "data_buckets" in other
    client.put_object(Bucket="rows", Key="chats/a.jsonl", Body=json_lines(PAIR, PAIR).encode())
    same, new = read("", tmp_path, {**single, "run": "1"}, {**single, "run": "2"}, **variables)
    assert same.startswith("E-OBJECT-CHANGED: a.jsonl of s3://rows/chats/a.jsonl changed while it was read.")
    assert len(new["rows"]) == 2
    assert new["facts"]["revision"] != first["facts"]["revision"]


def test_gs_is_read_through_the_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ObjectServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        open_store("gs://rows/chats").put("a.jsonl", json_lines(PAIR).encode())
        open_store("gs://rows/chats").put("b.jsonl", json_lines(PAIR).encode())
        single, both = read(
            "", tmp_path, {"url": "gs://rows/chats/b.jsonl"}, {"url": "gs://rows/chats", "format": "prompt_completion"},
            TRAINYARD_DATA_BUCKETS=ALLOWED,
        )  # fmt: skip
    assert single["rows"] == ["gs://rows/chats/b.jsonl:1"]
    assert both["rows"] == ["a.jsonl:1", "b.jsonl:1"]
    assert len(both["facts"]["versions"]) == 2


def test_a_client_that_is_not_installed_is_named(tmp_path: Path) -> None:
    (answer,) = read("", tmp_path, {"url": "az://rows/a.jsonl"}, TRAINYARD_DATA_BUCKETS='["az://rows"]')
    assert answer.startswith("E-PACKAGE-MISSING: The client for az:// addresses is not installed.")
    assert "pip install 'trainyard[azure]'" in answer
