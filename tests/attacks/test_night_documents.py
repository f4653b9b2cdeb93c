"""Documents of a night's streams and lines of a corpus that are made to hang or to fill the memory: each costs only
itself, and none is parsed in the night's own process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tools import night_program
from trainyard.data.corpora import Corpora
from trainyard.data.limited.requests import Parse, ParsedItem, ParseItem, ParseRequest
from trainyard.data.limited.service import ReadingService, parse_limited
from trainyard.data.readers.streams import Limits
from trainyard.night.deps import NightDeps
from trainyard.night.phases import run_night
from trainyard.night.report import NightReport
from trainyard.night.streams import RememberedParse
from trainyard.night.wiring import make_night_deps
from trainyard.settings import Settings
from trainyard.spec.night import read_night
from trainyard.stores.graph.local import MemoryGraph
from trainyard.testing.nights.injected_bugs import run_campaign

pytestmark = pytest.mark.integration

CONFIG = {**night_program.CONFIG, "streams": [{"name": "notes", "globs": ["**"]}]}
CHILDREN = ("data/limited/jobs.py", "data/readers/parts.py", "spec/load/text.py")
"""The code that parses documents and lines."""
QUICK = Limits(document_cpu_s=5.0, document_cpu_s_per_mib=0.0)
SHORT = Limits(document_cpu_s=0.1, document_cpu_s_per_mib=0.0)
SMALL = Limits(document_memory=8 << 20)


def parser_with(service: ReadingService, limits: Limits) -> Parse:
    def parse(items: Sequence[ParseItem]) -> list[ParsedItem]:
        return service.parse(ParseRequest(items, limits)) if items else []

    return parse


def world_with(folder: Path, documents: Mapping[str, bytes], parse: Parse = parse_limited) -> NightDeps:
    """Two good documents, one that the model rejects, and these."""
    night_program.prepare(folder)
    for name, data in documents.items():
        (folder / "documents" / name).write_bytes(data)
    deps = night_program.world(folder)

    @contextmanager
    def graph() -> Iterator[MemoryGraph]:
        yield MemoryGraph()

    corpora = Corpora(deps.stores.corpora.root, parse=parse)
    return replace(
        deps, parse=RememberedParse(parse), stores=replace(deps.stores, graph=graph, corpora=corpora, objects=None)
    )


def night(world: NightDeps) -> NightReport:
    return run_night(read_night(CONFIG), world, night_program.RUN)


def list_quarantined(report: NightReport) -> dict[str, str]:
    return {document.name: document.reason for document in report.phase1.quarantined if document.name != "three.md"}


def json_with_a_key_twice(keys: int) -> bytes:
    return ("{" + ",".join(f'"k{number}":0' for number in range(keys)) + f',"k{keys - 1}":1}}').encode()


LINES = b"a\n" * 499_000
"""Half a million places where a part may begin: 60 MB of them in memory."""


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.json", json_with_a_key_twice(49_000), "is written twice"),
        ("a.yaml", b"[" * 900_000, "nested deeper"),
        ("a.json", b'{"a":' * 100_000, "nested deeper"),
        ("a.yaml", b"- a\n" * 240_000, "more than 200,000 values"),
        ("a.yaml", b"? " * 400_000, "A key is not a text"),
    ],
    ids=["the last of 49,000 keys twice", "nested lists", "nested mappings", "many values", "nested keys"],
)
def test_a_document_that_took_long_is_quarantined_within_seconds(
    name: str, data: bytes, why: str, reading_service: ReadingService, tmp_path: Path
) -> None:
    """Seconds of CPU time: over them the reason would be another one."""
    report = night(world_with(tmp_path, {name: data}, parser_with(reading_service, QUICK)))
    assert report.phase1.done == 2
    (reason,) = list_quarantined(report).values()
    assert why in reason


@pytest.mark.parametrize(
    ("limits", "why"), [(SHORT, "more CPU time"), (SMALL, "more than 8 MiB of memory")], ids=["time", "memory"]
)
def test_a_document_over_its_limit_costs_only_itself(
    limits: Limits, why: str, reading_service: ReadingService, tmp_path: Path
) -> None:
    report = night(world_with(tmp_path, {"a.md": LINES}, parser_with(reading_service, limits)))
    assert report.state == "completed"
    assert report.phase1.done == 2
    assert why in list_quarantined(report)["a.md"]


def test_a_folder_of_breaches_ends_the_phase_with_a_code(reading_service: ReadingService, tmp_path: Path) -> None:
    limits = replace(SHORT, breaches=1)
    report = night(world_with(tmp_path, {"a.md": LINES, "b.md": LINES + b"b"}, parser_with(reading_service, limits)))
    assert report.phase1.failure is not None
    assert report.phase1.failure.code == "E-DATA-UNREADABLE"
    assert "2 of its documents went over the limits" in report.phase1.failure.what


@pytest.mark.parametrize(
    ("limits", "why"), [(Limits(document_cpu_s=0.02, document_cpu_s_per_mib=0.0), "CPU time"), (SMALL, "memory")]
)
def test_a_line_over_its_limit_costs_only_itself(
    limits: Limits, why: str, reading_service: ReadingService, tmp_path: Path
) -> None:
    corpora = Corpora(tmp_path, parse=parser_with(reading_service, limits))
    corpora.add("engineering", "sft", [{"diff": "+1", "message": "One"}])
    with corpora.file("engineering").open("ab") as stream:
        stream.write(b'{"diff": [' + b"{}," * 1_200_000 + b"1]}\n")
        stream.write(json.dumps({"diff": "+2", "message": "Two"}).encode() + b"\n")
    reading = corpora.read("engineering", "sft")
    assert len(reading.tuples) == 2
    assert [(line.line, why in line.reason) for line in reading.invalid] == [(2, True)]


def test_no_document_and_no_line_is_parsed_in_the_process_of_the_night(tmp_path: Path) -> None:
    world = world_with(tmp_path, {"a.yaml": b"a: [", "long.md": b"person Ada\n" * 10_000})
    called: list[str] = []

    def note(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            called.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        report = night(world)
    finally:
        sys.setprofile(None)
    assert "This is not YAML" in list_quarantined(report)["a.yaml"]
    assert [bucket.valid for bucket in report.phase2.buckets] == [4, 3]
    assert any(name.endswith("night/streams.py") for name in called)
    assert [name for name in called if name.endswith(CHILDREN)] == []


def test_a_real_night_parses_in_children(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "documents").mkdir()
    config = read_night({"documents": str(tmp_path / "documents")})
    world = make_night_deps(config, Settings(home=tmp_path / "home", data_roots=(tmp_path,)))
    assert isinstance(world.parse, RememberedParse)
    assert world.parse.parse is parse_limited
    assert world.stores.corpora.parse is parse_limited


def test_simulated_nights_start_no_process() -> None:
    """An audit hook cannot be taken away again: it counts only while the campaign runs."""
    watching, started = [True], list[str]()

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if watching[0] and event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"):
            started.append(event)

    sys.addaudithook(hook)
    campaign = run_campaign(326 * 1_000_003)
    watching[0] = False
    assert campaign.violations == []
    assert campaign.recorded
    assert started == []
