"""Data in Azure's blob store and in PostgreSQL: by the real clients on real servers, where both are installed.

Azurite is `npm install azurite`, its client `pip install 'trainyard[azure]'`; PostgreSQL is the distribution's, its
driver `pip install psycopg2-binary`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.unit.data.reading import json_lines
from tests.unit.data.test_hub_data import read
from trainyard.loading import load_object

pytestmark = pytest.mark.slow
AZURITE = shutil.which("azurite-blob")
POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own account (its README): it opens nothing else."""
PAIR = {"prompt": "Why?", "completion": "Because."}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"nothing listens on {port}")


@contextmanager
def running(argv: list[str], port: int, **more: Any) -> Iterator[None]:
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more) as child:
        try:
            wait_for(port)
            yield
        finally:
            child.terminate()


@pytest.mark.skipif(not (AZURITE and find_spec("adlfs")), reason="azurite-blob or adlfs is not installed")
def test_files_and_folders_of_azure_are_read_and_a_change_is_seen(tmp_path: Path) -> None:
    port = free_port()
    url = f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};AccountName={ACCOUNT};AccountKey={KEY};"
    variables = {
        "AZURE_STORAGE_CONNECTION_STRING": f"DefaultEndpointsProtocol=http;{url}",
        "TRAINYARD_DATA_BUCKETS": '["az://rows"]',
    }
    argv = [str(AZURITE), "--silent", "--skipApiVersionCheck", "--blobPort", str(port), "--location", str(tmp_path)]
    single = {"url": "az://rows/chats/a.jsonl"}
    with running(argv, port):
        client = load_object("azure.storage.blob:BlobServiceClient").from_connection_string(
            variables["AZURE_STORAGE_CONNECTION_STRING"]
        )
        client.create_container("rows")
        for name in ("a", "sub/b"):
            client.get_blob_client("rows", f"chats/{name}.jsonl").upload_blob(json_lines(PAIR))
        folder = {"url": "az://rows/chats/", "format": "prompt_completion"}
        alone, both = read("", tmp_path, {**single, "run": "1"}, folder, **variables)
        client.get_blob_client("rows", "chats/a.jsonl").upload_blob(json_lines(PAIR, PAIR), overwrite=True)
        same, new = read("", tmp_path, {**single, "run": "1"}, {**single, "run": "2"}, **variables)
        client.close()
    assert (alone["port"], alone["rows"]) == ("sft", [f"{single['url']}:1"])
    assert sorted(both["rows"]) == ["a.jsonl:1", "b.jsonl:1"]
    assert same.startswith("E-OBJECT-CHANGED: a.jsonl of az://rows/chats/a.jsonl changed while it was read.")
    assert len(new["rows"]) == 2


@pytest.mark.skipif(not (POSTGRES and find_spec("psycopg2")), reason="PostgreSQL or psycopg2 is not installed")
def test_rows_of_postgresql_are_read_in_a_read_only_transaction(tmp_path: Path) -> None:
    port, server_folder = free_port(), tmp_path / "server"
    server_folder.mkdir()
    # The server does not run as root.
    account: dict[str, Any] = {"user": "postgres"} if os.getuid() == 0 else {}
    if account:
        shutil.chown(server_folder, "postgres")
        for folder in (tmp_path, *tmp_path.parents[:3]):
            folder.chmod(folder.stat().st_mode | 0o011)
    initdb = POSTGRES[-1]
    subprocess.run(
        [initdb, "-D", server_folder / "d", "-A", "trust", "-U", "reader"], check=True, capture_output=True, **account
    )
    server = [
        str(initdb.with_name("postgres")),
        "-D",
        str(server_folder / "d"),
        "-p",
        str(port),
        "-k",
        str(server_folder),
    ]
    url = f"postgresql+psycopg2://reader@127.0.0.1:{port}/postgres"
    query = "select question as prompt, answer as completion, at from qa order by id"
    with running(server, port, **account):
        engine = load_object("sqlalchemy").create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql(
                "create table qa as select i as id, 'q' || i as question, 'a' || i as answer, now() as at "
                "from generate_series(1, 2500) i"
            )
            connection.exec_driver_sql("create sequence s")
        engine.dispose()
        deleting = f"with gone as (delete from qa returning *) {query.replace('qa', 'gone')}"
        calling = "select set_config('transaction_read_only', 'off', true) as prompt, nextval('s') as completion"
        rows, deleted, called = read(
            "", tmp_path, *({"sql": {"query": sql, "database": "shop"}} for sql in (query, deleting, calling)),
            SHOP=url, TRAINYARD_DATABASES='{"shop": "SHOP"}',
        )  # fmt: skip
    assert (rows["port"], len(rows["rows"]), rows["facts"]["ignored_keys"]) == ("sft", 2500, {"at": 2500})
    assert deleted.startswith("E-DATA-UNREADABLE")
    assert "transaction read-write mode" in called
