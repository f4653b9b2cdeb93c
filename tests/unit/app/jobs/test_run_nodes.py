"""The nodes of a run, from its files while it is running and from its record at the end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from trainyard.app.context import Caller, Context
from trainyard.app.jobs.nodes import list_nodes, show_node
from trainyard.app.live.jobs import open_index
from trainyard.app.run_records import NodeResult, RunRecord, RunResult
from trainyard.errors import NotFound, Unavailable
from trainyard.operations.jobs import JobInput, NodeInput
from trainyard.settings import load_settings
from trainyard.spec.axes.data import Port
from trainyard.spec.graph import resolve
from trainyard.spec.states import JobState
from trainyard.stores.artifacts import ArtifactStore, Produced, ProducedSet

RUN, JOB = "0190d3c2-1f2e-4a3b-8c4d-5e6f70819203", "job-5e6f70819203"
KEY = "ab" * 32
CHAIN = {
    "name": "guide",
    "nodes": [
        {"type": "data_source", "config": {"path": "docs"}}, {"type": "ai_generator"}, {"type": "validator"},
        {"type": "trainer"},
    ],
}  # fmt: skip


class Run:
    """A run whose files a test writes, with its row in the index."""

    def __init__(self, folder: Path) -> None:
        self.settings = load_settings(home=folder / "home")
        self.context = Context(self.settings, say=lambda _text: None)
        self.record = RunRecord(self.settings.runs / RUN)
        self.state(JobState.PENDING)

    def state(self, state: JobState, **more: Any) -> None:
        row = {
            "run_id": RUN, "id": JOB, "name": "guide", "tenant": "default", "state": state, "detail": "", "message": "",
            "created": 1.0, "started": 1.0, "seconds": 1.0, "attempts": 1, "pid": None, "url": "", "parameters": {},
            "tags": ["job"], "stage": "sft", "method": "lora", "backend": "native", "base_model": "",
            "trainings": [], **more,
        }  # fmt: skip
        index = open_index(self.settings)
        index.note_success(time.time())
        index.note_try(time.time())
        index.put([row], time.time())

    def begin(self) -> None:
        self.record.begin(resolve(CHAIN).model_dump(mode="json"))
        self.state(JobState.RUNNING)

    def states(self) -> dict[str, str]:
        return {node.id: node.state.value for node in list_nodes(JobInput(job=JOB), self.context).nodes}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def make_rows(folder: Path) -> Produced:
    (folder / "sft").mkdir()
    (folder / "sft" / "rows.jsonl").write_text('{"a": 1}\n')
    return Produced(outputs={Port.SFT: ProducedSet(folder="sft", rows=1)})


def test_a_run_that_has_not_begun_has_no_nodes(run: Run) -> None:
    listing = list_nodes(JobInput(job=JOB), run.context)
    assert (listing.state, listing.nodes) == (JobState.PENDING, ())


def test_each_event_moves_its_node_on(run: Run) -> None:
    run.begin()
    assert set(run.states().values()) == {"pending"}
    ArtifactStore(run.settings.artifacts).produce(KEY, make_rows)
    run.record.emit("data-source", "reused", key=KEY, message="40 documents")
    run.record.emit("ai-generator", "started", key=KEY)
    run.record.emit("ai-generator", "progress", fraction=0.25, text="4 of 16")
    states = {"data-source": "reused", "ai-generator": "running", "validator": "pending", "trainer": "pending"}
    assert run.states() == states
    source, generator, *_ = list_nodes(JobInput(job=JOB), run.context).nodes
    assert (generator.fraction, generator.message, generator.needs) == (0.25, "4 of 16", ("data-source",))
    assert source.outputs[Port.SFT].rows == 1
    run.record.emit("ai-generator", "failed", message="E-NODE: no documents")
    run.record.emit("validator", "skipped", message="a node before it did not finish")
    assert run.states() == states | {"ai-generator": "failed", "validator": "skipped"}


def test_a_node_of_a_run_that_was_stopped_is_not_running(run: Run) -> None:
    run.begin()
    run.record.emit("trainer", "started", key=KEY)
    run.state(JobState.CANCELED)
    assert run.states()["trainer"] == "canceled"


def test_a_node_is_paused_with_its_run_and_waits_when_that_continues(run: Run) -> None:
    run.begin()
    run.record.emit("trainer", "started", key=KEY)
    run.state(JobState.PAUSED, detail="pausing")
    assert run.states()["trainer"] == "paused"
    run.record.emit("trainer", "stopped", message="Stopped after step 3.", reason="pause")
    assert run.states()["trainer"] == "paused"
    run.state(JobState.PENDING, detail="resuming")
    assert run.states()["trainer"] == "pending"
    run.record.emit("trainer", "started", key=KEY)
    run.state(JobState.RUNNING)
    assert run.states()["trainer"] == "running"
    run.record.emit("trainer", "stopped", message="Stopped after step 4.", reason="cancel")
    run.state(JobState.CANCELED)
    assert run.states()["trainer"] == "canceled"


def test_the_seconds_of_a_node_end_with_its_attempt(run: Run) -> None:
    run.begin()
    with run.record.folder.joinpath("events.jsonl").open("a") as stream:
        for at, event in ((100, "started"), (101, "progress"), (103.5, "finished"), (180, "reused")):
            stream.write(json.dumps({"time": at, "node": "validator", "event": event, "key": KEY}) + "\n")
    (validator,) = (node for node in list_nodes(JobInput(job=JOB), run.context).nodes if node.id == "validator")
    assert (validator.state, validator.seconds) == ("reused", 3.5)


def test_the_end_is_the_record_of_the_run(run: Run) -> None:
    run.begin()
    run.record.emit("trainer", "started", key=KEY)
    nodes = tuple(
        NodeResult(id=node, type=node.replace("-", "_"), state="completed", seconds=2.5, message="done", facts={"x": 1})
        for node in ("data-source", "ai-generator", "validator", "trainer")
    )
    run.record.finish(RunResult(run_id=RUN, name="guide", state="completed", message="", nodes=nodes))
    run.state(JobState.COMPLETED)
    assert set(run.states().values()) == {"completed"}
    trainer = show_node(NodeInput(job=JOB, node="trainer"), run.context)
    assert (trainer.seconds, trainer.facts, trainer.trains) == (2.5, {"x": 1}, True)
    assert trainer.config["method"]["type"] == "lora"


def test_a_node_has_its_lines_in_order(run: Run) -> None:
    run.begin()
    run.record.emit("validator", "started", key=KEY)
    run.record.emit("validator", "note", text="117 rows")
    run.record.emit("trainer", "note", text="of another node")
    run.record.emit("validator", "warning", text="few <b>rows</b>")
    lines = show_node(NodeInput(job=JOB, node="validator"), run.context).lines
    assert [(line.text, line.level) for line in lines] == [("started", 20), ("117 rows", 20), ("few <b>rows</b>", 30)]


def test_another_node_and_another_tenant_find_nothing(run: Run) -> None:
    run.begin()
    with pytest.raises(NotFound, match="no node 'nobody'"):
        show_node(NodeInput(job=JOB, node="nobody"), run.context)
    run.state(JobState.RUNNING, tenant="acme")
    other = Context(run.settings, say=lambda _text: None, caller=Caller("laptop", tenant="depot", remote=True))
    with pytest.raises(Unavailable):  # the index does not have it for that tenant, and no Prefect can be asked
        list_nodes(JobInput(job=JOB), other)


def test_a_trainer_is_linked_with_what_it_reads(run: Run) -> None:
    """An sft trainer reads pairs only where there are no examples."""
    chain = {"name": "guide", "nodes": [{"type": "data_source", "config": {"path": "rows.jsonl"}}, {"type": "trainer"}]}
    run.record.begin(resolve(chain).model_dump(mode="json"))
    run.state(JobState.RUNNING)

    def ports() -> dict[str, list[str]]:
        trainer = list_nodes(JobInput(job=JOB), run.context).nodes[-1]
        return {port.value: [source.port.value for source in sources] for port, sources in trainer.inputs.items()}

    assert ports() == {"sft": ["sft"]}

    def make_pairs(folder: Path) -> Produced:
        (folder / "preference").mkdir()
        (folder / "preference" / "rows.jsonl").write_text('{"a": 1}\n')
        return Produced(outputs={Port.PREFERENCE: ProducedSet(folder="preference", rows=1)})

    ArtifactStore(run.settings.artifacts).produce(KEY, make_pairs)
    run.record.emit("data-source", "finished", key=KEY)
    assert ports() == {"sft": ["preference"]}
