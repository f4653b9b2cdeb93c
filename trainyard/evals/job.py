"""What an evaluation is given: the job that the child reads as `spec.json`, and how it follows from a node's inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from trainyard.data.rows import UNSEEN_DOCUMENTS, UNSEEN_WORDING
from trainyard.errors import InvalidInput
from trainyard.evals.benchmarks.table import LM_EVAL_PREFIX, benchmark
from trainyard.json_types import JsonObject
from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.data import DATA_PORTS, Port
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.stages import Stage
from trainyard.spec.nodes import REWARD_BENCHMARKS, BenchmarkSpec, EvaluatorConfig
from trainyard.stores.artifacts import Reference

TRAINING_FILE = "training.json"
SCORES_FILE = "scores.json"
"""File that the child leaves: values per row and participant."""
HELDOUT_FOLDER = "heldout"
SETS = (UNSEEN_WORDING, UNSEEN_DOCUMENTS, "heldout")
"""Names of held-out sets, the one that decides the gate first."""


SetName = Literal["unseen_wording", "unseen_documents", "heldout"]


class HeldOutSet(Strict):
    """One file of rows that training did not see."""

    name: SetName
    port: Port
    path: str
    gold: str = Field("file", description="Where the right answers come from; synthetic ones say so.")


class Participant(Strict):
    """One model under evaluation: the base alone, or with an adapter, or a whole other model."""

    name: str
    path: str | None = Field(None, description="Folder of the adapter or model; None is the base alone.")
    kind: Literal["base", "adapter", "model"] = "base"


class EvaluationJob(Strict):
    """Everything the evaluating child needs; nothing in it is looked up again."""

    base_model: str
    base_path: str
    candidate: Participant
    candidate_sha256: str = ""
    baseline: Participant = Participant(name="base")
    control: Participant | None = None
    live: Participant | None = None
    """The adapter that is live, where the candidate has to be better than base and live version."""
    live_note: str = ""
    """Why it is not compared with what is live, where it should be."""
    heldout: tuple[HeldOutSet, ...] = ()
    config: EvaluatorConfig = Field(default_factory=EvaluatorConfig)
    general_set: str | None = Field(None, description="JSONL of {text}; default: the one in the package.")
    head: Literal["causal", "reward"] = Field("causal", description="What the candidate gives: text, or one score.")
    threads: int = Field(1, ge=1)
    device: Device = Device.AUTO
    seed: int = Field(42, ge=0)


def job_from_inputs(
    config: EvaluatorConfig,
    inputs: Mapping[Port, Sequence[Reference]],
    *,
    threads: int,
    device: Device = Device.AUTO,
    live: Path | None = None,
    live_sha256: str = "",
) -> EvaluationJob:
    """Return the job of an evaluator node from its inputs, nearest first; `live` is the adapter deployed now, if any.

    An adapter that was trained with a `control` becomes the control, the nearest other one the candidate. Raises
    `InvalidInput` (`E-BENCHMARK`) when there is none.
    """
    trained = [*inputs.get(Port.ADAPTER, ()), *inputs.get(Port.MODEL, ())]
    facts = {reference.uri: training_facts(reference.path) for reference in trained}
    candidates = [reference for reference in trained if not facts[reference.uri].get("control")]
    controls = [reference for reference in trained if facts[reference.uri].get("control")]
    if not candidates:
        raise InvalidInput(
            "The evaluator has no adapter or model to compare with its baseline.",
            why="Only controls reached it." if controls else "No trainer is upstream.",
            do="Add a trainer without `control` before the evaluator.",
            code="E-BENCHMARK",
        )
    candidate = candidates[0]
    training = facts[candidate.uri]
    head = Stage(str(training.get("stage") or Stage.SFT.value)).facts.head
    base_sha256 = str(training.get("base_sha256") or "")
    base = baseline(config, live, base_sha256)
    second, note = live_participant(config, live, base_sha256, is_candidate=live_sha256 == candidate.sha256)
    return EvaluationJob(
        head=head,
        base_model=str(training.get("base_model", "")),
        base_path=str(training.get("base_path") or training.get("base_model", "")),
        candidate=participant("candidate", candidate),
        candidate_sha256=candidate.sha256,
        baseline=base if head == "causal" else Participant(name="chance (a base gives no scores)"),
        control=participant("control", controls[0]) if controls else None,
        live=second,
        live_note=note,
        heldout=heldout_sets(inputs),
        config=config,
        threads=max(1, threads),
        device=device,
        seed=config.seed,
    )


def participant(name: str, reference: Reference) -> Participant:
    kind: Literal["adapter", "model"] = "adapter" if reference.kind is Port.ADAPTER else "model"
    return Participant(name=name, path=str(reference.path), kind=kind)


def baseline(config: EvaluatorConfig, live: Path | None, base_sha256: str = "") -> Participant:
    """Return the baseline of the candidate. Where `live` cannot be, falls back to the base and says so.

    An adapter that is live on another base is not a baseline: on this base its weights mean nothing, any trained
    adapter would seem better, and it can no longer be served.
    """
    if config.baseline != "live":
        return Participant(name="base")
    if live is None:
        return Participant(name="base (no adapter is live yet)")
    return load_served(live, base_sha256) or Participant(name=f"base ({other_base(live)})")


def live_participant(
    config: EvaluatorConfig, live: Path | None, base_sha256: str, *, is_candidate: bool
) -> tuple[Participant | None, str]:
    """Return the live adapter as a further participant of `baseline: both`, or why it is none."""
    if config.baseline != "both":
        return None, ""
    if live is None:
        return None, "Nothing is live on this role yet, so the base alone is compared."
    if is_candidate:
        return None, f"The candidate is {version_name(live)}, which is live."
    adapter = load_served(live, base_sha256)
    return adapter, "" if adapter else f"The base alone is compared: {other_base(live)}."


def load_served(live: Path, base_sha256: str) -> Participant | None:
    """Return the live version as a participant; None for an adapter of another base."""
    if (live / "config.json").is_file():
        return Participant(name=f"live model {version_name(live)}", path=str(live), kind="model")
    trained_on = training_facts(live).get("base_sha256")
    if trained_on and base_sha256 and trained_on != base_sha256:
        return None
    return Participant(name=f"live adapter {version_name(live)}", path=str(live), kind="adapter")


def other_base(live: Path) -> str:
    return f"the live adapter {version_name(live)} belongs to another base"


def version_name(live: Path) -> str:
    """`<tenant>/<role>/v<N>` by its folder."""
    return "/".join(live.parts[-3:])


def training_facts(folder: Path) -> JsonObject:
    """Return the trainer's `training.json`; empty when the folder has none."""
    path = folder / TRAINING_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def heldout_sets(inputs: Mapping[Port, Sequence[Reference]]) -> tuple[HeldOutSet, ...]:
    """Return every held-out file of the nearest data input of each port, the deciding set first.

    The training rows themselves (`rows.arrow`) are never taken: what training saw proves nothing.
    """
    sets: list[HeldOutSet] = []
    for port in sorted(DATA_PORTS & set(inputs), key=list(Port).index):
        for reference in inputs[port]:
            files = [(name, reference.path / HELDOUT_FOLDER / f"{name}.arrow") for name in SETS]
            port_sets = [
                HeldOutSet(name=name, port=port, path=str(path), gold=gold_origin(reference))
                for name, path in files
                if path.is_file()
            ]
            if port_sets:
                sets += port_sets
                break
    return tuple(sorted(sets, key=lambda held_out: SETS.index(held_out.name)))


def gold_origin(reference: Reference) -> str:
    """Return where a set's gold answers come from, as the node that made the rows says."""
    facts = reference.facts
    if facts.get("gold"):
        return str(facts["gold"])
    return f"synthetic ({facts['engine']})" if facts.get("engine") else f"file ({facts.get('format') or 'rows'})"


def listed_benchmarks(job: EvaluationJob) -> tuple[BenchmarkSpec, ...]:
    """Return the benchmarks to run, each with its set named.

    A listed benchmark without a set and a path runs on every held-out set. Without a list: the accuracy of a reward
    model on pairs; of others the pairwise reward accuracy of preference sets, loss and token accuracy of the other
    sets, and forgetting, each with the margin of its row.
    """
    if job.config.benchmarks:
        listed = tuple(line for spec in job.config.benchmarks for line in expand_sets(spec, job))
        return (*listed, *quote_lines(job))
    lines: list[BenchmarkSpec] = []
    if job.head == "reward":
        pairs = [held_out.name for held_out in job.heldout if held_out.port is Port.PREFERENCE]
        return tuple(build_default(REWARD_BENCHMARKS[0], job.config.tolerance, name) for name in pairs)
    for held_out in job.heldout:
        names = (
            ("pairwise_reward_accuracy",) if held_out.port is Port.PREFERENCE else ("heldout_loss", "token_accuracy")
        )
        lines += [build_default(name, job.config.tolerance, held_out.name) for name in names]
    return (*lines, *quote_lines(job), build_default("forgetting", job.config.tolerance))


def quote_lines(job: EvaluationJob) -> tuple[BenchmarkSpec, ...]:
    """How often the right answer is quoted, on the deciding set; only the share that is required of it decides."""
    config = job.config
    if not (config.quotes and job.heldout):
        return ()
    name = job.heldout[0].name
    return (
        BenchmarkSpec(
            name="quotes", set=name, max_rows=config.quotes, margin=1.0, required=config.least_quoted or None
        ),
    )


def build_default(name: str, tolerance: float | None, chosen_set: SetName | None = None) -> BenchmarkSpec:
    """Return a benchmark that was not listed, with the margins of its row, or with the config's tolerance instead."""
    row = benchmark(name)
    relative = row.default_relative_margin if tolerance is None else tolerance
    return BenchmarkSpec(name=name, set=chosen_set, margin=row.default_margin, relative_margin=relative)


def expand_sets(spec: BenchmarkSpec, job: EvaluationJob) -> list[BenchmarkSpec]:
    on_own_rows = spec.path or spec.set or spec.name == "forgetting" or spec.name.startswith(LM_EVAL_PREFIX)
    if on_own_rows:
        return [spec]
    names = dict.fromkeys(held_out.name for held_out in job.heldout)
    if not names:
        raise InvalidInput(
            f"The benchmark {spec.name!r} has no rows to run on.",
            why="It names neither a set nor a path, and no held-out set reached the evaluator.",
            do="Put a validator before the trainer (it makes held-out sets), or give the benchmark a path.",
            code="E-DATA-EMPTY",
        )
    return [spec.model_copy(update={"set": name}) for name in names]


def label(line: BenchmarkSpec) -> str:
    """`benchmark/set`: how reports, the gate and `primary` name one line."""
    return f"{line.name}/{line.set or (Path(line.path).stem if line.path else 'general')}"
