"""The supervised child of the `axolotl` backend: it leads `axolotl train` through a job.

Axolotl does not write Trainyard's events and exits on a signal without a checkpoint. So its log is read for progress,
each finished checkpoint is committed as one of Trainyard's, and a stop request becomes the file that makes it
save at the end of its step; it is ended when that checkpoint is whole.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import psutil
import yaml

from trainyard.backends import environments
from trainyard.backends.axolotl import config
from trainyard.backends.axolotl.config import OUTPUT_FOLDER, ROWS_FILE
from trainyard.backends.external.runner import ExternalRun, ExternalTool, finish_result, run_external, terminate
from trainyard.backends.results import CHECKPOINT_FOLDER
from trainyard.backends.rows import TOKENS_FILE
from trainyard.compute.child import LOG_FILE, Events
from trainyard.compute.events import LineTail
from trainyard.compute.gpus import read_gpus
from trainyard.compute.supervise import last_log_line
from trainyard.errors import InvalidInput, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.stages import Stage
from trainyard.stores.whole import write_json_durably
from trainyard.train.checkpoint.checkpoints import commit
from trainyard.workers.trainyard_worker import names
from trainyard.workers.trainyard_worker.files import WorkerFiles

CONFIG_FILE, VALIDATION_FILE = "axolotl.yaml", "axolotl-validation.json"
PLAN_OPTIONS = ("first-weights",)
"""Axolotl draws an adapter's first weights before it sets its seed: two runs of one job would differ."""
STATE_FILE = "trainer_state.json"
"""The last file of a checkpoint that transformers writes."""
STEP_LINE = re.compile(rb"\{'loss':[^{}]*\}")
CHECKPOINT_NAME = re.compile(r"checkpoint-(\d+)")
VALIDATION_S = 600
TOOLS = ("axolotl", "torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes")


def train(folder: Path, events: Events) -> None:
    """Run the job of `folder/spec.json` to its end."""
    watch = AxolotlWatch()
    run_external(
        folder, events, ExternalTool(argv, variables, watch.stop, PLAN_OPTIONS, check, watch.look, watch.finish)
    )


def check(run: ExternalRun) -> None:
    """Write rows and configuration, and have both questions of `axolotl_schema.py` answered."""
    shutil.rmtree(run.folder / OUTPUT_FOLDER, ignore_errors=True)
    (run.folder / OUTPUT_FOLDER).mkdir()
    write_rows(run)
    modules, first = run.plan_folder / names.MODULES_FILE, run.plan_folder / names.ADAPTER_FOLDER
    facts = config.AxolotlFacts(
        folder=run.folder,
        device=run.device,
        total_steps=run.plan["total_steps"],
        save_steps=run.plan["save_steps"],
        tokenizer=run.plan_folder / names.TOKENIZER_FOLDER,
        modules=orjson.loads(modules.read_bytes()) if modules.is_file() else None,
        first_adapter=first if (first / names.ADAPTER_WEIGHTS).is_file() else None,
        resume=next(run.checkpoint.path.glob("checkpoint-*")) if run.checkpoint.path else None,
        native_bf16=has_native_bf16(),
    )
    text = yaml.safe_dump(config.build_config(run.job, facts), sort_keys=False, allow_unicode=True)
    (run.folder / CONFIG_FILE).write_text(text, encoding="utf-8")
    require_valid(run.folder, run.variables(variables(run)))


def write_rows(run: ExternalRun) -> None:
    """The rows of the plan in axolotl's form. Raises `InvalidInput` (`E-BACKEND-CONFIG`) for any other."""
    stage = run.job.config.stage.type
    source = run.folder / TOKENS_FILE if stage is Stage.SFT else run.plan_folder / names.TEXTS_FILE
    with source.open("rb") as lines, (run.folder / ROWS_FILE).open("wb") as stream:
        for number, line in enumerate(lines, 1):
            row = config.convert_row(stage, orjson.loads(line))
            if row is None:
                raise InvalidInput(
                    f"Row {number} has an earlier exchange, and axolotl's reward format is one question.",
                    do="Use backend native or trl for rows of several turns, or leave such rows out.",
                    code="E-BACKEND-CONFIG",
                )
            stream.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))


def require_valid(folder: Path, variables: Mapping[str, str]) -> None:
    """Raise `InvalidInput` (`E-BACKEND-CONFIG`) for a key that axolotl would pass over, or a value."""
    result = folder / VALIDATION_FILE
    result.unlink(missing_ok=True)
    python = str(environments.find_python(BackendName.AXOLOTL))
    argv = [python, "-m", "trainyard_worker.axolotl_schema", str(folder / CONFIG_FILE), str(result)]
    with (folder / LOG_FILE).open("ab") as log:
        subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **variables}, cwd=folder,
            timeout=VALIDATION_S, check=False,
        )  # fmt: skip
    if not result.is_file():
        raise TrainyardError(
            "Axolotl's schema could not be asked.",
            why=last_log_line(folder),
            do="Run `trainyard backends install axolotl` again.",
            code="E-BACKEND-CONFIG",
        )
    validation = orjson.loads(result.read_bytes())
    if validation["unknown"]:
        key, nearest = validation["unknown"][0]
        raise InvalidInput(
            f"Axolotl has no key {key!r}.",
            why="It would be passed over without a word, and the run would be another one.",
            do=f"Did you mean {nearest!r}?" if nearest else "Remove it.",
            code="E-BACKEND-CONFIG",
        )
    if validation["errors"]:
        raise InvalidInput(
            f"Axolotl's schema refuses the configuration: {validation['errors'][0]}",
            why=f"{len(validation['errors'])} in all; the configuration is {CONFIG_FILE} in {folder}.",
            do="Change that setting, or that key of `extra`, or use another backend.",
            code="E-BACKEND-CONFIG",
        )


def argv(run: ExternalRun) -> list[str]:
    return [run.python, "-m", "axolotl.cli.main", "train", str(run.folder / CONFIG_FILE), "--launcher", "python"]


def variables(run: ExternalRun) -> Mapping[str, str]:
    """Return the tool's environment variables in addition to Trainyard's own."""
    return {
        "AXOLOTL_DO_NOT_TRACK": "1",
        "HF_DATASETS_CACHE": str(run.folder / "datasets"),
        "TRITON_CACHE_DIR": str(run.folder / "triton"),
        **({"ACCELERATE_USE_CPU": "true"} if run.device == "cpu" else {}),
    }


@dataclass
class AxolotlWatch:
    """Observed state of a running axolotl."""

    tail: LineTail | None = None
    """Reads the log; None before the first look."""
    worker_files: WorkerFiles | None = None
    """Reports the steps, from the first one on."""
    step: int = 0
    committed: set[int] = field(default_factory=set)
    stop_sent: bool = False

    def look(self, run: ExternalRun) -> None:
        """Report new steps, and commit new checkpoints."""
        if self.tail is None:
            self.tail, self.step = LineTail.at_end(run.folder / LOG_FILE), run.checkpoint.step
        for values in new_steps(self.tail):
            if self.worker_files is None:
                self.worker_files = WorkerFiles(run.folder)
                self.worker_files.begin(device=run.device, threads=run.job.threads, **precision(run))
            self.step += 1
            # The numbers of the log have four digits; the record takes them from axolotl's state.
            norm = float(values["grad_norm"]) if "grad_norm" in values else None
            rate = float(values.get("learning_rate", 0.0))
            self.worker_files.progress(self.step, float(values["loss"]), rate, grad_norm=norm)
        for step, path in list_finished(run.folder / OUTPUT_FOLDER):
            if step not in self.committed and run.checkpoint.step < step < run.plan["total_steps"]:
                self.committed.add(step)
                keep(run, step, path)

    def stop(self, run: ExternalRun, process: psutil.Process) -> bool:
        """Have it save at the end of its step, then end it. Before its first step there is nothing to save."""
        if self.worker_files is None:
            return terminate([process])
        if not self.stop_sent:
            (run.folder / OUTPUT_FOLDER / config.TRIGGER_FILE).touch()
            self.stop_sent = True
            return False
        if not self.committed or max(self.committed) < self.step:
            return self.step >= run.plan["total_steps"]  # it is about to end anyway
        write_json_durably(run.folder / names.HALT_FILE, {"step": max(self.committed)})
        return terminate([process])

    def finish(self, run: ExternalRun, log_at: int) -> None:
        """Make a result of axolotl's output folder."""
        self.look(run)
        output = run.folder / OUTPUT_FOLDER
        result = run.folder / names.MADE_FOLDER
        shutil.rmtree(result, ignore_errors=True)
        (result / "weights").mkdir(parents=True)
        # The files of a result; logs, arguments and a second tokenizer are none of it.
        adapter_files = ("adapter_config.json", "adapter_model.safetensors")
        kinds = (
            adapter_files if run.job.config.method.facts.adapter else ("config.json", "generation_config.json", "model")
        )
        for path in output.iterdir():
            if path.is_file() and path.name.startswith(kinds):
                shutil.copyfile(path, result / "weights" / path.name)
        installed = environments.list_installed(BackendName.AXOLOTL)
        report = {
            "losses": losses(output),
            "tool": {"name": "axolotl", "version": installed.get("axolotl", "")},
            "versions": {name: installed[name] for name in TOOLS if name in installed},
            **precision(run),
        }
        write_json_durably(result / names.REPORT_FILE, report)
        finish_result(run, log_at)
        (run.folder / ROWS_FILE).unlink()
        for name in (OUTPUT_FOLDER, config.PREPARED_FOLDER, "datasets", "triton"):
            shutil.rmtree(run.folder / name, ignore_errors=True)


def new_steps(log: LineTail) -> Iterator[JsonObject]:
    """Yield what the lines since the last look say of finished steps."""
    for match in STEP_LINE.finditer(b"\n".join(log.read_lines())):
        yield ast.literal_eval(match.group().decode("utf-8", "replace"))


def list_finished(output: Path) -> list[tuple[int, Path]]:
    """Checkpoints of axolotl's own that are whole: their last file can be read."""
    checkpoints = []
    for path in sorted(output.glob("checkpoint-*")):
        if match := CHECKPOINT_NAME.fullmatch(path.name):
            with suppress(OSError, orjson.JSONDecodeError):
                orjson.loads((path / STATE_FILE).read_bytes())
                checkpoints.append((int(match[1]), path))
    return checkpoints


def keep(run: ExternalRun, step: int, path: Path) -> None:
    """Commit axolotl's checkpoint as one of Trainyard's. Files are linked, not copied: axolotl never rewrites them."""

    def write(folder: Path) -> None:
        shutil.copytree(path, folder / path.name, copy_function=os.link)

    checkpoint = commit(run.folder / CHECKPOINT_FOLDER, step, write)
    size = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
    run.events.emit("checkpoint", step=step, path=str(checkpoint), bytes=size)


def precision(run: ExternalRun) -> dict[str, str]:
    requested = run.job.config.hyperparameters.precision
    choice, why = config.choose_precision(requested, run.device, native_bf16=has_native_bf16())
    return {"precision": choice.value, "precision_why": why}


def has_native_bf16() -> bool:
    """Whether every GPU here multiplies bf16 in hardware."""
    return all(gpu.native_bf16 for gpu in read_gpus().gpus)


def losses(output: Path) -> list[list[float]]:
    """[step, loss, learning rate] of every step, from the state of its last checkpoint; a resume takes it over."""
    saved = list_finished(output)
    if not saved:
        raise TrainyardError("Axolotl ended without a state of its steps.", do=f"Read {LOG_FILE}.", code="E-PROGRAM")
    _, path = max(saved)
    history = orjson.loads((path / STATE_FILE).read_bytes())["log_history"]
    return [
        [entry["step"], float(entry["loss"]), float(entry.get("learning_rate", 0.0))]
        for entry in history
        if "loss" in entry
    ]
