"""Let a reward model choose among the answers that a generator has drawn: scored in a supervised child, applied here.

This side imports no torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import orjson
from pydantic import Field

from trainyard.callbacks import ignore
from trainyard.compute.child import SPEC_FILE
from trainyard.compute.supervise import DesiredState, Status, keep_running, supervise
from trainyard.data.generation.candidates import CANDIDATES_FILE, Scored, keep_best
from trainyard.data.generation.rows import ACCOUNTING_FILE
from trainyard.errors import Conflict, from_fields
from trainyard.json_types import JsonObject
from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.devices import Device
from trainyard.stores.artifacts import Facts, Produced

PROGRAM = "trainyard.evals.selection_program:main"
CHILD_FOLDER = "choosing"
SCORES_FILE = "scores.jsonl"
CHILD_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1", "OMP_WAIT_POLICY": "passive"}


class SelectionJob(Strict):
    """Input of the scoring child."""

    reward_model: str
    """Folder of the adapter or the model that a trainer of stage reward has made."""
    candidates: str
    threads: int = Field(1, ge=1)
    device: Device = Device.AUTO
    seed: int = Field(42, ge=0)


def choose_best(
    produced: Produced,
    folder: Path,
    reward_model: Path,
    *,
    threads: int,
    seed: int,
    desired_state: Callable[[], DesiredState] = keep_running,
    on_event: Callable[[JsonObject], None] = ignore,
) -> Produced:
    """Return the generator's result in `folder` with the best answer to each question in the place of the first one.

    Raises the error of the child's `error.json`, and `Conflict` (`E-STOPPED`) when it was asked to stop.
    """
    (port,) = produced.outputs
    part = folder / produced.outputs[port].folder
    job = SelectionJob(
        reward_model=str(reward_model), candidates=str(part / CANDIDATES_FILE), threads=threads, seed=seed
    )
    child = folder / CHILD_FOLDER
    child.mkdir(parents=True)
    (child / SPEC_FILE).write_text(job.model_dump_json(indent=1), encoding="utf-8")
    argv = [sys.executable, "-P", "-m", "trainyard.compute.launch", PROGRAM, str(child)]
    outcome = supervise(
        argv, child, env=CHILD_ENVIRONMENT, desired_state=desired_state, on_event=on_event, grace_s=30, poll_s=0.2
    )
    if outcome.status is Status.STOPPED:
        raise Conflict(
            f"The choice among the answers was stopped ({outcome.reason}).",
            why="It keeps no checkpoint.",
            do="Run the chain again; finished nodes are reused.",
            code="E-STOPPED",
        )
    if outcome.status is not Status.DONE:
        fields = {"what": "The answers could not be scored.", "code": "E-CRASH", **(outcome.error or {})}
        raise from_fields(fields)
    selection = keep_best(part, port, read_scores(child / SCORES_FILE))
    return add_facts(produced, part, port, selection)


def read_scores(path: Path) -> Iterator[Scored]:
    """Yield what each candidate is worth, question by question."""
    with path.open("rb") as lines:
        for line in lines:
            yield orjson.loads(line)


def add_facts(produced: Produced, part: Path, port: Port, selection: Mapping[str, object]) -> Produced:
    """Return the result with the selection in its facts and its accounting."""
    facts: Facts = {**produced.facts, "candidates": {**produced.facts["candidates"], **selection}}
    path = part / ACCOUNTING_FILE
    account = {**json.loads(path.read_text(encoding="utf-8")), "candidates": facts["candidates"]}
    path.write_bytes(orjson.dumps(account, option=orjson.OPT_INDENT_2))
    output = produced.outputs[port]
    return Produced(
        outputs={port: output.model_copy(update={"facts": {**output.facts, "candidates": facts["candidates"]}})},
        facts=facts,
    )
