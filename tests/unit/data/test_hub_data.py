"""Data sets of the Hub: the real clients at a data worker, the pinned commit, and reading without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.data_worker import DataWorker, make_data_worker, serving_data
from tests.unit.data.reading import json_lines
from trainyard.spec.nodes import DataSourceConfig

PROGRAM = """
import json, sys, tempfile
from pathlib import Path
from trainyard.data.limited.service import keep_service
from trainyard.data.remote.kinds import pin_sources
from trainyard.data.rows import ROWS_FILE, read_rows
from trainyard.data.sources import read_source
from trainyard.errors import TrainyardError
from trainyard.settings import load_settings
from trainyard.spec.nodes import DataSourceConfig

settings = load_settings()
with keep_service():
    for line in sys.argv[1:]:
        asked = json.loads(line)
        run, refresh = asked.pop("run", ""), asked.pop("refresh", False)
        config, folder = DataSourceConfig(**asked), Path(tempfile.mkdtemp())
        try:
            pin_sources(config, settings, run=run, refresh=refresh, say=lambda text: None)
            made = read_source(config, folder, settings=settings, report=lambda fraction, text: None)
        except TrainyardError as error:
            print("ANSWER", json.dumps(str(error)))
            continue
        ((port, part),) = made.outputs.items()
        rows = [row.source for row in read_rows(folder / part.folder / ROWS_FILE, port)]
        print("ANSWER", json.dumps({"port": port.value, "rows": rows, "facts": part.facts}))
"""
CARD = """---
configs:
- config_name: easy
  default: true
  data_files: [{split: train, path: easy/*.jsonl}, {split: test, path: held/*.jsonl}]
- config_name: hard
  data_files: hard/*.parquet
---
# Chats
"""


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]}


def read(endpoint: str, home: Path, *configs: dict[str, Any], **variables: str) -> list[Any]:
    """What the program prints for each config, in a process of its own, which reads the endpoint when it starts."""
    hub_variables = {
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(home / "hf"),
        "TRAINYARD_HOME": str(home),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(json.dumps, configs)],
        env={**os.environ, **hub_variables, **variables}, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line.removeprefix("ANSWER ")) for line in done.stdout.splitlines() if line.startswith("ANSWER ")]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    for name in ("easy", "held", "hard", "plain"):
        (folder / name).mkdir()
    (folder / "README.md").write_text(CARD)
    for number in range(4):
        (folder / "easy" / f"part-{number}.jsonl").write_text(json_lines(*[chat(f"{number} {n}") for n in range(10)]))
    (folder / "held" / "a.jsonl").write_text(json_lines(chat("held out")))
    parquet.write_table(pa.Table.from_pylist([chat("in Parquet")]), folder / "hard" / "a.parquet")
    return folder


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DataWorker]:
    with serving_data(make_data_worker(tmp_path / "worker"), everybody=True) as worker:
        yield worker


def test_splits_configs_and_offline_reading(served: Path, tmp_path: Path, server: DataWorker) -> None:
    commit = server.fill("datasets", "org/chats", served)
    server.gated.add("org/closed")
    whole, test, hard, unknown, split, closed, config = read(
        server.url, tmp_path,
        {"hub": "org/chats"}, {"hub": {"name": "org/chats", "split": "test"}},
        {"hub": {"name": "org/chats", "config": "hard"}}, {"hub": "org/nothing"},
        {"hub": {"name": "org/chats", "split": "dev"}}, {"hub": "org/closed"},
        {"hub": {"name": "org/chats", "config": "odd"}},
    )  # fmt: skip
    assert (whole["port"], len(whole["rows"]), whole["facts"]["files"]) == ("sft", 40, 4)
    assert whole["rows"][0] == "part-0.jsonl:1"
    assert whole["facts"]["revision"] == commit
    assert whole["facts"]["address"] == "hub:org/chats/train@main"
    assert (len(test["rows"]), len(hard["rows"])) == (1, 1)
    assert unknown.startswith("E-DATA-NOT-FOUND: The Hub has no data set 'org/nothing'")
    assert split.startswith("E-DATA-NOT-FOUND: The data set org/chats has no split 'dev'. Why: It has train, test.")
    assert closed.startswith("E-DATA-NOT-FOUND: The Hub does not give the data set 'org/closed'")
    assert config.startswith("E-DATA-UNREADABLE: The data set 'org/chats' cannot be read with these settings.")
    again, never = read(server.url, tmp_path, {"hub": "org/chats"}, {"hub": "org/other"}, HF_HUB_OFFLINE="1")
    assert again == whole
    assert never.startswith("E-URL: The data set 'org/other' is not on this machine")


@pytest.mark.slow
def test_the_commit_is_kept_until_a_run_refreshes(tmp_path: Path, server: DataWorker) -> None:
    served, config = tmp_path / "served", {"hub": "org/one"}
    served.mkdir()
    (served / "train.jsonl").write_text(json_lines(chat("first")))
    server.fill("datasets", "org/one", served)
    (first,) = read(server.url, tmp_path, {**config, "run": "1"})
    (served / "train.jsonl").write_text(json_lines(chat("second"), chat("third")))
    server.fill("datasets", "org/one", served)
    server.requests.clear()
    cached, fresh, retried, after = read(
        server.url, tmp_path, {**config, "run": "2"}, {**config, "run": "3", "refresh": True},
        {**config, "run": "3", "refresh": True}, {**config, "run": "4"},
    )  # fmt: skip
    assert cached == first
    assert len(fresh["rows"]) == 2
    assert fresh["facts"]["revision"] != first["facts"]["revision"]
    assert retried == after == fresh
    looks = [path for _, path in server.requests if path == "/api/datasets/org/one/revision/main"]
    assert len(looks) == 1, "of the run that refreshes, once"


def test_only_as_many_files_are_fetched_as_max_rows_needs(served: Path, tmp_path: Path, server: DataWorker) -> None:
    server.fill("datasets", "org/chats", served)
    (answer,) = read(server.url, tmp_path, {"hub": "org/chats", "max_rows": 15})
    fetched = {path.rpartition("/")[2] for method, path in server.requests if "/easy/" in path and method == "GET"}
    assert len(answer["rows"]) == 15
    assert fetched == {"part-0.jsonl", "part-1.jsonl"}


def test_a_data_set_with_code_is_refused(tmp_path: Path, server: DataWorker) -> None:
    served = tmp_path / "served"
    served.mkdir()
    (served / "code.py").write_text("raise SystemExit('it ran')")
    server.fill("datasets", "org/code", served)
    (refused,) = read(server.url, tmp_path, {"hub": "org/code"})
    assert refused.startswith("E-DATA-UNREADABLE")
    assert "A data set that needs code of its own is never read." in refused
    with pytest.raises(ValueError, match="trust_remote_code"):
        DataSourceConfig(hub={"name": "org/code", "trust_remote_code": True})  # type: ignore[arg-type]


def test_a_source_without_a_data_set_of_the_hub_has_the_config_it_had() -> None:
    assert set(DataSourceConfig(path="a.jsonl").model_dump()) == {
        "path", "url", "repository", "data_worker", "format", "include", "exclude", "max_rows", "sets",
        "max_bad_fraction",
    }  # fmt: skip
