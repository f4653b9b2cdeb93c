"""Finished results of a chain, and the time and memory that its nodes take on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import time as now

from pydantic import BaseModel

from trainyard.app.plan.keys import content_key
from trainyard.app.plan.machine import find_base_folder, find_base_shape, list_trainers
from trainyard.backends.timings import measure_slowdown, read_timings, timing_key
from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.events import read_events
from trainyard.compute.gpus import device_numbers, list_devices
from trainyard.compute.lease import holder, slot_lock
from trainyard.errors import TrainyardError
from trainyard.settings import Settings
from trainyard.spec.axes.data import DATA_PORTS, Port
from trainyard.spec.axes.devices import Device
from trainyard.spec.chain import ResolvedChain, ResolvedNode
from trainyard.spec.estimate.estimate import Estimate, Known, SampledNode
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.estimate.timing import Timings
from trainyard.spec.training import TrainerConfig
from trainyard.stores.artifacts import ArtifactStore, NodeOutput, Reference
from trainyard.stores.jobs import JobStore
from trainyard.stores.metrics import TrainingPace, number


@dataclass(frozen=True)
class FinishedNodes:
    """A chain, the finished results of its nodes, and their keys as far as they are known."""

    chain: ResolvedChain
    outputs: Mapping[str, NodeOutput | None]
    keys: Mapping[str, str | None]


class StoredResult(BaseModel):
    """Facts of one node's result."""

    key: str | None = None
    output: NodeOutput | None = None

    @property
    def rows(self) -> dict[Port, int]:
        outputs = self.output.outputs if self.output else {}
        return {port: part.rows for port, part in outputs.items() if part.rows is not None}


def find_results(chain: ResolvedChain, settings: Settings) -> dict[str, StoredResult]:
    """Return which results are finished: a key is known as soon as all inputs are."""
    looks: dict[str, StoredResult] = {}
    for node_id in chain.order:
        node = chain.node(node_id)
        outputs = {
            source.node_id: looks[source.node_id].output for sources in node.inputs.values() for source in sources
        }
        finished = {name: output.outputs for name, output in outputs.items() if output is not None}
        looks[node_id] = (
            find_result(node, list_inputs(node, finished), settings)
            if len(finished) == len(outputs)
            else StoredResult()
        )
    return looks


def find_result(node: ResolvedNode, inputs: dict[Port, list[Reference]], settings: Settings) -> StoredResult:
    try:
        key = content_key(node, inputs, settings, run_id="")
        return StoredResult(key=key, output=ArtifactStore(settings.artifacts).find(key))
    except TrainyardError:
        return StoredResult()  # what is missing is among the reasons of `list_refusals`


def list_inputs(node: ResolvedNode, outputs: Mapping[str, Mapping[Port, Reference]]) -> dict[Port, list[Reference]]:
    """Return the node's inputs, chosen from the outputs of the nodes before it."""
    return {
        port: [outputs[source.node_id][source.port] for source in sources if source.port in outputs[source.node_id]]
        for port, sources in node.inputs.items()
    }


def build_facts(
    chain: ResolvedChain, looks: Mapping[str, StoredResult], sampled: Mapping[str, SampledNode], settings: Settings
) -> Known:
    """Return what an estimate of the chain knows on this machine, without the time in the queue."""
    outputs = {node_id: look.output for node_id, look in looks.items()}
    nodes = FinishedNodes(chain, outputs, {node_id: look.key for node_id, look in looks.items()})
    here = list_devices()[0]
    return Known(
        rows={node_id: look.rows for node_id, look in looks.items() if look.rows},
        shapes=find_shapes(chain, settings),
        device=here,
        timings=find_timings(chain, settings, here, measure_slowdown(Device.CPU)),
        data=name_data_sets(nodes),
        tokens_per_row=count_tokens(nodes),
        sampled=sampled,
    )


def add_problem(estimated: Estimate, problems: Mapping[str, str]) -> Estimate:
    """Return the estimate, with why it was not measured."""
    problem = problems.get(estimated.node)
    return estimated.model_copy(update={"basis": (*estimated.basis, problem)}) if problem else estimated


def find_shapes(chain: ResolvedChain, settings: Settings) -> dict[str, ModelShape]:
    """Shapes of the base models that are on this machine."""
    trainers = [node.config for node in chain.nodes if isinstance(node.config, TrainerConfig)]
    names = {name for config in trainers for name in (config.base_model, config.stage.teacher_model)}
    return {name: shape for name in names if name and (shape := find_base_shape(name, settings)) is not None}


def find_timings(chain: ResolvedChain, settings: Settings, here: Device, slowdown: float = 1.0) -> dict[str, Timings]:
    """Trainer's id -> measurements of similar trainings; `slowdown` is that of the CPU now."""
    timings_by_trainer = {}
    for node, config in list_trainers(chain):
        device = here if config.device is Device.AUTO else config.device
        base = find_base_folder(config.base_model or settings.default_base_model, settings)
        timings = read_timings(timing_key(config, base, device, settings), settings)
        timings_by_trainer[node.id] = replace(timings, slowdown=slowdown) if device is Device.CPU else timings
    return timings_by_trainer


def name_data_sets(nodes: FinishedNodes) -> dict[str, frozenset[str]]:
    """Trainer's id -> names of the data set that reaches it: its digest, and the key of what reads it."""
    every = {}
    for node, _ in list_trainers(nodes.chain):
        names = set()
        for source in (port_source for port in DATA_PORTS for port_source in node.inputs.get(port, ())):
            output, key = nodes.outputs.get(source.node_id), nodes.keys.get(source.node_id)
            if output is not None and source.port in output.outputs:
                names.add(output.outputs[source.port].sha256)
            if key:
                names.add(key_name(key))
        every[node.id] = frozenset(names)
    return every


def key_name(key: str) -> str:
    return f"key:{key}"


def count_tokens(nodes: FinishedNodes) -> dict[str, float]:
    """Trainer's id -> mean tokens of its rows, where a finished validator before it has counted them."""
    means = {}
    for node, _ in list_trainers(nodes.chain):
        for source in (port_source for port in DATA_PORTS for port_source in node.inputs.get(port, ())):
            output = nodes.outputs.get(source.node_id)
            facts = (output.facts.get(source.port.value) or {}) if output else {}
            tokens, rows = (facts.get("tokens") or {}).get("kept"), facts.get("kept")
            if tokens and rows:
                means[node.id] = tokens / rows
    return means


def estimate_queue_s(settings: Settings) -> float | None:
    """Return seconds until the first device is free: 0 where one is, None where its training does not say."""
    waits: list[float | None] = []
    for device in device_numbers():
        user = holder(slot_lock(settings, device))
        if user is None:
            return 0.0
        waits.append(estimate_left_s(user.run, settings))
    numbers = [wait for wait in waits if wait is not None]
    return min(numbers) if numbers else None


def estimate_left_s(run: str, settings: Settings) -> float | None:
    """Return seconds to the last step of the training that a run, or a job without a server, does now."""
    left, reported = None, 0.0
    for path in list_event_files(run, settings):
        pace = TrainingPace()
        for event in read_events(path):
            if event["event"] in ("started", "begin"):
                pace, left = TrainingPace(), None
            elif event["event"] == "progress":
                total, time = number(event.get("total_steps")), number(event.get("time"))
                left, reported = (
                    pace.estimate_remaining_s(int(number(event.get("step")) or 0), total, time),
                    time or 0.0,
                )
    return None if left is None else max(0.0, left - max(0.0, now() - reported))


def list_event_files(run: str, settings: Settings) -> list[Path]:
    """Return the events of the newest training of a run, or of a job."""
    if not run:
        return []
    from trainyard.app.training_logs import find_training_logs  # imports readers of tables; free devices need none

    logs = find_training_logs(settings.runs / run)
    if logs:
        return [logs[-1].folder / EVENTS_FILE]
    from trainyard.backends.manager import events_file  # imports the backends; free devices need none

    try:
        return [events_file(Path(JobStore(settings.home / "jobs").get(run).work))]
    except TrainyardError:
        return []  # a night, an evaluation or a measurement: none of them says how long it takes
