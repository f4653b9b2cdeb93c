"""The supervised child of the `llamacpp` backend: text and GGUF in, one run of `llama-finetune` an epoch, a model out.

The program writes its file at the end and knows no checkpoint, so an epoch is one run of it and its file the
checkpoint: a stopped training resumes from its last finished epoch, bit-identical to an unpaused one (one thread, fixed
order). The price is that the optimizer's moments are reset in each epoch. The learning rate follows the schedule from
epoch to epoch. Imports no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psutil

from trainyard.backends import environments
from trainyard.backends.external import result
from trainyard.backends.external.runner import (
    BEGUN_FILE,
    ExternalRun,
    ExternalTool,
    carry_out,
    raise_for_exit,
    run_helper,
    size_of,
    start_run,
)
from trainyard.backends.frame import lock_devices, read_job
from trainyard.backends.llamacpp.build import FOLDER, own_version
from trainyard.backends.results import CHECKPOINT_FOLDER
from trainyard.compute.child import LOG_FILE, Events, Stopped
from trainyard.errors import TrainyardError
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.quantization import Quantization
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.training import Hyperparameters
from trainyard.stores.whole import write_json_durably
from trainyard.train.checkpoints import commit, newest_valid, require_space
from trainyard.train.schedules import SCHEDULES
from trainyard.train.session.finite import require_finite_loss
from trainyard.workers.trainyard_worker import names

DEVICE = "cpu"
"""The programs are built for CPUs: the one place where llama.cpp trains reliably."""
MODEL_FILE, STATE_FILE = "model.gguf", "state.json"
LINE = re.compile(rb"train: [^\r\n]*?data=0*(\d+)/0*(\d+) loss=([-\d.]+|nan|-?inf)")
"""A step of llama-finetune as it is printed: its number, of how many, and the mean loss of all so far."""
POINTS_PER_EPOCH = 500
"""Most points of the curve: a step may take a millisecond."""
SPAN_SHARE = 200
"""The loss of a step is the difference of two means of five digits; over at least 1/200 of the steps so far the
rounding stays below 0.002."""
FREE_COPIES = 6
"""Base and result in two formats, and two checkpoints, as multiples of the base's file."""


@dataclass
class LogCurve:
    """The loss step by step, read from the log of the program while it grows."""

    losses: list[list[float]] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    """Mean loss of each epoch that is done."""
    means: list[float] = field(default_factory=list)
    """Mean loss of the epoch after each step."""

    def see(self, step: int, mean: float) -> float:
        """Take the next mean; returns the loss of the newest steps."""
        self.means.append(mean)
        span = 1 + step // SPAN_SHARE
        before = self.means[step - span - 1] if step > span else 0.0
        return (mean * step - before * (step - span)) / min(span, step)


def train(folder: Path, events: Events) -> None:
    """Run the job of `folder/spec.json` to its end."""
    job = read_job(folder)
    with lock_devices(job, folder, events, DEVICE):
        run = start_run(job, folder, events, DEVICE, partial(make_plan, folder, events))
        require_space(folder, FREE_COPIES * size_of(run.place / "base.gguf"))
        (folder / BEGUN_FILE).touch()
        report_scope(run)
        log_at = size_of(folder / LOG_FILE)
        curve = carry_on(run)
        hand_over(run, curve, log_at)


def tools() -> Path:
    """The programs and the converter of llama.cpp."""
    return environments.folder(BackendName.LLAMACPP) / FOLDER


def make_plan(folder: Path, events: Events) -> dict[str, Any]:
    """Have the text, the base's GGUF file and the plan made."""
    place = folder / names.PLAN_FOLDER
    place.mkdir(exist_ok=True)
    (place / names.PLAN_FILE).unlink(missing_ok=True)
    assist("plan", folder, events)
    plan: dict[str, Any] = orjson.loads((place / names.PLAN_FILE).read_bytes())
    return plan


def assist(name: str, folder: Path, events: Events | None, *more: str) -> None:
    """Run `plan` or `finish` in a process of its own. Raises what it left, or `Stopped`."""
    what = f"llama.cpp's files could not be made ({name})."
    run_helper(f"trainyard.backends.llamacpp.{name}", [str(tools()), str(folder), *more], folder, what, events)


def report_scope(run: ExternalRun) -> None:
    """Emit what llama-finetune trains, which differs from the other backends."""
    what = f"moves all weights but the token embeddings, once for each window of {run.plan['context']} tokens"
    run.events.emit("warning", text=f"llama-finetune {what}; nothing is masked.")


def carry_on(run: ExternalRun) -> LogCurve:
    """Every epoch that is not done yet."""
    hyper, curve, done = run.job.config.hyperparameters, LogCurve(), 0
    model = run.place / "base.gguf"
    if run.found.path is not None:
        state = json.loads((run.found.path / STATE_FILE).read_text(encoding="utf-8"))
        curve.losses, curve.epochs, model = state["losses"], state["epochs"], run.found.path / MODEL_FILE
        done = len(curve.epochs)
    facts = {"device": DEVICE, "threads": 1, "precision": "fp32", "precision_why": "llama-finetune knows no other"}
    total, epochs = run.plan["total_steps"], run.plan["epochs"]
    run.events.emit("begin", restarted_from=run.restarted_from, total_steps=total, total_epochs=epochs, **facts)
    for epoch in range(done, epochs):
        model = one_epoch(run, curve, epoch, model, rate_of(hyper, epoch, epochs))
    return curve


def rate_of(hyper: Hyperparameters, epoch: int, epochs: int) -> float:
    schedule = hyper.schedule if epochs > 1 else Schedule.CONSTANT
    return (hyper.learning_rate or 0.0) * SCHEDULES[schedule](epoch, epochs, 0)


def one_epoch(run: ExternalRun, curve: LogCurve, epoch: int, model: Path, rate: float) -> Path:
    """One run of the program, and its file as a checkpoint. Raises `Stopped`, or what the program failed at."""
    out = run.folder / f"epoch-{epoch + 1}.gguf"
    out.unlink(missing_ok=True)
    curve.means = []
    watch = LogWatch(run, curve, epoch, rate, size_of(run.folder / LOG_FILE))
    tool = ExternalTool(lambda _: argv(run, model, out, rate), lambda _: {}, end, watch=watch)
    code = carry_out(run, tool)
    raise_for_exit(run, code)
    if not out.is_file() or not curve.means:
        raise TrainyardError("llama-finetune ended without a model.", do=f"Read {LOG_FILE}.", code="E-PROGRAM")
    curve.epochs.append(curve.means[-1])
    step = (epoch + 1) * run.plan["steps_per_epoch"]

    def write(place: Path) -> None:
        out.rename(place / MODEL_FILE)
        write_json_durably(place / STATE_FILE, {"losses": curve.losses, "epochs": curve.epochs})

    kept = commit(run.folder / CHECKPOINT_FOLDER, step, write)
    run.events.emit("checkpoint", step=step, epoch=epoch + 1)
    if run.events.stop_requested() and epoch + 1 < run.plan["epochs"]:
        raise Stopped("asked to stop; a checkpoint is saved", step=step)
    return kept / MODEL_FILE


def argv(run: ExternalRun, model: Path, out: Path, rate: float) -> list[str]:
    """llama-finetune's command line. One thread: with more of them it spins for minutes on a busy machine."""
    hyper, context = run.job.config.hyperparameters, str(run.plan["context"])
    options = {
        "-m": str(model),
        "-f": str(run.place / "text.txt"),
        "-o": str(out),
        "-c": context,
        "-b": context,
        "-ub": context,  # with less the keys and values would get no gradient
        "-t": "1",
        "-tb": "1",
        "-ngl": "0",
        "-epochs": "1",
        "-lr": repr(rate),
        "-wd": repr(hyper.weight_decay),
        "-opt": hyper.optimizer.value,
        "-val-split": "0",
        "--seed": str(hyper.seed),
    }
    return [str(tools() / "bin" / "llama-finetune"), *(word for option in options.items() for word in option)]


def end(_run: ExternalRun, process: psutil.Process) -> bool:
    """A stop ends the program at once: it has nothing to save, and the last whole epoch is a checkpoint."""
    process.terminate()
    return True


@dataclass
class LogWatch:
    """Reads the program's log while it grows and reports its steps."""

    run: ExternalRun
    curve: LogCurve
    epoch: int
    rate: float
    at: int
    rest: bytes = b""

    def __call__(self, run: ExternalRun) -> None:
        steps = run.plan["steps_per_epoch"]
        every = max(1, steps // POINTS_PER_EPOCH)
        for number, mean in self.lines():
            loss = self.curve.see(number, mean)
            step = self.epoch * steps + number
            require_finite_loss(step, loss)
            if number % every == 0 or number == steps:
                self.curve.losses.append([step, loss, self.rate])
                self.report_step(step, loss)

    def report_step(self, step: int, loss: float) -> None:
        plan = self.run.plan
        self.run.events.emit(
            "progress", step=step, total_steps=plan["total_steps"], epoch=round(step / plan["steps_per_epoch"], 4),
            total_epochs=plan["epochs"], loss=loss, learning_rate=self.rate,
        )  # fmt: skip

    def lines(self) -> Iterator[tuple[int, float]]:
        """(step of the epoch, mean loss so far) of the lines that are new."""
        with (self.run.folder / LOG_FILE).open("rb") as stream:
            stream.seek(self.at)
            new = stream.read()
        self.at += len(new)
        whole, end, self.rest = (self.rest + new).rpartition(b"ETA=")
        for found in LINE.finditer(whole + end):
            if int(found[1]) == len(self.curve.means) + 1:
                yield int(found[1]), float(found[3])


def hand_over(run: ExternalRun, curve: LogCurve, log_at: int) -> None:
    """Make the result of the last epoch's file."""
    last = newest_valid(run.folder / CHECKPOINT_FOLDER).path
    assert last is not None, "every epoch is a checkpoint"
    assist("finish", run.folder, None, str(last / MODEL_FILE))
    weights = run.folder / names.MADE_FOLDER / "weights"
    version = own_version(tools())
    report: dict[str, Any] = {
        "losses": curve.losses,
        # Windows differ in how hard they are; what falls is the mean of an epoch.
        "first_loss": curve.epochs[0],
        "final_loss": curve.epochs[-1],
        "versions": {"llama.cpp": version},
        "tool": {"name": "llama-finetune", "version": version},
        "device": DEVICE,
        "threads": 1,
        "precision": "fp32",
        "precision_why": "llama-finetune knows no other",
        "context": run.plan["context"],
        "frozen": ["token embeddings"],
        "formats": ["gguf", "transformers"] if run.plan["comes_back"] else ["gguf"],
    }
    if run.job.config.quantization is Quantization.GGUF:
        quantise(run, weights)
    write_json_durably(run.folder / names.MADE_FOLDER / names.REPORT_FILE, report)
    result.finish_result(run, log_at)
    for left in run.folder.glob("epoch-*.gguf"):
        left.unlink()


def quantise(run: ExternalRun, weights: Path) -> None:
    """Write a Q8_0 copy next to the result, with llama-quantize."""
    program, folder = tools() / "bin" / "llama-quantize", weights / "gguf"
    given = [str(program), str(folder / "model-f32.gguf"), str(folder / "model-q8_0.gguf"), "Q8_0", "1"]
    code = carry_out(run, ExternalTool(lambda _: given, lambda _: {}, end))
    raise_for_exit(run, code)
