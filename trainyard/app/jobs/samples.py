"""Answers of a model to held-out prompts during training: `eval.samples` of them at each evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from trainyard.app.context import Context
from trainyard.app.live.trainings import find_trainings
from trainyard.app.names import find_job
from trainyard.app.responses import Response
from trainyard.app.training_logs import TrainingLogs
from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.events import parse
from trainyard.operations import jobs as requests
from trainyard.stores.metrics import number, select_since

WORDS = (b'"samples"', b'"begin"')
"""Only lines with one of them are parsed: among a million steps there are a few."""


class SampledAnswer(Response):
    prompt: str
    answer: str


class SampleRound(Response):
    """An evaluation's answers."""

    node: str
    step: int
    time: float | None
    samples: tuple[SampledAnswer, ...]


class JobSamples(Response):
    id: str
    steps: tuple[int, ...]
    """Every step at which a trainer was asked, the first one first."""
    rounds: tuple[SampleRound, ...]
    """The newest first."""


def show_samples(request: requests.SamplesInput, context: Context) -> JobSamples:
    """Return the answers of the newest evaluations, or of one step."""
    row, _ = find_job(request.job, context)
    rounds = [entry for work in find_trainings(row) if request.node in (None, work.node) for entry in read_rounds(work)]
    rounds.sort(key=lambda entry: entry.step)
    newest = [entry for entry in reversed(rounds) if request.step in (None, entry.step)]
    steps = tuple(sorted({entry.step for entry in rounds}))
    return JobSamples(id=row["id"], steps=steps, rounds=tuple(newest[: request.limit]))


def read_rounds(work: TrainingLogs) -> Iterator[SampleRound]:
    """Yield a trainer's answers by step. A restart forgets those beyond its checkpoint; the later word on a step
    counts.
    """
    rounds: dict[int, SampleRound] = {}
    for event in select_since(read_lines_with(WORDS, work.folder / EVENTS_FILE), work.since):
        if event["event"] == "begin":
            restarted = event.get("restarted_from")
            last = restarted.get("step") if isinstance(restarted, dict) else None
            rounds = {step: entry for step, entry in rounds.items() if isinstance(last, int) and step <= last}
        elif event["event"] == "samples" and isinstance(step := event.get("step"), int):
            rounds[step] = build_round(work.node, step, event)
    yield from rounds.values()


def build_round(node: str, step: int, event: Mapping[str, object]) -> SampleRound:
    samples = event.get("samples")
    rows = [row for row in samples if isinstance(row, dict)] if isinstance(samples, list) else []
    answers = (SampledAnswer(prompt=str(row.get("prompt", "")), answer=str(row.get("answer", ""))) for row in rows)
    return SampleRound(node=node, step=step, time=number(event.get("time")), samples=tuple(answers))


def read_lines_with(markers: tuple[bytes, ...], path: Path) -> Iterator[dict[str, object]]:
    """Yield the events of a file whose lines contain one of these words; the others are not parsed."""
    if not path.is_file():
        return
    with path.open("rb") as lines:
        for line in lines:
            if any(word in line for word in markers) and (event := parse(line)) is not None:
                yield event
