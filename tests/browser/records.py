"""What runs, nights and sweeps left in a home, made without running them: the pages of records have something to show.

Every text that a page shows contains markup that would run if it were not text.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import orjson

from tests.unit.app.test_record_verbs import make_report, make_rows
from tests.unit.app.test_serving_commands import register
from trainyard.app.context import Context
from trainyard.app.run_records import RunRecord
from trainyard.app.sweep_start import build_sweep
from trainyard.data.quarantine import QUARANTINE_FILE
from trainyard.night.report import BucketReport, NightReport, Phase1Report, Phase2Report, Quarantined, write_report
from trainyard.night.training import tenant_root
from trainyard.operations.sweeps import SweepInput
from trainyard.settings import Settings
from trainyard.stores.artifacts import ArtifactStore, Produced
from trainyard.stores.files import DISK
from trainyard.stores.graph.facts import Entity, Mutation, Named, Relation
from trainyard.stores.graph.local import LadybugGraph
from trainyard.stores.graph.remote import graph_file
from trainyard.sweeps.study import SweepRecord, SweepStudy, sweep_folder, write_record

RUN = "33333333-0000-4000-8000-000000000000"
EVIL = "<img src=x onerror=alert(1)>"
NIGHT = "2026-10-03"
SWEEP = "guide"
SWEPT = """
name: guide
nodes:
- {type: data_source, config: {path: swept.jsonl}}
- {type: trainer, config: {hyperparameters: {max_steps: 36}}}
"""
VALUES = (2.5, 1.25, 3.75)
"""Metric of each trial at its first rung; the second is the best."""


def get_documents_folder(home: Path) -> Path:
    """The folder of documents in the data root of the tenant."""
    return home / "tenants" / "default" / "depot"


def seed_documents(home: Path) -> None:
    folder = get_documents_folder(home)
    folder.mkdir(parents=True)
    for number in range(24):
        lines = [f"The depot {number} has {number + 3} tracks.", f"The crane {number} lifts {number + 10} tonnes."]
        (folder / f"depot-{number}.md").write_text(f"# Depot {number}\n\n" + "\n\n".join(lines) + "\n")


def seed_run(here: Settings, scratch: Path) -> None:
    def write_rows(folder: Path) -> Produced:
        rows = make_rows(folder)
        with (folder / "sft" / QUARANTINE_FILE).open("ab") as stream:
            line = {"line": 11, "source": EVIL, "reason": "too_long", "detail": EVIL, "row": EVIL + "x" * 3_000}
            stream.write(orjson.dumps(line) + b"\n")
        return rows

    def report(folder: Path) -> Produced:
        report = make_report(folder, scratch / "job")
        path = folder / "report" / "report.json"
        value = json.loads(path.read_text())
        value["samples"] = [{"prompt": EVIL, "gold": EVIL, "baseline": EVIL, "candidate": "Because."}]
        path.write_text(json.dumps(value))
        return report

    store, record = ArtifactStore(here.artifacts), RunRecord(here.runs / RUN)
    store.produce("c" * 64, write_rows)
    store.produce("d" * 64, report)
    nodes = [
        {"id": "validator", "type": "validator", "produces": ["sft"]},
        {"id": "evaluator", "type": "evaluator", "produces": ["report"]},
    ]
    record.begin({"name": f"chain {EVIL}", "tenant": "default", "nodes": nodes})
    os.utime(record.folder / "chain.json", (time.time() + 60,) * 2)
    record.emit("validator", "finished", key="c" * 64, rows={"sft": 5}, facts={})
    record.emit("evaluator", "finished", key="d" * 64, rows={}, facts={})


def seed_night(here: Settings) -> None:
    folder = tenant_root(here, "default") / "nights" / NIGHT
    folder.mkdir(parents=True)
    first = Phase1Report(waiting=3, done=2, extract_s=90.0, budget_s=120.0, quarantined=(
        Quarantined(stream="mail", name=EVIL, reason="too_long"),))  # fmt: skip
    bucket = BucketReport(bucket="engineering", method="sft", valid=250, new=250, threshold=200, note=EVIL)
    report = NightReport(
        run=NIGHT, tenant="default", state="completed", started=1_790_000_000.0, seconds=95.0, window_s=7200.0,
        phase1=first, phase2=Phase2Report(buckets=(bucket,)),
    )  # fmt: skip
    write_report(report, folder, DISK)


def seed_graph(here: Settings) -> None:
    jane, acme = Named("person", "Jane Doe"), Named("company", f"Acme {EVIL}")
    mutation = Mutation(
        "default", "mail", "a.md", "0" * 64, "v1", (Entity("person", "Jane Doe", {"note": EVIL}),),
        (Relation("works_at", jane, acme),),
    )  # fmt: skip
    graph_file(here).parent.mkdir(parents=True)
    with LadybugGraph(graph_file(here)) as graph:
        graph.mutate([mutation])


def seed_sweep(here: Settings) -> SweepRecord:
    """A sweep of three trials, of which one has finished."""
    folder = here.working_folder
    rows = [{"instruction": f"question {number}", "output": f"answer {number}"} for number in range(40)]
    (folder / "swept.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "swept.yaml").write_text(SWEPT)
    body = {"file": str(folder / "swept.yaml"), "parameters": {"trainer": {"learning_rate": "loguniform(1e-5, 1e-3)"}}}
    spec = build_sweep(SweepInput.model_validate({**body, "name": SWEEP}), Context(here, lambda _: None))
    record = SweepRecord(spec=spec, created=1.0)
    write_record(here, record)
    study = SweepStudy(sweep_folder(here, spec.name), spec)
    first, *_ = spec.levels
    for value in VALUES:
        study.pause(study.add(first).number, first, value)
    study.complete(VALUES.index(min(VALUES)), 36, min(VALUES) / 2)
    return record


def seed_adapters(here: Settings, scratch: Path, base: Path) -> None:
    """Two versions of one adapter."""
    for number in (1, 2):
        facts = {"deployment": {"targets": [{"type": "registry"}]}, "base_model": str(base)}
        register(here, scratch / f"weights-{number}", "crane", str(base), facts)
