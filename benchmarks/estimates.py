"""How far is the time that `trainyard plan` promises from the real one, for ten small data sets of different kinds?

    python -m benchmarks.estimates [FOLDER]

Each chain is planned, with `--measure` (ten steps) where no training of its kind was measured yet, then run; a
trainer's planned seconds stand next to those that its training took. The bar: a median error of at most 30 %, none
above a factor of two, of the times without other programs: a plan scales with the load of its moment, which no plan can
foresee, and the processor time that a training waited for is measured. On an idle machine both pairs are the same.
"""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import SHORT, size
from trainyard.spec.estimate.timing import StepTiming

PROGRAM = Path(sys.executable).with_name("trainyard")
THINGS = (
    "kettle", "pump", "valve", "filter", "gasket", "hose", "boiler", "sensor", "relay", "battery", "handle", "nozzle",
)  # fmt: skip
VERBS = ("clean", "replace", "tighten", "check", "drain", "refill", "loosen", "test", "heat", "cool", "reset")
MEDIAN_BAR, WORST_BAR = 0.3, 2.0
SHORT_CHAIN, ONE_EPOCH = "chats", {"epochs": 1} if SHORT else {}
"""The short form runs the chain with the fewest nodes, for ten steps."""


def draw_words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choice(THINGS if index % 2 else VERBS) for index in range(count))


def write_lines(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def chats(draw: random.Random, count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        question = f"Part {number}: {draw_words(draw, draw.randint(4, 30))}?"
        answer = f"First {draw_words(draw, draw.randint(6, 60))}."
        yield {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def pairs(draw: random.Random, count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        prompt = f"How do I {draw_words(draw, 5)} in room {number}?"
        yield {"prompt": prompt, "chosen": f"Please {draw_words(draw, 16)}.", "rejected": f"No {draw_words(draw, 6)}."}


def completions(draw: random.Random, count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"prompt": f"{number}. {draw_words(draw, 6)}", "completion": draw_words(draw, draw.randint(3, 14))}


def labels(draw: random.Random, count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        answer = f"Please {draw_words(draw, 12)}." if number % 2 else f"No {draw_words(draw, 5)}."
        yield {
            "prompt": f"How do I {draw_words(draw, 5)} in room {number}?",
            "completion": answer,
            "label": number % 2 == 1,
        }


def texts(draw: random.Random, count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"text": f"Note {number}. " + " ".join(f"{draw_words(draw, draw.randint(4, 12))}." for _ in range(6))}


def problems(draw: random.Random, count: int) -> Iterator[dict[str, Any]]:
    for _ in range(count):
        first, second = draw.randint(1, 40), draw.randint(1, 40)
        yield {"prompt": f"What is {first} + {second}?", "answer": str(first + second)}


def calls(draw: random.Random, count: int) -> Iterator[dict[str, Any]]:
    schema = {"type": "object", "properties": {"part": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "order", "description": "Order a part.", "parameters": schema}}]
    for number in range(count):
        part = draw.choice(THINGS)
        call = {"id": f"c{number}", "type": "function", "function": {"name": "order", "arguments": {"part": part}}}
        yield {
            "tools": tools,
            "messages": [
                {"role": "user", "content": f"Order a {part} for house {number}."},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{number}", "content": "ordered"},
                {"role": "assistant", "content": f"The {part} for house {number} is ordered."},
            ],
        }


def write_documents(folder: Path, draw: random.Random) -> None:
    """Write a small manual: headings, sentences with numbers, list items."""
    folder.mkdir()
    for number in range(24):
        thing = THINGS[number % len(THINGS)]
        parts = [f"# The {thing} {number}\n\nThe {thing} {number} is a part that weighs {number + 2} kilograms.\n"]
        for section in range(4):
            subject = f"{draw.choice(VERBS).title()} the {draw.choice(THINGS)} of model {number}"
            parts.append(
                f"## {subject}\n\nIt takes {draw.randint(2, 90)} minutes and costs {draw.randint(3, 80)} euros."
            )
            parts.append(f"The limit is {draw.randint(1, 12)} bar.\n\n- Use {section + 1} {draw.choice(THINGS)}s.\n")
        (folder / f"page-{number:02}.md").write_text("\n".join(parts), encoding="utf-8")


def write_repository(folder: Path, draw: random.Random) -> None:
    """Write a git repository of documented functions."""
    folder.mkdir()
    for number in range(10):
        text = f'"""Tools for the {THINGS[number % len(THINGS)]}."""\n'
        for index in range(6):
            name = f"{draw.choice(VERBS)}_{draw.choice(THINGS)}_{number}_{index}"
            text += f'\n\ndef {name}(value: int) -> int:\n    """Return the value after step {index} of {number}."""\n'
            text += f"    result = value * {draw.randint(2, 9)} + {number}\n    return result - {index}\n"
        (folder / f"module_{number}.py").write_text(text, encoding="utf-8")
    author = ["-c", "user.name=bench", "-c", "user.email=bench@example.com"]
    for command in (["init", "-q"], ["add", "-A"], [*author, "commit", "-qm", "Add tools"]):
        subprocess.run(["git", *command], cwd=folder, check=True)


def source(**config: Any) -> dict[str, Any]:
    return {"type": "data_source", "config": config}


def trainer(stage: Any, **hyper: Any) -> dict[str, Any]:
    return {"type": "trainer", "config": {"stage": stage, "hyperparameters": hyper}}


def write_chains(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Write the data and return the nodes of each chain."""
    draw = random.Random(7)
    write_lines(folder / "chats.jsonl", chats(draw, size(300, 40)))
    write_lines(folder / "pairs.jsonl", pairs(draw, 120))
    write_lines(folder / "completions.jsonl", completions(draw, 400))
    write_lines(folder / "problems.jsonl", problems(draw, 48))
    write_lines(folder / "calls.jsonl", calls(draw, 150))
    write_lines(folder / "labels.jsonl", labels(draw, 160))
    write_lines(folder / "texts.jsonl", texts(draw, 200))
    table = "\n".join(f'"{row["prompt"]}","{row["completion"]}",{at}' for at, row in enumerate(completions(draw, 250)))
    (folder / "table.csv").write_text(f"frage,antwort,id\n{table}\n", encoding="utf-8")
    write_documents(folder / "manual", draw)
    write_repository(folder / "tools", draw)
    columns = {"prompt": "frage", "completion": "antwort"}
    grpo = {"type": "grpo", "rewards": [{"type": "length", "target_tokens": 8}], "max_completion_length": 16}
    rules = [{"type": "ai_generator", "config": {"count": 150}}, {"type": "validator"}]
    code = [{"type": "ai_generator", "config": {"count": 40, "template": "code"}}, {"type": "validator"}]
    return {
        "code": [source(repository="tools"), *code, trainer("sft", epochs=6)],
        "chats": [source(path="chats.jsonl"), trainer("sft", **ONE_EPOCH)],
        "preference": [source(path="pairs.jsonl"), trainer("dpo")],
        "documents": [source(path="manual"), *rules, trainer("sft", epochs=4)],
        "grpo": [source(path="problems.jsonl"), trainer(grpo, epochs=1)],
        "completion": [source(path="completions.jsonl"), trainer("sft", epochs=2)],
        "csv": [source(path="table.csv", columns=columns), trainer("sft")],
        "tools": [source(path="calls.jsonl"), trainer("sft")],
        "labels": [source(path="labels.jsonl"), trainer("kto")],
        "texts": [source(path="texts.jsonl"), trainer("cpt")],
    }


def call(folder: Path, *arguments: str) -> Any:
    """Call the command line; returns its JSON. A command that fails ends the benchmark with its words."""
    ran = subprocess.run([PROGRAM, *arguments, "--json"], cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"trainyard {' '.join(arguments)} ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}")
    return json.loads(ran.stdout)


def plan_trainer(folder: Path, name: str, *options: str) -> dict[str, Any]:
    """Return the plan of a chain's trainer."""
    node: dict[str, Any] = next(n for n in call(folder, "plan", name, *options)["nodes"] if n["type"] == "trainer")
    return node


def planned_alone(estimate: dict[str, Any]) -> float:
    """Return the planned seconds without other programs, which the basis of a plan says where there are some."""
    match = re.search(r"\(alone: ([\d,]+) s\)", " ".join(estimate["basis"]))
    return float(match[1].replace(",", "")) if match else float(estimate["seconds"])


def real_alone(steps: int) -> float:
    """Return what the newest measured training would have taken without other programs."""
    files = (Path(os.environ["TRAINYARD_HOME"]) / "timings").glob("*.json")
    measured = [
        StepTiming.model_validate(timing) for path in files for timing in json.loads(path.read_text())["measured"]
    ]
    run = max((timing for timing in measured if timing.source == "run"), key=lambda timing: timing.time).alone()
    return run.start_s + run.load_s + steps * run.seconds_per_step + run.end_s


class Compared(NamedTuple):
    """One chain: seconds of its training as planned and as they were, by the clock and without other programs."""

    name: str
    planned: float
    real: float
    planned_alone: float
    real_alone: float
    planned_steps: int
    steps: int

    @property
    def factor(self) -> float:
        return max(self.planned_alone / self.real_alone, self.real_alone / self.planned_alone)

    def __str__(self) -> str:
        return (
            f"{self.name:<12}{self.planned:>8.1f} s planned{self.real:>8.1f} s real; alone {self.planned_alone:>6.1f} s"
            f" planned{self.real_alone:>6.1f} s real;{self.planned_steps:>5} steps planned{self.steps:>5} real"
        )


def compare(folder: Path, name: str, nodes: list[dict[str, Any]]) -> Compared:
    """Plan and run one chain."""
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps({"name": f"estimate-{name}", "nodes": nodes}), encoding="utf-8")
    planned = plan_trainer(folder, file.name)
    if planned["estimate"]["seconds"] is None:  # the first training of its kind on this machine
        planned = plan_trainer(folder, file.name, "--measure")
    result = call(folder, "run", file.name, "--watch", "--yes", "--refresh")
    ended = next(node for node in result["nodes"] if node["id"] == "trainer")
    facts = ended["facts"]
    estimate = planned["estimate"]
    return Compared(
        name, estimate["seconds"], facts["time"]["seconds"], planned_alone(estimate), real_alone(facts["steps"]),
        estimate["steps"], facts["steps"],
    )  # fmt: skip


def main() -> None:
    """Print the table and end with 1 where a bar is missed."""
    with tempfile.TemporaryDirectory(prefix="estimates-") as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TRAINYARD_HOME", str(folder / "home"))
        chains = write_chains(folder)
        subprocess.run([PROGRAM, "up"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        try:
            rows = []
            for name in [SHORT_CHAIN] if SHORT else chains:
                rows.append(compare(folder, name, chains[name]))
                print(rows[-1], f"load {os.getloadavg()[0]:.1f}", flush=True)
        finally:
            subprocess.run([PROGRAM, "down"], cwd=folder, check=False, stdout=subprocess.DEVNULL)
    median = statistics.median(abs(row.planned_alone / row.real_alone - 1) for row in rows)
    worst = max(row.factor for row in rows)
    print(f"median error {median:.0%}, worst factor {worst:.2f}, load {os.getloadavg()[0]:.1f}")
    sys.exit(not SHORT and (median > MEDIAN_BAR or worst > WORST_BAR))


if __name__ == "__main__":
    main()
