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
from pathlib import Path

from trainyard.backends import environments
from trainyard.backends.external import runner
from trainyard.backends.external.runner import ExternalRun, ExternalTool
from trainyard.backends.frame import lock_devices, read_job
from trainyard.backends.llamacpp.build import FOLDER, read_own_version
from trainyard.backends.results import CHECKPOINT_FOLDER
from trainyard.compute.child import LOG_FILE, Events, Stopped
from trainyard.errors import TrainyardError
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.quantization import Quantization
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.rates import SCHEDULES
from trainyard.stores.whole import write_json_durably
from trainyard.train.checkpoint.checkpoints import commit, newest_valid, require_space
from trainyard.train.history import require_finite_loss
from trainyard.workers.trainyard_worker import names
from trainyard.workers.trainyard_worker.files import WorkerFiles

DEVICE = "cpu"
"""The programs are built for CPUs: the one place where llama.cpp trains reliably."""
COMPUTES = {"device": DEVICE, "threads": 1, "precision": "fp32", "precision_why": "llama-finetune knows no other"}
MAKE_FAILED = "llama.cpp's files could not be made ({})."
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
        plan = ["trainyard.backends.llamacpp.plan", str(tools()), str(folder)]
        run = runner.start_run(job, folder, events, DEVICE, plan=plan, failure=MAKE_FAILED.format("plan"))
        require_space(folder, FREE_COPIES * runner.measure_size(run.plan_folder / "base.gguf"))
        (folder / runner.BEGUN_FILE).touch()
        moved = f"moves all weights but the token embeddings, once for each window of {run.plan['context']} tokens"
        events.emit("warning", text=f"llama-finetune {moved}; nothing is masked.")
        log_at = runner.measure_size(folder / LOG_FILE)
        write_result(run, train_epochs(run), log_at)


def tools() -> Path:
    """Return the programs and the converter of llama.cpp."""
    return environments.find_folder(BackendName.LLAMACPP) / FOLDER


def train_epochs(run: ExternalRun) -> LogCurve:
    """Return every epoch that is not done yet."""
    hyper, curve, files = run.job.config.hyperparameters, LogCurve(), WorkerFiles(run.folder)
    model, epochs = run.plan_folder / "base.gguf", run.plan["epochs"]
    if run.checkpoint.path is not None:
        state = json.loads((run.checkpoint.path / STATE_FILE).read_text(encoding="utf-8"))
        curve.losses, curve.epochs, model = state["losses"], state["epochs"], run.checkpoint.path / MODEL_FILE
    files.begin(**COMPUTES)
    schedule = SCHEDULES[hyper.schedule if epochs > 1 else Schedule.CONSTANT]
    for epoch in range(len(curve.epochs), epochs):
        model = run_epoch(run, files, curve, model, (hyper.learning_rate or 0.0) * schedule(epoch, epochs, 0))
    return curve


def run_epoch(run: ExternalRun, files: WorkerFiles, curve: LogCurve, model: Path, rate: float) -> Path:
    """Return one run of the program, and its file as a checkpoint. Raises `Stopped`, or what the program failed at."""
    done = len(curve.epochs)
    out = run.folder / f"epoch-{done + 1}.gguf"
    out.unlink(missing_ok=True)
    curve.means = []
    watch = LogWatch(files, curve, rate, runner.measure_size(run.folder / LOG_FILE))
    runner.run_program(run, ExternalTool(lambda _: argv(run, model, out, rate), watch=watch))
    if not out.is_file() or not curve.means:
        raise TrainyardError("llama-finetune ended without a model.", do=f"Read {LOG_FILE}.", code="E-PROGRAM")
    curve.epochs.append(curve.means[-1])
    step = (done + 1) * run.plan["steps_per_epoch"]

    def write(folder: Path) -> None:
        out.rename(folder / MODEL_FILE)
        write_json_durably(folder / STATE_FILE, {"losses": curve.losses, "epochs": curve.epochs})

    checkpoint = commit(run.folder / CHECKPOINT_FOLDER, step, write)
    run.events.emit("checkpoint", step=step, epoch=done + 1)
    if run.events.stop_requested() and done + 1 < run.plan["epochs"]:
        raise Stopped("asked to stop; a checkpoint is saved", step=step)
    return checkpoint / MODEL_FILE


def argv(run: ExternalRun, model: Path, out: Path, rate: float) -> list[str]:
    """llama-finetune's command line. One thread: with more of them it spins for minutes on a busy machine."""
    hyper, context = run.job.config.hyperparameters, str(run.plan["context"])
    options = {
        "-m": str(model),
        "-f": str(run.plan_folder / "text.txt"),
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


@dataclass
class LogWatch:
    """Reads the program's log while it grows and reports its steps."""

    files: WorkerFiles
    curve: LogCurve
    rate: float
    at: int
    rest: bytes = b""

    def __call__(self, run: ExternalRun) -> None:
        steps = run.plan["steps_per_epoch"]
        every = max(1, steps // POINTS_PER_EPOCH)
        for number, mean in self.lines():
            loss = self.curve.see(number, mean)
            step = len(self.curve.epochs) * steps + number
            require_finite_loss(step, loss)
            if number % every == 0 or number == steps:
                self.curve.losses.append([step, loss, self.rate])
                self.files.progress(step, loss, self.rate)

    def lines(self) -> Iterator[tuple[int, float]]:
        """(step of the epoch, mean loss so far) of the lines that are new."""
        with (self.files.folder / LOG_FILE).open("rb") as stream:
            stream.seek(self.at)
            new = stream.read()
        self.at += len(new)
        whole, end, self.rest = (self.rest + new).rpartition(b"ETA=")
        for match in LINE.finditer(whole + end):
            if int(match[1]) == len(self.curve.means) + 1:
                yield int(match[1]), float(match[3])


def write_result(run: ExternalRun, curve: LogCurve, log_at: int) -> None:
    """Make the result of the last epoch's file."""
    last = newest_valid(run.folder / CHECKPOINT_FOLDER).path
    assert last is not None, "every epoch is a checkpoint"
    module = ["trainyard.backends.llamacpp.finish", str(tools()), str(run.folder), str(last / MODEL_FILE)]
    runner.run_helper(module, run.folder, MAKE_FAILED.format("finish"), None)
    version = read_own_version(tools())
    report: dict[str, object] = {
        "losses": curve.losses,
        # Windows differ in how hard they are; what falls is the mean of an epoch.
        "first_loss": curve.epochs[0],
        "final_loss": curve.epochs[-1],
        "versions": {"llama.cpp": version},
        "tool": {"name": "llama-finetune", "version": version},
        **COMPUTES,
        "context": run.plan["context"],
        "frozen": ["token embeddings"],
        "formats": ["gguf", "transformers"] if run.plan["comes_back"] else ["gguf"],
    }
    if run.job.config.quantization is Quantization.GGUF:
        gguf = run.folder / names.MADE_FOLDER / "weights" / "gguf"  # a Q8_0 copy next to the result
        command = ["llama-quantize", str(gguf / "model-f32.gguf"), str(gguf / "model-q8_0.gguf"), "Q8_0", "1"]
        runner.run_program(run, ExternalTool(lambda _: [str(tools() / "bin" / command[0]), *command[1:]]))
    write_json_durably(run.folder / names.MADE_FOLDER / names.REPORT_FILE, report)
    runner.finish_result(run, log_at)
    for left in run.folder.glob("epoch-*.gguf"):
        left.unlink()
