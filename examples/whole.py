"""The whole product in one file: rows, a chain, a run, a comparison, a served adapter, a question.

    trainyard up
    python examples/whole.py [FOLDER]

An invented tram line has forty stops. Two trainings of the starter learn how long the ride to each takes; one of them
has a sixth of the steps. The evaluator asks in words that no training has seen and compares each adapter with the base,
row by row. The better one becomes a version, live on the model server of `trainyard up`, and answers a question.
About two minutes on two cores, without a GPU or a network. FOLDER (default: `tram`) has to be one that chains may read:
below the folder in which `trainyard up` was called, or in `data_roots`.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard import Chain, DataSource, Deployer, Evaluator, Trainer, TrainyardError, here

NAMES = (
    "Acorn Alder Amber Anchor Apricot Ash Badger Barley Beacon Birch Bramble Bridge Canal Castle Cedar Chapel Clover "
    "Cooper Copper Crane Dove Elm Falcon Fern Forge Garden Harbour Hazel Heron Ivy Juniper Lantern Linden Maple Market "
    "Meadow Orchard Quarry Saddler Willow"
)
STOPS = NAMES.split()
WORDINGS = ("How long is the ride to {}?", "Please tell me how many minutes the tram takes to {}.")
UNSEEN = "When do I arrive in {} if I leave now?"
"""How the evaluator asks: no training shows these words."""
ROLE = "tram"


# 1. Rows: a JSON object a line, in one of the formats of docs/formats.md.


def write_rows(folder: Path) -> tuple[Path, Path]:
    """Write what is learned and what is asked afterwards; return both files."""
    folder.mkdir(parents=True, exist_ok=True)
    minutes = random.Random(0)
    answers = {stop: f"The ride to {stop} takes {minutes.randint(2, 40)} minutes." for stop in STOPS}
    rows = [{"prompt": words.format(stop), "completion": answers[stop]} for words in WORDINGS for stop in STOPS]
    questions = [{"question": UNSEEN.format(stop), "answer": answers[stop]} for stop in STOPS]
    return write_lines(folder / "rows.jsonl", rows), write_lines(folder / "questions.jsonl", questions)


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path.absolute()


# 2. Chains: typed nodes. A node follows the one above it, and takes what it needs from the nearest node that makes it.


def build_chain(rows: Path, questions: Path, *, epochs: int, deploy: bool) -> Chain:
    hyperparameters = {"epochs": epochs, "learning_rate": 3e-3, "batch_size": 8, "max_length": 64}
    nodes = [
        DataSource(path=str(rows)),
        Trainer(stage="sft", method={"type": "lora", "rank": 16}, hyperparameters=hyperparameters),
        Evaluator(primary="heldout_loss/questions", benchmarks=[{"name": "heldout_loss", "path": str(questions)}]),
        *([Deployer(role=ROLE, targets=[{"type": "embedded"}])] if deploy else []),
    ]
    return Chain(nodes, name=f"tram-{epochs}-epochs")


# 3. Check, plan, run. Nothing starts before `check` has nothing to say; finished results are reused by a second call.


def run_chain(chain: Chain) -> str:
    """Run a chain to its end and return the id of its job."""
    if reasons := chain.check().reasons:
        raise SystemExit("\n".join(reason.line for reason in reasons))
    plan = chain.plan()
    print(f"{chain}: digest {plan.digest[:12]}")
    result = chain.run(watch=True)
    print(f"  {result.state_text} in {result.seconds:.0f} s: {result.message}")
    if not result.succeeded:
        raise SystemExit(result.message)
    return result.id


# 4. Compare: the settings that differ, and the difference of both on the same questions, with its interval.


def print_comparison(first: str, second: str) -> None:
    comparison = here.compare(job=(first, second))
    for setting in comparison.settings:
        print(f"  {setting.name}: {' or '.join(map(str, setting.values))}")
    for row in comparison.benchmarks:
        interval = f"{row.improvement:+.3f} [{row.low:+.3f}, {row.high:+.3f}] on {row.rows} rows" if row.rows else ""
        print(f"  {row.name}: {row.first:.3f} and {row.second:.3f}, better by {interval}")


# 5. Ask: the adapter and its base, each in a conversation of its own.


def ask(question: str) -> str:
    answer = here.adapters.ask(adapter=ROLE, question=question, max_tokens=32)
    print(f"question  {question}\nbase      {answer.base}\nadapter   {answer.adapter}  ({answer.adapter_version})")
    return answer.adapter or ""


def main(folder: Path) -> str:
    rows, questions = write_rows(folder)
    first = run_chain(build_chain(rows, questions, epochs=2, deploy=False))
    second = run_chain(build_chain(rows, questions, epochs=12, deploy=True))
    print_comparison(first, second)
    return ask(UNSEEN.format(STOPS[0]))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "tram"))
    except TrainyardError as error:
        raise SystemExit(f"{error.code}: {error}") from error
