"""Train the starter model again, from the recipe and the corpus of the weights that are shipped.

This is the parent's side and stays torch-free; the training itself is a child process (`pretrain.py`). Layout:

    models/starter/current              name of the folder in use; without it, the shipped weights are used
    models/starter/<key>/               config, weights (safetensors, bf16), tokenizer, manifest.json

The number of steps is fixed, not the time: a slower or a busier machine takes longer and gets the same model.
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
from dataclasses import asdict
from pathlib import Path

import psutil

from trainyard.callbacks import ignore
from trainyard.errors import TrainyardError
from trainyard.inherited import UMASK, child_environment
from trainyard.json_types import JsonObject
from trainyard.spec.chain import digest
from trainyard.spec.training import STARTER
from trainyard.stores.files import DISK
from trainyard.stores.models import ModelSource, resolve_folder
from trainyard.stores.whole import flush_tree, move_folder, write_whole
from trainyard.train.starter.corpus import MANIFEST, PackageSource, StarterRecipe, corpus_sources

CURRENT = "current"
POLL_S = 0.2

Report = Callable[[float, str], None]


def build_starter(
    home: Path,
    *,
    recipe: StarterRecipe | None = None,
    packages: tuple[str, ...] | None = None,
    threads: int | None = None,
    force: bool = False,
    report: Report = ignore,
) -> ModelSource:
    """Build the starter under `home/models/starter`, or return the build that is already there.

    `recipe` and `packages` default to those of the shipped weights; `threads` to the physical cores, at most eight;
    `report(fraction, text)` is called as it goes. Two callers at once build once.

    Raises `NotFound` (`E-STARTER`) and `TrainyardError` (`E-STARTER`, with the child's message).
    """
    root = home / "models" / STARTER
    root.mkdir(parents=True, exist_ok=True)
    recipe = recipe or StarterRecipe()
    sources = corpus_sources(packages) if packages else corpus_sources()
    key = starter_key(recipe, sources)
    with lock_builder(root, report):
        if force or not (root / key / MANIFEST).is_file():
            train_into_folder(root, key, recipe, sources, threads=threads or default_threads(), report=report)
        write_whole(DISK, root / CURRENT, f"{key}\n".encode())
    report(1.0, "the starter model is ready")
    return resolve_folder(STARTER, root / key)


def starter_key(recipe: StarterRecipe, sources: list[PackageSource]) -> str:
    """First 16 hex digits of the digest over the recipe and the versions of the packages that are read."""
    return digest({"recipe": recipe.sha256, "sources": {source.name: source.version for source in sources}})[:16]


def compare(built: Path, shipped: Path) -> JsonObject:
    """Return what a build has in common with the shipped weights: recipe, corpus, and the losses on the held-out
    passages.
    """
    built_manifest, shipped_manifest = (
        json.loads((folder / MANIFEST).read_text(encoding="utf-8")) for folder in (built, shipped)
    )
    return {
        "same_recipe": built_manifest["recipe_sha256"] == shipped_manifest["recipe_sha256"],
        "same_corpus": built_manifest["corpus_sha256"] == shipped_manifest["corpus_sha256"],
        "heldout_loss": built_manifest["heldout_loss"],
        "shipped_heldout_loss": shipped_manifest["heldout_loss"],
    }


def default_threads() -> int:
    return max(1, min(8, psutil.cpu_count(logical=False) or os.cpu_count() or 1))


@contextlib.contextmanager
def lock_builder(root: Path, report: Report) -> Iterator[None]:
    """A lock of the operating system, which a dead builder cannot keep."""
    with (root / ".lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(0.0, "waiting for another build of the starter model")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def train_into_folder(
    root: Path, key: str, recipe: StarterRecipe, sources: list[PackageSource], *, threads: int, report: Report
) -> None:
    """Train in a temporary folder, then rename: the folder of a key exists whole or does not exist."""
    for left_over in root.glob(".build-*"):  # this process has the lock, so the one that made these is dead
        shutil.rmtree(left_over)
    work = Path(tempfile.mkdtemp(prefix=".build-", dir=root))
    try:
        packages = [source.name for source in sources]
        spec = {"recipe": asdict(recipe), "key": key, "threads": threads, "packages": packages}
        (work / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        run_child(work, report)
        model = work / "model"
        flush_tree(DISK, model)
        if (root / key).exists():
            (root / key).rename(work / "replaced")
        move_folder(DISK, model, root / key)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run_child(work: Path, report: Report) -> None:
    """Run the training program to its end; its output goes to a file, its progress is read from `events.jsonl`."""
    command = [sys.executable, "-P", "-m", "trainyard.train.starter.pretrain", str(work)]
    with (work / "child.log").open("wb") as log:
        # Spinning threads starve each other, and everybody else, as soon as the machine is shared.
        environment = child_environment({"OMP_WAIT_POLICY": "passive"})
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, umask=UMASK
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
            step, loss, left = event["step"], event["loss"], event["left_s"]
            report(step / event["total_steps"], f"step {step}, loss {loss:.2f}, {left / 60:.1f} min left")
    return read + len(complete)


def child_error(work: Path, status: int) -> TrainyardError:
    path = work / "error.json"
    if path.is_file():
        error: JsonObject = json.loads(path.read_text(encoding="utf-8"))
        return TrainyardError(error["what"], why=error["why"], do=error["do"], code=error["code"])
    lines = (work / "child.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return TrainyardError(
        f"The training program of the starter model ended with status {status}.",
        why=lines[-1] if lines else "It left no message.",
        do="Free memory or disk space and call `trainyard starter build` again.",
        code="E-STARTER",
    )
