"""Does a night read as many documents as its planner said? A throttled server, a short budget, the night's own phase 1.

The server is the scripted one in a process of its own: `SLOTS` requests at once, each for a prefill and its answer's
tokens at a fixed rate; how many tokens that are differs from document to document. Everything else is what the flow
calls: `begin` and `phase1` with the real ledger, the graph in its child process and the HTTP client. There are more
documents than the budget allows; what the phase did when it ended is what the planner had to foresee.

Three operators: one whose profile says how long a document takes, one whose profile is wrong by half, and one who has
more documents in flight than the server has slots. The bar is the prediction after twenty documents; the first one is
judged where the profile is right.
"""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from benchmarks.harness import Row, Sample, finish, measure, size
from trainyard.night.phases import begin, phase1
from trainyard.night.report import Phase1Report
from trainyard.night.wiring import make_night_deps
from trainyard.settings import Settings
from trainyard.spec.night import read_night
from trainyard.testing.scripted_server import Exchange, ScriptedServer, ok

SLOTS, TOKENS_PER_S, PREFILL_S = 8, 125.0, 0.05
LEAST_NAMES, MOST_NAMES, TOKENS_A_NAME, TOKENS_AROUND = 3, 9, 12, 10
SECONDS_A_DOCUMENT = PREFILL_S + (TOKENS_AROUND + TOKENS_A_NAME * (LEAST_NAMES + MOST_NAMES) / 2) / TOKENS_PER_S
BUDGET_S, DOCUMENTS, MOST_WRONG = size(15, 4), size(600, 60), 0.15
NAMES = re.compile(r"^- (?P<name>Person [0-9]+)$", re.MULTILINE)
CASES = {
    "profile right": (SECONDS_A_DOCUMENT, SLOTS),
    "profile twice as fast": (SECONDS_A_DOCUMENT / 2, SLOTS),
    "in flight: 1.5 x slots": (SECONDS_A_DOCUMENT, SLOTS + SLOTS // 2),
}
"""Case -> (seconds a document as the profile has it, documents in flight)."""
CASES_RUN = size(len(CASES), 1)


def names_in(exchange: Exchange) -> list[str]:
    return NAMES.findall(exchange.body["messages"][-1]["content"])


def answer(exchange: Exchange) -> str:
    entities = [{"kind": "person", "name": name} for name in names_in(exchange)]
    return json.dumps({"entities": entities, "relations": []})


def seconds(exchange: Exchange) -> float:
    return PREFILL_S + (TOKENS_AROUND + TOKENS_A_NAME * len(names_in(exchange))) / TOKENS_PER_S


def serve() -> None:
    """The server's process: print the address, answer until the standard input closes."""
    with ScriptedServer(then=ok(answer), slots=SLOTS, service_s=seconds) as server:
        print(server.url, flush=True)
        sys.stdin.read()


@contextmanager
def server() -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.planner", "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()
        process.wait()


def write_documents(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    folder.mkdir(parents=True)
    for number in range(DOCUMENTS):
        people = chance.sample(range(400), chance.randint(LEAST_NAMES, MOST_NAMES))
        lines = "".join(f"- Person {name}\n" for name in people)
        (folder / f"meeting-{number:04}.md").write_text(f"Meeting {number}\n\n{lines}", encoding="utf-8")


def one_phase(home: Path, url: str, guess: float, in_flight: int, seed: int) -> Phase1Report:
    """Phase 1 of one night in a home of its own, with an operator's profile that names the server."""
    (home / "profiles").mkdir(parents=True)
    (home / "profiles" / "throttled.yaml").write_text(f"url: {url}\n", encoding="utf-8")
    documents = home / "tenants" / "default" / "documents"
    write_documents(documents, seed)
    config = read_night(
        {
            "documents": str(documents),
            "streams": [{"name": "meetings", "globs": ["*.md"]}],
            "window": {"phase1_s": BUDGET_S},
            "serving": {
                "profile": "throttled", "model": "scripted", "concurrency": in_flight, "seconds_per_document": guess,
            },
        }
    )  # fmt: skip
    world = make_night_deps(config, Settings(home=home, data_roots=(home,)))
    night = begin(config, world, "20270102")
    assert night is not None
    report = phase1(night)
    if report.failure is not None:
        raise SystemExit(f"phase 1 failed: {report.failure}")
    return report


def wrong_by(predicted: int | None, done: int) -> float:
    return abs((predicted or 0) / done - 1.0) if done else math.inf


def main() -> int:
    rows: list[Row] = []
    samples: dict[str, list[Sample]] = {}
    with tempfile.TemporaryDirectory() as name, server() as url:
        for number, (case, (guess, in_flight)) in enumerate(islice(CASES.items(), CASES_RUN)):
            reports: list[Phase1Report] = []

            def variant() -> float:
                reports.append(one_phase(Path(name) / str(number), url, guess, in_flight, number))  # noqa: B023
                return float(reports[-1].done)  # noqa: B023

            samples[case] = [measure(variant)]
            report = reports[0]
            later = report.predicted_after_20
            print(f"  {case}: said {report.predicted}, after twenty {later}, done {report.done} of {report.waiting}")
            rows.append(
                Row.at_most(f"{case}: |predicted after 20 / done - 1|", wrong_by(later, report.done), MOST_WRONG)
            )
            if guess == SECONDS_A_DOCUMENT and in_flight == SLOTS:
                first = wrong_by(report.predicted, report.done)
                rows.append(Row.at_most(f"{case}: |first prediction / done - 1|", first, MOST_WRONG))
            rows.append(Row.at_most(f"{case}: phase 1 / budget", report.extract_s / BUDGET_S, 1.1))
    return finish("planner", rows, samples)


if __name__ == "__main__":
    sys.exit(serve() if "--serve" in sys.argv else main())
