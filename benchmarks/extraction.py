"""How much of what a careful reader finds in the sample documents does the extractor find, kind by kind?

The reader's labels are `examples/night/labels.json`. The extractor is asked as in a night: a prompt over HTTP to a
server that is started for it, then `parse`. By default that is the model `rules`, the baseline that a language model
has to beat. Another one:

    TRAINYARD_BENCH_PROFILE=deployments/profiles/NAME.yaml python -m benchmarks extraction

There is no bar for the rules but that they stay what they are; every figure is of exact names after normalisation.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.harness import Row, finish
from trainyard.errors import InvalidInput
from trainyard.serve.extraction.extraction import SCHEMA, extract
from trainyard.serve.inference_server.commands import read_profile
from trainyard.serve.inference_server.life import InferenceServer
from trainyard.serve.inference_server.profiles import ServerProfile
from trainyard.settings import settings
from trainyard.stores.graph.facts import ENTITY_KINDS, normalise_name

SAMPLES = Path(__file__).parent.parent / "examples" / "night"
BASELINE = {"person": 0.70, "company": 0.70, "project": 0.70, "account": 0.70, "location": 0.50}
"""F1 that the rules reached when this was written, less a margin; a profile of one's own has to beat the rules."""
Names = dict[str, set[str]]


def labels() -> dict[str, Names]:
    documents = json.loads((SAMPLES / "labels.json").read_text(encoding="utf-8"))
    return {
        document: {kind: {normalise_name(kind, name) for name in names} for kind, names in kinds.items()}
        for document, kinds in documents.items()
    }


async def found_by(server: InferenceServer, documents: list[str]) -> dict[str, Names]:
    """What the server finds; a document whose answer does not conform counts as nothing found."""
    entity_names = {document: {kind: set[str]() for kind in ENTITY_KINDS} for document in documents}

    async def extract_document(document: str) -> None:
        text = (SAMPLES / document).read_text(encoding="utf-8")
        try:
            extraction = await extract(text, document.split("/", maxsplit=1)[0], complete)
        except InvalidInput as error:
            print(f"  {document}: {error.why}", file=sys.stderr)
            return
        for entity in extraction.entities:
            entity_names[document][entity.kind].add(normalise_name(entity.kind, entity.name))

    async with server.completing(4) as complete:
        await asyncio.gather(*(extract_document(document) for document in documents))
    return entity_names


def score(true_names: dict[str, Names], predicted_names: dict[str, Names]) -> dict[str, tuple[float, float, float]]:
    """(precision, recall, F1) of each kind over all documents."""
    right, num_predicted, there = Counter[str](), Counter[str](), Counter[str]()
    for document, kinds in true_names.items():
        for kind in ENTITY_KINDS:
            right[kind] += len(kinds[kind] & predicted_names[document][kind])
            num_predicted[kind] += len(predicted_names[document][kind])
            there[kind] += len(kinds[kind])
    scores = {}
    for kind in ENTITY_KINDS:
        precision, recall = right[kind] / max(num_predicted[kind], 1), right[kind] / max(there[kind], 1)
        scores[kind] = (precision, recall, 2 * right[kind] / max(num_predicted[kind] + there[kind], 1))
    return scores


def main() -> int:
    path, true_names = os.environ.get("TRAINYARD_BENCH_PROFILE"), labels()
    profile = read_profile(Path(path)) if path else ServerProfile()
    with tempfile.TemporaryDirectory() as folder, InferenceServer(profile, Path(folder), settings()) as server:
        server.start()
        server.wait_ready()
        server.warm(SCHEMA)
        scores = score(true_names, asyncio.run(found_by(server, list(true_names))))
    rows = []
    for kind, (precision, recall, f1) in scores.items():
        rows.append(Row.at_least(f"{kind}: precision", precision, 0.0))
        rows.append(Row.at_least(f"{kind}: recall", recall, 0.0))
        rows.append(Row.at_least(f"{kind}: F1", f1, BASELINE[kind]))
    return finish("extraction", rows, {})


if __name__ == "__main__":
    sys.exit(main())
