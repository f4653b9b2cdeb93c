"""Program of a real night in its own process, with a quick model and a quick trainer: what tests kill at every point.

    python -m tools.night_program FOLDER            run the night; TRAINYARD_FAULT ends it at a point
    python -m tools.night_program FOLDER --state    print what is left as one JSON document

Disk, ledger, graph database, markers, registry and object store are the product's own; only the model's answers and the
adapter's weights are made here, in milliseconds.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from trainyard.compute.child import faultpoint
from trainyard.data.corpora import Corpora
from trainyard.data.limited.service import keep_service
from trainyard.night.deps import NightDeps, NightVerdict, Stores, Trained, TrainingRequest
from trainyard.night.phases import run_night
from trainyard.night.report import NightReport
from trainyard.serve.extraction.extraction import MAX_DOCUMENT_CHARS, Complete, Messages, parse_prompt
from trainyard.spec.night import NightConfig, read_night
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.clock import RealClock
from trainyard.stores.documents import DocumentLedger
from trainyard.stores.files import RealFiles
from trainyard.stores.graph.local import LadybugGraph
from trainyard.stores.markers.local import LocalMarkers
from trainyard.stores.markers.records import find_owner
from trainyard.stores.objects.local import FolderStore
from trainyard.stores.processes import boot_id
from trainyard.stores.whole import write_json_durably

RUN = "20270102"
CONFIG: Mapping[str, Any] = {
    "tenant": "acme",
    "streams": [{"name": "notes", "globs": ["*.md"]}],
    "buckets": [
        {"name": "engineering", "method": "sft", "threshold": 3},
        {"name": "apprenticeship", "method": "dpo", "threshold": 2},
    ],
}
DOCUMENTS = {
    "one.md": "person Ada\ncompany Acme",
    "two.md": "person Bo\ncompany Acme\nlocation Oslo",
    "three.md": "nonsense",
}


class QuickServer:
    """Answers at once; `kind name` lines become entities."""

    drain_s = 300.0
    window_chars = MAX_DOCUMENT_CHARS

    def start(self) -> None: ...

    def wait_ready(self, timeout_s: float) -> None: ...

    def warm(self, schema: object) -> None: ...

    @asynccontextmanager
    async def completing(self, concurrency: int, *, timeout_s: float) -> AsyncIterator[Complete]:
        yield self.complete

    async def complete(self, messages: Messages, schema: dict[str, Any] | None, max_tokens: int) -> str:
        lines = [line.split(" ", 1) for line in parse_prompt(messages)[0].splitlines() if " " in line]
        entities = [{"kind": kind, "name": name} for kind, name in lines]
        return json.dumps({"entities": entities, "relations": []}) if entities else "no"

    def drain(self, timeout_s: float) -> None: ...

    def stop(self) -> None: ...

    def prove_free(self, timeout_s: float) -> None: ...


class QuickTrainer:
    """Weights are the digest of the tuples, in files as an adapter has them."""

    def __init__(self, versions: AdapterRegistry) -> None:
        self.versions = versions

    def missing(self) -> str:
        return ""

    def train(self, order: TrainingRequest) -> Trained:
        folder = order.work / "adapter"
        folder.mkdir(parents=True, exist_ok=True)
        digests = " ".join(training_tuple.digest for training_tuple in order.tuples)
        weights = np.frombuffer(hashlib.sha256(digests.encode()).digest(), np.uint8)
        save_file({"base_model.model.layers.0.q_proj.lora_A.weight": weights}, folder / "adapter_model.safetensors")
        write_json_durably(folder / "adapter_config.json", {"peft_type": "LORA"})
        write_json_durably(folder / "training.json", {"final_loss": 1.0})
        order.renew_if_due()
        return Trained(folder, {"final_loss": 1.0})

    def judge(self, order: TrainingRequest, trained: Trained) -> NightVerdict:
        return NightVerdict(True, facts={"better": True})

    def deploy(self, version: AdapterVersion) -> None:
        self.versions.promote(version.name)


def world(folder: Path) -> NightDeps:
    """The night's surroundings below one folder."""
    files, clock = RealFiles(), RealClock()
    versions = AdapterRegistry(folder / "adapters")
    return NightDeps(
        root=folder / "acme",
        documents=folder / "documents",
        files=files,
        clock=clock,
        stores=Stores(
            ledger=DocumentLedger(folder / "acme" / "documents.jsonl", at=faultpoint),
            graph=lambda: LadybugGraph(folder / "graph"),
            markers=LocalMarkers(folder / "acme" / "markers", lease_s=60, at=faultpoint),
            corpora=Corpora(folder / "acme" / "corpora"),
            versions=versions,
            check_pulled=lambda _folder, _signature, _source: "",  # the versions of this program are not signed
            objects=FolderStore(folder / "cloud", at=faultpoint),
        ),
        server=QuickServer(),
        trainer=QuickTrainer(versions),
        owner=find_owner(),
        boot_id=boot_id(),
        base_model="base",
        alone=lambda _run: nullcontext(),
        at=faultpoint,
    )


def prepare(folder: Path) -> None:
    """The documents and the corpora of the night."""
    (folder / "documents").mkdir(parents=True)
    for name, text in DOCUMENTS.items():
        (folder / "documents" / name).write_text(text, encoding="utf-8")
    corpora = Corpora(folder / "acme" / "corpora")
    corpora.add("engineering", "sft", [{"diff": f"+{n}", "message": f"Change {n}"} for n in range(4)])
    corpora.add("apprenticeship", "dpo", [{"prompt": f"{n}?", "shadow": "no", "verdict": f"yes {n}"} for n in range(3)])


def config() -> NightConfig:
    return read_night(CONFIG)


def run(folder: Path) -> NightReport:
    return run_night(config(), world(folder), RUN)


def state(folder: Path) -> dict[str, Any]:
    """Graph, ledger, versions, live pointers, markers and published objects, without times."""
    stores = world(folder).stores
    with stores.graph() as graph:
        dump = list(graph.dump())
    ledger = [replace(entry, at=0.0) for entry in stores.ledger.entries()]
    versions = {version.name: [version.run_key, version.sha256] for version in stores.versions.list()}
    live = {role: stores.versions.live("acme", role).version for role in ("engineering", "apprenticeship")}
    assert stores.objects is not None
    return {
        "graph": dump,
        "ledger": sorted(
            f"{entry.key.stream} {entry.name} {entry.key.content_sha256} {entry.status}" for entry in ledger
        ),
        "versions": [sorted(version[0] for version in versions.values()), sorted(v[1] for v in versions.values())],
        "live": live,
        "markers": {name: str(state) for name, state in stores.markers.states().items()},
        "cloud": sorted({info.name for info in stores.objects.list("")}),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    if "--state" in sys.argv:
        print(json.dumps(state(folder)))
        return
    with keep_service():
        report = run(folder)
    print(report.headline)
    sys.exit(report.exit_code)


if __name__ == "__main__":
    main()
