"""`trainyard.backends.cloud.program:train`: the supervised child of a training at a provider. Imports no torch.

rows.jsonl          the rows as the provider reads them
provider.json       the journal: run key, uploaded files, remote job
result/adapter      the weights, or `served_model.json` where only a served model comes out
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, cast

import orjson

from trainyard.backends.base import probe
from trainyard.backends.cloud.contract import (
    Provider,
    RemoteJob,
    UploadedRows,
    build_request,
    find_provider_address,
)
from trainyard.backends.cloud.errors import ProviderError
from trainyard.backends.cloud.journal import is_cancel_requested, withdraw_cancel
from trainyard.backends.cloud.submission import PollPace, Submission
from trainyard.backends.job import TrainingJob
from trainyard.backends.results import RESULT_FOLDER, TRAINING_FILE
from trainyard.backends.rows import evaluation_rows, read_rows
from trainyard.compute.child import SPEC_FILE, Events, Stopped, faultpoint, read_stop_reason
from trainyard.compute.events import read_events
from trainyard.data.rows import TRAIN
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.settings import settings
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.stages import Stage
from trainyard.stores.metrics import read_curve
from trainyard.stores.models import check_adapter_folder
from trainyard.stores.whole import new_file, write_folder, write_json_durably

ROWS_FILE, HELD_OUT_FILE, SERVED_FILE = "rows.jsonl", "validation.jsonl", "served_model.json"
FormatRow = Callable[[Any, Stage], JsonObject]
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def train(folder: Path, events: Events) -> None:
    """Run the job of `folder/spec.json` at its provider."""
    job = TrainingJob.model_validate_json((folder / SPEC_FILE).read_text(encoding="utf-8"))
    module = importlib.import_module(f"trainyard.backends.cloud.{job.config.backend.value}")
    provider = cast(Provider, module.open_provider(find_provider_address(job)))
    poll_s = settings().provider_poll_s
    submission = Submission(
        provider, job.work_name, folder, events.emit,
        PollPace(poll_s=poll_s, settle_s=settings().provider_settle_s),
        stop_reason=partial(find_stop_reason, folder, events),
    )  # fmt: skip
    try:
        submission.end_if_asked()
        run(job, submission, getattr(module, "format_row", format_row))
    except Stopped:
        withdraw_cancel(folder)
        raise


def find_stop_reason(folder: Path, events: Events) -> str:
    """Return why the training is asked to stop; empty while it is not."""
    if is_cancel_requested(folder):
        return "cancel"
    return read_stop_reason(folder) if events.stop_requested() else ""


def run(job: TrainingJob, submission: Submission, format_row: FormatRow) -> None:
    """Upload the rows, follow the remote job to its end, and take its result over."""
    folder, emit, started = submission.folder, submission.emit, time.monotonic()
    count = write_rows(job, folder / ROWS_FILE, format_row)
    held_out = write_held_out(job, folder / HELD_OUT_FILE, format_row)
    emit("prepared", rows=count, held_out=held_out, seconds=round(time.monotonic() - started, 3))
    submission.require_not_stopped()
    training, validation = submission.upload("rows", folder / ROWS_FILE), None
    if held_out:
        validation = submission.upload("validation", folder / HELD_OUT_FILE)
    rows = UploadedRows(training, validation)
    remote = submission.submit(build_request(job, submission.run_key), rows)
    service = job.service.base_url if job.service is not None else ""
    emit("begin", restarted_from=None, device="provider", precision="provider", job=remote.id,
         service=service or job.config.backend.value)  # fmt: skip
    remote = submission.follow(remote)
    record = make_record(job, folder, remote, count, time.monotonic() - started)
    save_result(job, folder, submission.provider, remote, record)
    emit("metrics", **final_metrics(folder))
    for name in (ROWS_FILE, HELD_OUT_FILE):
        (folder / name).unlink(missing_ok=True)


# Rows


def write_rows(job: TrainingJob, path: Path, format_row: FormatRow) -> int:
    """Write the rows that are trained on as JSON lines; returns how many. Raises `E-DATA-EMPTY`, `E-LIMIT`."""
    count = write_lines(job, path, (row for row in read_rows(job) if getattr(row, "split", TRAIN) == TRAIN), format_row)
    if not count:
        raise InvalidInput("No row is left to train on.", do="Give the trainer more rows.", code="E-DATA-EMPTY")
    return count


def write_held_out(job: TrainingJob, path: Path, format_row: FormatRow) -> int:
    """Write the rows that the provider evaluates on; returns how many, 0 without `eval`."""
    rows = evaluation_rows(job)
    if rows:
        write_lines(job, path, rows, format_row)
    return len(rows)


def write_lines(job: TrainingJob, path: Path, rows: Iterable[Any], format_row: FormatRow) -> int:
    """Write rows as JSON lines, as many bytes as the provider takes; returns how many rows. Raises `E-LIMIT`."""
    facts = job.config.backend.facts.provider
    assert facts is not None, "a backend of this room"
    count = size = 0
    with new_file(path) as draft, draft.open("wb") as lines:
        for row in rows:
            line = orjson.dumps(format_row(row, job.config.stage.type)) + b"\n"
            size += len(line)
            facts.require_file_size(size)
            lines.write(line)
            count += 1
    return count


def format_row(row: Any, stage: Stage) -> JsonObject:
    """Return a row in the format of OpenAI, Together and Fireworks: messages, or a pair of answers to a prompt."""
    if stage is Stage.DPO:
        return {
            "input": {"messages": plain_messages(row.prompt)},
            "preferred_output": plain_messages(row.chosen[-1:]),
            "non_preferred_output": plain_messages(row.rejected[-1:]),
        }
    line: JsonObject = {"messages": plain_messages(row.messages)}
    return {**line, "tools": orjson.loads(row.tools)} if row.tools else line


def plain_messages(messages: Iterable[Any]) -> list[JsonObject]:
    """Return messages as chat APIs write them: role and content, calls, and the few further fields of a turn."""
    return [
        {
            "role": message.role,
            "content": message.content,
            **({"tool_calls": orjson.loads(message.tool_calls)} if message.tool_calls else {}),
            **message.extras,
        }
        for message in messages
    ]


# The result


def save_result(job: TrainingJob, folder: Path, provider: Provider, remote: RemoteJob, record: JsonObject) -> None:
    """Make `folder/result`: the provider's weights as a PEFT adapter, or the name of what it serves."""
    facts = job.config.backend.facts.provider
    assert facts is not None, "a backend of this room"

    def fill(temporary: Path) -> None:
        target = temporary / job.output.value
        target.mkdir(parents=True)
        if facts.weights:
            with tempfile.TemporaryDirectory(dir=folder) as download:
                provider.download(remote, Path(download))
                take_weights(Path(download), target, job)
        else:
            served = {"provider": job.config.backend.value, "model": remote.model, "job": remote.id}
            write_json_durably(target / SERVED_FILE, served)
        write_json_durably(target / TRAINING_FILE, record)

    write_folder(folder / RESULT_FOLDER, fill, at=lambda point: faultpoint(f"result.{point}"))


def take_weights(download: Path, target: Path, job: TrainingJob) -> None:
    """Move the files of a downloaded adapter to `target`, checked, its base named as the job does."""
    needed = ADAPTER_FILES if job.output is Port.ADAPTER else ("config.json",)
    config = next(iter(sorted(download.rglob(needed[0]))), None)
    missing = [name for name in needed if config is None or not (config.parent / name).is_file()]
    if config is None or missing:
        raise ProviderError(f"The download of the provider has no {', '.join(missing)}.", do="Download it there.")
    for path in config.parent.iterdir():
        shutil.move(path, target / path.name)
    if job.output is Port.ADAPTER:
        values = orjson.loads((target / needed[0]).read_bytes())
        write_json_durably(target / needed[0], {**values, "base_model_name_or_path": job.base})
        check_adapter_folder(target)


def make_record(job: TrainingJob, folder: Path, remote: RemoteJob, rows: int, seconds: float) -> JsonObject:
    """Return the content of `training.json`."""
    config = job.config
    losses = read_losses(folder)
    return {
        "stage": config.stage.type.value,
        "method": config.method.type.value,
        "backend": config.backend.value,
        "base_model": config.base_model,
        "base_path": job.base,
        "base_sha256": job.base_sha256,
        "hyperparameters": config.hyperparameters.model_dump(mode="json"),
        "stage_settings": config.stage.model_dump(mode="json", exclude={"type"}),
        "parents": list(job.parents),
        "provider": {"job": remote.id, "model": remote.model, "cost_usd": remote.cost_usd, "tokens": remote.tokens},
        "first_loss": losses[0][1] if losses else None,
        "final_loss": losses[-1][1] if losses else None,
        "losses": losses,
        "steps": int(losses[-1][0] or 0) if losses else 0,
        "tokens": {"trained": remote.tokens or 0, "masked": 0},
        "rows": {"trained": rows},
        "counted": "provider",
        "data": {"rows": {"read": rows, "trained": rows}, "tokens": {}},
        "device": "provider",
        "precision": "provider",
        "seconds": round(seconds, 3),
        "versions": {"client": probe(config.backend).version},
    }


def read_losses(folder: Path) -> list[list[float | None]]:
    """Return [step, loss, learning rate] of every step that the provider reported."""
    points = read_curve(read_events(folder / "events.jsonl"))
    return [[point.step, point.loss, point.learning_rate] for point in points]


def final_metrics(folder: Path) -> JsonObject:
    losses = read_losses(folder)
    return {"steps": losses[-1][0], "first_loss": losses[0][1], "final_loss": losses[-1][1]} if losses else {"steps": 0}
