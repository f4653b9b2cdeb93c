"""Two trainings next to each other: settings that differ, metrics, benchmarks with paired intervals, answers, curves.

Everything is read from the runs' folders, so that no server has to run: `chain.json` and `result.json` of a run, the
reports of its evaluators, the events of its trainers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.app.context import Context
from trainyard.app.names import find_ended_run
from trainyard.app.responses import Response
from trainyard.app.run_records import NodeResult, RunResult
from trainyard.app.training_logs import find_training_logs
from trainyard.cancellation import require_caller
from trainyard.errors import InvalidInput, NotFound
from trainyard.evals.statistics import bootstrap, count_flips, improvements
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.data import Port
from trainyard.spec.model_schema import list_node_changes
from trainyard.stores.metrics import Point

METRICS = ("steps", "loss_at_start", "loss_at_end", "eval_loss", "seconds", "device", "precision")
"""Facts of a trainer that are compared, next to its ledger of rows and tokens."""


class Compared(Response):
    """One thing that both have: its name, and its value in each."""

    name: str
    first: Any
    second: Any


class ComparedBenchmark(Response):
    name: str
    metric: str
    first: float
    second: float
    improvement: float | None = None
    """By how much the second is better, in the metric's unit, over the rows that both were scored on."""
    low: float | None = None
    high: float | None = None
    better: int = 0
    worse: int = 0
    rows: int = 0
    """Rows that both were scored on; 0 means that the sets differ and nothing can be paired."""


class ComparedSample(Response):
    prompt: str
    gold: str
    first: str
    second: str


class Side(Response):
    """One of the two."""

    run: str
    name: str
    trainer: str
    state: str
    adapter_sha256: str
    curve: tuple[Point, ...]


class DifferingSetting(Response):
    name: str
    """Node and path: `trainer.hyperparameters.learning_rate`; of variants of several types their types."""
    values: tuple[Any, ...]
    """One for each job, in their order; null where a job has no such setting, or it is null."""


class Comparison(Response):
    """Two to five jobs next to each other."""

    jobs: tuple[str, ...]
    """Their ids, in the order of the question."""
    settings: tuple[DifferingSetting, ...]
    """Only what differs, by name."""
    sides: tuple[Side, ...] = ()
    """Of two trainings that have ended; what follows is empty without them."""
    metrics: tuple[Compared, ...] = ()
    benchmarks: tuple[ComparedBenchmark, ...] = ()
    samples: tuple[ComparedSample, ...] = ()
    plot: bool = False
    """Draw both loss curves."""
    left_out: str = ""
    """Why nothing but settings is compared."""


@dataclass(frozen=True)
class TrainedNode:
    """A trainer of a run, with the report about its adapter if there is one."""

    result: RunResult
    folder: Path
    nodes: Mapping[str, JsonMapping]
    """Node id -> node of the resolved chain as it was written, by any version."""
    node: NodeResult

    @property
    def sha256(self) -> str:
        return next((out.sha256 for out in self.node.outputs.values()), "")

    def settings(self) -> JsonObject:
        """Return the settings of the trainer and of everything that is before it; of the others when there is one
        trainer.
        """
        ids, waiting = set[str](), [self.node.id]
        if sum(node["type"] == "trainer" for node in self.nodes.values()) == 1:
            waiting = list(self.nodes)
        while waiting:
            ids.add(name := waiting.pop())
            waiting += [need for need in self.nodes[name]["needs"] if need not in ids]
        names = {self.node.id: "trainer"}
        return {names.get(node_id, node_id): self.nodes[node_id]["config"] for node_id in sorted(ids)}

    def report(self) -> JsonObject | None:
        """Return the evaluation report whose candidate is this trainer's adapter."""
        for node in self.result.nodes:
            reference = node.outputs.get(Port.REPORT)
            if reference is None or not (reference.path / "report.json").is_file():
                continue
            value: dict[str, object] = json.loads((reference.path / "report.json").read_text(encoding="utf-8"))
            if value["adapter_sha256"] == self.sha256:
                return value
        return None

    def curve(self) -> tuple[Point, ...]:
        return next((tuple(log.curve()) for log in find_training_logs(self.folder) if log.node == self.node.id), ())

    def side(self) -> Side:
        state, name = self.node.state.value, self.result.name
        sha256 = self.sha256[:12]
        return Side(
            run=self.result.run_id, name=name, trainer=self.node.id, state=state, adapter_sha256=sha256,
            curve=self.curve(),
        )  # fmt: skip


def compare_trainings(names: tuple[str, str], context: Context, *, plot: bool) -> Comparison:
    """Compare two trainings that have ended, from the folders of their runs.

    Raises `NotFound` (`E-JOB-NOT-FOUND`, `E-NODE`), `Conflict` (`E-JOB-NOT-FOUND`), `InvalidInput` (`E-NODE`).
    """
    first, second = (find_trained_node(word, context) for word in names)
    if first.result.run_id == second.result.run_id and first.node.id == second.node.id:
        raise InvalidInput(
            f"{' and '.join(names)} are the same training.",
            why="A comparison needs two.",
            do="Name another job, or another trainer of this one: JOB/TRAINER.",
            code="E-NODE",
        )
    before, after = first.report(), second.report()
    changes = sorted(list_node_changes(first.settings(), second.settings()), key=lambda change: change[0])
    return Comparison(
        jobs=tuple(training.result.id or training.result.run_id for training in (first, second)),
        sides=(first.side(), second.side()),
        settings=tuple(DifferingSetting(name=name, values=(old, new)) for name, old, new in changes),
        metrics=tuple(compare_facts(first.node.facts, second.node.facts)),
        benchmarks=tuple(compare_benchmarks(before, after)) if before and after else (),
        samples=tuple(compare_samples(before, after)) if before and after else (),
        plot=plot,
    )


def find_trained_node(name: str, context: Context) -> TrainedNode:
    """Return the trainer of `JOB/TRAINER`; a job's name alone will do if all but one are controls."""
    run, _, node_id = name.partition("/")
    found_run, result = find_ended_run(run, context)
    folder = found_run.path
    nodes = {node["id"]: node for node in json.loads((folder / "chain.json").read_bytes())["nodes"]}
    trainers = [node for node in result.nodes if node.type == "trainer"]
    controls = {key for key, node in nodes.items() if node["config"].get("control")}
    matches = [node for node in trainers if (node.id == node_id if node_id else node.id not in controls)]
    if len(matches) == 1 and matches[0].id not in nodes:
        raise InvalidInput(
            f"{run}/{matches[0].id} is a trial of a sweep.",
            why="Its run has a report and a chain for all trials, and none for this one.",
            do=f"Look at `trainyard sweep show {result.name}`, or run the chain of its best trial and compare that.",
            code="E-NODE",
        )
    if len(matches) == 1:
        return TrainedNode(result, folder, nodes, matches[0])
    names = ", ".join(f"{run}/{node.id}" for node in trainers)
    if not trainers:
        raise NotFound(f"The run {run} has no trainer.", do="Compare runs that train.", code="E-NODE")
    problem = f"no trainer {node_id!r}" if node_id else f"{len(matches)} trainers"
    raise NotFound(f"The run {run} has {problem}.", do=f"Name one of {names}.", code="E-NODE")


def compare_facts(first: JsonMapping, second: JsonMapping) -> Iterator[Compared]:
    for name in METRICS:
        if name in first or name in second:
            yield Compared(name=name, first=first.get(name), second=second.get(name))
    for group in ("rows", "tokens"):
        parts = [dict(facts.get(group) or {}) for facts in (first, second)]
        for name in sorted(parts[0] | parts[1]):
            yield Compared(name=f"{group} {name}", first=parts[0].get(name), second=parts[1].get(name))


def compare_benchmarks(first: JsonMapping, second: JsonMapping) -> Iterator[ComparedBenchmark]:
    """Benchmarks that both reports have, with the paired improvement where both kept the score of each row."""
    lines = {(line["name"], line["set"]): line for line in second["benchmarks"]}
    for before in first["benchmarks"]:
        after = lines.get((before["name"], before["set"]))
        if after is None:
            continue
        label = f"{before['name']}/{before['set']}"
        means = {"first": before["candidate"], "second": after["candidate"]}
        yield ComparedBenchmark(name=label, metric=before["metric"], **means, **pair_scores(before, after, first))


def pair_scores(before: JsonMapping, after: JsonMapping, report: JsonMapping) -> JsonObject:
    """Return the mean improvement over the rows that both were scored on, with its bootstrap interval."""
    scores = [line.get("scores") or {"ids": [], "clusters": [], "candidate": []} for line in (before, after)]
    new = dict(zip(scores[1]["ids"], scores[1]["candidate"], strict=True))
    rows = zip(scores[0]["ids"], scores[0]["clusters"], scores[0]["candidate"], strict=True)
    require_caller()
    shared = [(cluster, old, new[row_id]) for row_id, cluster, old in rows if row_id in new]
    if not shared:
        return {}
    clusters, old_scores, new_scores = zip(*shared, strict=True)
    gains = improvements(old_scores, new_scores, higher_is_better=before["higher_is_better"])
    interval = bootstrap(gains, clusters, confidence=report["confidence"], resamples=report["resamples"], seed=0)
    flips = count_flips(np.asarray(gains))
    return {
        "improvement": interval.mean, "low": interval.low, "high": interval.high,
        "better": flips.better, "worse": flips.worse, "rows": len(shared),
    }  # fmt: skip


def compare_samples(first: JsonMapping, second: JsonMapping) -> Iterator[ComparedSample]:
    """Answers of both to the same prompts."""
    answers: dict[str, str] = {sample["prompt"]: sample["candidate"] for sample in second["samples"]}
    samples: Sequence[Mapping[str, str]] = first["samples"]
    for sample in samples:
        if sample["prompt"] in answers:
            yield ComparedSample(
                prompt=sample["prompt"],
                gold=sample["gold"],
                first=sample["candidate"],
                second=answers[sample["prompt"]],
            )
