"""`trainyard prove-resume`, seen from the command line: the choice of cells, the child that proves them, the table."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.compute.events import LineTail
from trainyard.errors import InvalidInput, TrainyardError
from trainyard.inherited import child_environment
from trainyard.operations.backends import ProveInput
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.methods import TRAINED_METHODS, Method
from trainyard.spec.axes.stages import Stage

STAGES = BackendName.NATIVE.facts.stages
FEW: tuple[tuple[Stage, ...], tuple[Method, ...]] = ((Stage.SFT, Stage.DPO), (Method.LORA, Method.FULL))
"""The cells that are proven by default: half a minute."""
POLL_S = 0.2


class ProvedCell(Response):
    """A stage with a method, interrupted in one way."""

    stage: str
    loss: str | None
    method: str
    mode: str
    identical: bool
    differs: tuple[str, ...]
    sha256: dict[str, str]
    """Of weights, optimizer, random (the generators) and losses, at the end of the interrupted run."""
    seconds: float
    error: str


class Proof(Response):
    """All verdicts."""

    cells: tuple[ProvedCell, ...]
    seconds: float

    @property
    def exit_code(self) -> int:
        return 0 if self.cells and all(cell.identical for cell in self.cells) else 1


def prove_resume(request: ProveInput, context: Context) -> Proof:
    """Prove the cells in a child process, `jobs` at a time. Raises `TrainyardError` (`E-PROVE`) when the child dies."""
    stages, methods = select_cells(request.stages, request.methods, request.everything)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="trainyard-proof-") as name:
        folder = Path(name)
        spec = {"stages": [*map(str, stages)], "methods": [*map(str, methods)], "jobs": request.jobs}
        (folder / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        cells = []
        for verdict in run_child(folder):
            cells.append(ProvedCell.model_validate(verdict))
            context.say(format_line(cells[-1]))
    return Proof(cells=tuple(cells), seconds=round(time.monotonic() - started, 1))


def select_cells(
    stages: tuple[Stage, ...], methods: tuple[Method, ...], everything: bool
) -> tuple[tuple[Stage, ...], tuple[Method, ...]]:
    """Return which stages and methods are proved. Raises `InvalidInput` (`E-PROVE`) for a stage that is not native."""
    if Method.AUTO in methods:
        raise InvalidInput(
            "Method auto is not a way of training.", do=f"Use {', '.join(TRAINED_METHODS)}.", code="E-PROVE"
        )
    if unknown := [stage for stage in stages if stage not in STAGES]:
        raise InvalidInput(
            f"The native engine has no stage {unknown[0]}.", do=f"Use {', '.join(STAGES)}.", code="E-PROVE"
        )
    if everything:
        return STAGES, TRAINED_METHODS
    return stages or (STAGES if methods else FEW[0]), methods or (TRAINED_METHODS if stages else FEW[1])


def run_child(folder: Path) -> Iterator[dict[str, object]]:
    """Start the program and yield its verdicts as they come."""
    command = [sys.executable, "-P", "-m", "trainyard.backends.native.proof", str(folder)]
    environment = child_environment({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"})
    verdicts = LineTail(folder / "verdicts.jsonl")
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
    try:
        ended = False
        while not ended:
            ended = child.poll() is not None
            yield from map(json.loads, verdicts.read_lines())
            time.sleep(0 if ended else POLL_S)
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait(timeout=30)
    if child.returncode != 0:
        lines = (folder / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise TrainyardError(
            f"The proof ended with status {child.returncode}.",
            why=lines[-1] if lines else "It left no message.",
            do="Free memory and call it again.",
            code="E-PROVE",
        )


def format_line(cell: ProvedCell) -> str:
    """Return one verdict as a person reads it."""
    name = f"{cell.stage}{f' ({cell.loss})' if cell.loss else ''}, {cell.method}, {cell.mode}"
    if cell.identical:
        return f"{name}: identical, weights {cell.sha256['weights'][:12]}"
    return f"{name}: DIFFERS in {', '.join(cell.differs)}{f' ({cell.error})' if cell.error else ''}"
