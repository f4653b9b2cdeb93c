"""Small real training jobs: rows, a job for them, and two ways to run it (in this process, and as in production)."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from trainyard.backends.base import run_training
from trainyard.backends.job import TrainingJob
from trainyard.backends.native import program as native_program
from trainyard.backends.trl import program as trl_program
from trainyard.callbacks import ignore
from trainyard.compute.child import EVENTS_FILE, SPEC_FILE, Events
from trainyard.compute.events import Event
from trainyard.data.rows import LabelledRow, Message, PreferenceRow, Row, SftRow, TextRow, write_rows
from trainyard.settings import load_settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import Port
from trainyard.spec.training import TrainerConfig, resolve_trainer
from trainyard.testing.tiny import build_tiny_model

MAX_LENGTH = 40


def conversation(question: str, answer: str) -> SftRow:
    return SftRow([Message("user", question), Message("assistant", answer)])


def sft_rows() -> list[Row]:
    """30 rows, of which three are cut to 40 tokens and two have no target left after the cut."""
    rows = [conversation(f"What is node {n}?", f"A node {n} reads {n * n} pairs.") for n in range(25)]
    rows += [conversation(f"Tell {n}", "the node reads documents and " * 8) for n in range(3)]
    rows += [conversation("a very long question about nodes " * 10, "lost") for _ in range(2)]
    return list(rows)


def preference_rows() -> list[Row]:
    return [
        PreferenceRow(
            [Message("user", f"What is node {n}?")],
            [Message("assistant", f"A node {n} reads.")],
            [Message("assistant", f"No idea, {n} or so it is.")],
        )
        for n in range(12)
    ]


@dataclass
class Ran:
    """A finished training: its folder, record and events."""

    folder: Path
    events: list[dict[str, Any]]

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.folder / "training.json").read_text())

    def of(self, event: str) -> list[dict[str, Any]]:
        return [row for row in self.events if row["event"] == event]


def make_labelled_rows() -> list[Row]:
    """Each answer of the pairs by itself, with its verdict."""
    pairs = [row for row in preference_rows() if isinstance(row, PreferenceRow)]
    return [
        LabelledRow(pair.prompt, answer, label)
        for pair in pairs
        for answer, label in ((pair.chosen, True), (pair.rejected, False))
    ]


def write_data(folder: Path) -> dict[Port, Path]:
    """A data set for every port that a stage reads, below a folder."""
    sets = {
        Port.SFT: sft_rows(),
        Port.PREFERENCE: preference_rows(),
        Port.LABELLED: make_labelled_rows(),
        Port.TEXT: [
            TextRow(" ".join(m.content for m in row.messages)) for row in sft_rows() if isinstance(row, SftRow)
        ],
    }
    for port, rows in sets.items():
        write_rows(folder / port.value / "rows.arrow", port, rows)
    return {port: folder / port.value for port in sets}


@dataclass(frozen=True)
class Jobs:
    """`jobs(port, adapter=…, base=…, **trainer config)`: one thread and fp32, so that numbers repeat."""

    model: Path
    data: dict[Port, Path]
    locks: Path

    def __call__(
        self, port: Port = Port.SFT, *, adapter: Path | None = None, base: Path | None = None, **config: Any
    ) -> TrainingJob:
        hyper = {"epochs": 2, "learning_rate": 1e-2, "max_length": MAX_LENGTH, "precision": "fp32"}
        job_config = {"backend": "trl", "stage": "dpo" if port is Port.PREFERENCE else "sft", **config}
        job_config["hyperparameters"] = {**hyper, **config.get("hyperparameters", {})}
        model = base or self.model
        resolved = resolve_trainer(TrainerConfig.model_validate(job_config), str(model))
        return TrainingJob(
            config=resolved,
            data={port: str(self.data[port])},
            base=str(model),
            base_sha256="tiny",
            adapter=str(adapter) if adapter else None,
            teacher=str(self.larger_model()) if resolved.stage.teacher_model else None,
            threads=1,
            locks=str(self.locks),
        )

    def larger_model(self) -> Path:
        """Another model with the same tokenizer, made when it is needed first."""
        folder = self.locks / "larger"
        return folder if folder.is_dir() else build_tiny_model(folder, seed=1, hidden=96)


class StopAfter(Events):
    """Events of a program that is asked to stop after a number of steps, as by a SIGTERM at that moment."""

    def __init__(self, path: Path, steps: int) -> None:
        super().__init__(path)
        self.steps = steps

    def emit(self, event: str, **fields: Any) -> None:
        super().emit(event, **fields)
        if event == "progress" and fields["step"] >= self.steps:
            self.request_stop()


PROGRAMS: dict[BackendName, Any] = {BackendName.TRL: trl_program, BackendName.NATIVE: native_program}


def train_here(job: TrainingJob, folder: Path, stop_after: int | None = None) -> Ran:
    """Run the training program in this process: no import cost, the same code. May raise `Stopped`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SPEC_FILE).write_text(job.model_dump_json())
    path = folder / EVENTS_FILE
    events = Events(path) if stop_after is None else StopAfter(path, stop_after)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the libraries; what matters to a user is an event
            PROGRAMS[job.config.backend].train(folder, events)
    finally:
        events.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return Ran(folder / "result" / job.output.value, lines)


def train_as_child(job: TrainingJob, folder: Path, note: Callable[[Event], None] = ignore, **options: Any) -> Ran:
    """Run the training as a chain does: supervised, in a process of its own."""
    events: list[dict[str, Any]] = []

    def listen(event: Event) -> None:
        events.append(event)
        note(event)

    run_training(job, folder / "out", settings=load_settings(home=folder / "home"), on_event=listen, **options)
    return Ran(folder / "out" / job.output.value, events)


def write_broken_model(tiny_model: Path, folder: Path) -> Path:
    """The tiny model with one weight that is no number."""
    folder.mkdir()
    for path in tiny_model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("q_proj.weight"))
    weights[name][0, 0] = math.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_base_without(tiny_model: Path, folder: Path, *missing: str) -> Path:
    """The tiny model without some of its special tokens: `pad`, `eos`."""
    folder.mkdir()
    for path in tiny_model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    for name, suffix in (("tokenizer_config.json", ""), ("config.json", "_id"), ("generation_config.json", "_id")):
        values = json.loads((folder / name).read_text())
        values |= {f"{token}_token{suffix}": None for token in missing}
        (folder / name).write_text(json.dumps(values))
    return folder
