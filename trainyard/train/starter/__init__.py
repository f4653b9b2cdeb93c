"""The starter model: a small Llama that this machine makes itself, so that no hub, no account and no GPU is needed.

About five million parameters and minutes on two cores, from `corpus.py`'s reading. It learns the look of technical
English and of a question with its answer, and hardly any facts: a base whose adapter visibly changes it.

This module is the parent's side and stays torch-free; the training itself is the child `python -m
trainyard.train.starter FOLDER` (`pretrain.py`). Layout:

    models/starter/current              name of the folder in use
    models/starter/<key>/               config, weights (safetensors), tokenizer, manifest.json; key = recipe + corpus

The number of steps is fixed by the wanted seconds (two idle cores with fast bf16), not by a clock: a slower
or a busier machine takes longer and gets the same model.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from trainyard.errors import InvalidInput, TrainyardError
from trainyard.spec.chain import digest
from trainyard.stores.artifacts import fsync_path, write_json_durably
from trainyard.stores.models import SMALL_STARTER, STARTER, ModelSource, resolve_folder
from trainyard.train.starter.corpus import SourceFile, corpus_sources, project_docs

CURRENT = "current"
MANIFEST = "manifest.json"
STEPS_PER_SECOND = 5.0
"""Optimizer steps of 2,048 tokens a second on two idle cores with fast bf16; 1.5 in fp32 where bf16 is slow."""
SECONDS, SMALL_SECONDS = 120, 40
"""What the training is sized for, and that of the small starter, with a third of the steps."""
POLL_S = 0.2

Report = Callable[[float, str], None]

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "{{- '<|im_start|>assistant\n' -}}"
    "{% generation %}{{- message['content'] + '<|im_end|>' -}}{% endgeneration %}"
    "{{- '\n' -}}"
    "{%- else -%}"
    "{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
"""ChatML without a default system prompt and without a date: the same messages always give the same text."""
PAD, END_OF_TEXT, TURN_START, TURN_END = "<|pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights, the corpus excepted."""

    steps: int
    version: int = 2
    vocabulary: int = 4096
    layers: int = 4
    hidden: int = 256
    intermediate: int = 896
    heads: int = 4
    positions: int = 4096
    batch_rows: int = 8
    row_tokens: int = 256
    matrix_learning_rate: float = 0.02
    vector_learning_rate: float = 0.015
    warmup_steps: int = 30
    seed: int = 20


def ignore_progress(fraction: float, text: str) -> None:
    """Default of `report`: nobody watches."""


def build_starter(
    home: Path,
    *,
    name: str = STARTER,
    seconds: float | None = None,
    threads: int | None = None,
    force: bool = False,
    docs: Path | None = None,
    report: Report = ignore_progress,
) -> ModelSource:
    """Build a starter under `home/models/<name>`, or return the one that is already there.

    `name` is `starter` or `starter-small`; `seconds` sizes the training for two idle cores, by default that of the
    name; `threads` defaults to the physical cores, at most eight; `docs` defaults to the checkout's pages;
    `report(fraction, text)` is called as it goes. Two callers at once build once.

    Raises `InvalidInput` (`E-STARTER-SECONDS`) and `TrainyardError` (`E-STARTER-BUILD`, with what the child said).
    """
    seconds = (SMALL_SECONDS if name == SMALL_STARTER else SECONDS) if seconds is None else seconds
    if not 1 <= seconds <= 86_400:
        raise InvalidInput(
            f"seconds={seconds:g} is not a training time.", do="Give 1 to 86400 seconds.", code="E-STARTER-SECONDS"
        )
    root = home / "models" / name
    root.mkdir(parents=True, exist_ok=True)
    recipe = Recipe(steps=max(8, round(seconds * STEPS_PER_SECOND)))
    sources = corpus_sources(docs or project_docs())
    key = starter_key(recipe, sources)
    with only_one_builder(root, report):
        if force or not (root / key / MANIFEST).is_file():
            train_into(root, key, recipe, sources, threads=threads or default_threads(), report=report)
        point_current_at(root, key)
    report(1.0, f"the {name} model is ready")
    return resolve_folder(name, root / key)


def starter_key(recipe: Recipe, sources: list[SourceFile]) -> str:
    """First 16 hex digits of the digest over the recipe, the chat template and every source file's digest."""
    files = {source.name: source.sha256 for source in sources}
    return digest({"recipe": asdict(recipe), "template": CHAT_TEMPLATE, "sources": files})[:16]


def default_threads() -> int:
    return max(1, min(8, psutil.cpu_count(logical=False) or os.cpu_count() or 1))


@contextlib.contextmanager
def only_one_builder(root: Path, report: Report) -> Iterator[None]:
    """A lock of the operating system, which a dead builder cannot keep."""
    with (root / ".lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(0.0, "waiting for another build of the starter model")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def point_current_at(root: Path, key: str) -> None:
    temporary = root / f".current.{os.getpid()}.tmp"
    temporary.write_text(key + "\n", encoding="utf-8")
    temporary.rename(root / CURRENT)
    fsync_path(root)


def train_into(
    root: Path, key: str, recipe: Recipe, sources: list[SourceFile], *, threads: int, report: Report
) -> None:
    """Train in a temporary folder, then rename: the folder of a key exists whole or does not exist."""
    for left_over in root.glob(".build-*"):  # we hold the lock, so whoever made these is dead
        shutil.rmtree(left_over)
    work = Path(tempfile.mkdtemp(prefix=".build-", dir=root))
    try:
        files = [{"name": source.name, "path": str(source.path), "sha256": source.sha256} for source in sources]
        spec = {"recipe": asdict(recipe), "key": key, "threads": threads, "sources": files}
        (work / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        run_child(work, report)
        model = work / "model"
        for path in model.iterdir():
            fsync_path(path)
        if (root / key).exists():
            (root / key).rename(work / "replaced")
        model.rename(root / key)
        fsync_path(root)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run_child(work: Path, report: Report) -> None:
    """Run the training program to its end; its output goes to a file, its progress is read from `events.jsonl`."""
    command = [sys.executable, "-m", "trainyard.train.starter", str(work)]
    with (work / "child.log").open("wb") as log:
        # Spinning threads starve each other, and everybody else, as soon as the machine is shared.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
    try:
        read = 0
        while child.poll() is None:
            time.sleep(POLL_S)
            read = pass_on_events(work / "events.jsonl", read, report)
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait(timeout=30)
    if child.returncode != 0:
        raise child_error(work, child.returncode)


def pass_on_events(path: Path, read: int, report: Report) -> int:
    """Report the complete lines after byte `read`; returns the position after them."""
    if not path.is_file():
        return read
    with path.open("rb") as stream:
        stream.seek(read)
        fresh = stream.read()
    complete = fresh[: fresh.rfind(b"\n") + 1]
    for line in complete.splitlines():
        event = json.loads(line)
        if event["event"] == "progress":
            report(event["step"] / event["total_steps"], f"step {event['step']}, loss {event['loss']:.2f}")
    return read + len(complete)


def child_error(work: Path, status: int) -> TrainyardError:
    path = work / "error.json"
    if path.is_file():
        error: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return TrainyardError(error["what"], why=error["why"], do=error["do"], code=error["code"])
    lines = (work / "child.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return TrainyardError(
        f"The training program of the starter model ended with status {status}.",
        why=lines[-1] if lines else "It left no message.",
        do="Free memory or disk space and call `trainyard starter build` again.",
        code="E-STARTER-BUILD",
    )


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    write_json_durably(folder / MANIFEST, manifest)
