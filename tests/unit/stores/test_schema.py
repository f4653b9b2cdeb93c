"""Schema versions of stored files: written by the writer, absent in earlier files, refused when they are newer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.stores.marking import marker
from tests.unit.stores.test_job_records import make_record
from trainyard.app.run_records import RunRecord, RunResult, read_result
from trainyard.compute.services import Service, read_record, write_record
from trainyard.errors import Conflict
from trainyard.night.report import NightReport, read_report, write_report
from trainyard.spec.states import JobState
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.artifacts import ArtifactStore, Produced
from trainyard.stores.documents import DocumentKey, DocumentLedger, Entry, content_sha256, from_line, to_line
from trainyard.stores.files import RealFiles
from trainyard.stores.jobs import JobStore
from trainyard.stores.markers.local import LocalMarkers
from trainyard.stores.objects.local import FolderStore
from trainyard.stores.schema import KEY, KINDS, EarlierFiles, add_version, earlier_files, read_versioned

RESULT = RunResult(run_id="r", name="n", chain="c", digest="d", state=JobState.COMPLETED, message="")
ENTRY = Entry(key=DocumentKey(content_sha256(b"a"), "notes", "v1"), name="a.md", status="done")
Write = Callable[[Path], Path]
Read = Callable[[Path], Any]


def write_job(home: Path) -> Path:
    JobStore(home / "jobs").put(make_record("one"))
    return home / "jobs" / "one.json"


def write_run(home: Path) -> Path:
    folder = home / "runs" / "one"
    folder.mkdir(parents=True)
    RunRecord(folder).finish(RESULT)
    return folder / "result.json"


def register(home: Path) -> AdapterRegistry:
    (home / "source").mkdir(parents=True)
    (home / "source" / "adapter_model.safetensors").write_bytes(b"weights")
    registry = AdapterRegistry(home / "adapters")
    version = registry.register("acme", "helper", home / "source")
    registry.promote(version.name)
    return registry


def write_adapter(home: Path) -> Path:
    register(home)
    return home / "adapters" / "acme" / "helper" / "v1" / "manifest.json"


def write_live(home: Path) -> Path:
    register(home)
    return home / "adapters" / "acme" / "helper" / "live.json"


def write_artifact(home: Path) -> Path:
    store = ArtifactStore(home / "artifacts")
    store.produce("ab" * 32, lambda folder: Produced(outputs={}))
    return store.folder("ab" * 32) / "manifest.json"


def write_marker(home: Path) -> Path:
    folder = home / "tenants" / "acme" / "markers"
    LocalMarkers(folder).publish(marker())
    (path,) = folder.glob("*.json")
    return path


def write_service(home: Path) -> Path:
    path = home / "services" / "worker.json"
    write_record(path, Service(1, 0.0))
    return path


def write_night(home: Path) -> Path:
    folder = home / "tenants" / "acme" / "nights" / "20270102"
    folder.mkdir(parents=True)
    write_report(NightReport(run="20270102", tenant="acme", state="completed"), folder, RealFiles())
    return folder / "report.json"


def write_object(home: Path) -> Path:
    FolderStore(home / "cloud").put("a/b", b"data")
    (path,) = [
        path for path in (home / "cloud").rglob("*") if path.is_file() and path.read_bytes().startswith(b'{"last"')
    ]
    return path


FILES: dict[str, tuple[Write, Read]] = {
    "adapter": (write_adapter, lambda home: AdapterRegistry(home / "adapters").list()[0].name),
    "artifact": (write_artifact, lambda home: ArtifactStore(home / "artifacts").find("ab" * 32)),
    "job": (write_job, lambda home: JobStore(home / "jobs").get("one").id),
    "live": (write_live, lambda home: AdapterRegistry(home / "adapters").live("acme", "helper").version),
    "marker": (write_marker, lambda home: LocalMarkers(home / "tenants" / "acme" / "markers").pending()),
    "night": (write_night, lambda home: read_report(home / "tenants/acme/nights/20270102", RealFiles())),
    "object": (write_object, lambda home: FolderStore(home / "cloud").head("a/b")),
    "run": (write_run, lambda home: read_result(home / "runs" / "one")),
    "service": (write_service, lambda home: read_record(home / "services" / "worker.json")),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_stored_file_has_its_version_and_an_earlier_one_is_read_the_same(kind: str, tmp_path: Path) -> None:
    write, read = FILES[kind]
    path = write(tmp_path)
    stored = json.loads(path.read_bytes())
    assert stored[KEY] == KINDS[kind].version
    now = read(tmp_path)
    assert now is not None
    assert earlier_files(tmp_path) == []
    path.write_text(json.dumps({name: value for name, value in stored.items() if name != KEY}))
    assert read(tmp_path) == now
    below_home = [EarlierFiles(kind, 1, KINDS[kind].version, 1)] if KINDS[kind].patterns else []
    assert earlier_files(tmp_path) == below_home


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_a_newer_trainyard_is_refused(kind: str, tmp_path: Path) -> None:
    write, read = FILES[kind]
    path = write(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_bytes()), KEY: KINDS[kind].version + 1}))
    with pytest.raises(Conflict, match=r"E-SCHEMA: .* was made by a newer Trainyard.*Update Trainyard"):
        read(tmp_path)


def test_a_ledger_reads_earlier_entries_and_refuses_newer_ones(tmp_path: Path) -> None:
    line = to_line(ENTRY).rstrip(b"\n")
    assert json.loads(line)["entry"][KEY] == KINDS["document"].version
    assert from_line(line) == ENTRY
    for version, expected in ((None, ENTRY), (KINDS["document"].version + 1, Conflict)):
        entry = {name: value for name, value in json.loads(line)["entry"].items() if name != KEY}
        body = json.dumps(entry if version is None else {**entry, KEY: version}).encode()
        path = tmp_path / "tenants" / "acme" / "documents.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'{"sha256":"' + content_sha256(body).encode() + b'","entry":' + body + b"}\n")
        if expected is Conflict:
            with pytest.raises(Conflict, match="E-SCHEMA"):
                list(DocumentLedger(path).entries())
        else:
            assert list(DocumentLedger(path).entries()) == [ENTRY]
            assert earlier_files(tmp_path) == [EarlierFiles("document", 1, KINDS["document"].version, 1)]


@pytest.mark.parametrize(("data", "why"), [(b"", "Expecting value"), (b"[]", "is not a mapping"), (b"{", "Expecting")])
def test_what_is_no_mapping_has_no_version(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_versioned("job", data, "one.json")


def test_a_version_is_not_part_of_the_value() -> None:
    stored = add_version("job", {"id": "one"})
    assert read_versioned("job", json.dumps(stored).encode(), "one.json") == {"id": "one"}
