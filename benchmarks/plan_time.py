"""Is the time of `trainyard plan` right? Six small trainings are measured, planned, and run three times each.

sft full, sft lora, dpo lora, kto lora, cpt packed and reward, on the starter model, with steps enough that process
start and imports are not the whole of it. What is compared is the plan of the trainer before a run with the wall time
of that run, from the start of its process to its result. Each finished run is a measurement too, so the second and the
third plan know more than the first. The load of the machine at each run is printed: where it was more than 1.5 times
the cores, or changed between measurement and run, the error is that of the machine.

    python -m benchmarks.plan_time [JOB …]
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import Row, Sample, finish, size
from trainyard.app.plan.estimate import FinishedNodes, find_results
from trainyard.app.plan.measure import probe_data
from trainyard.app.plan.plan import plan_chain
from trainyard.app.plan.resolve import resolve_chain
from trainyard.backends.job import prepare_job
from trainyard.backends.oom import train_within_memory
from trainyard.compute.supervise import keep_running
from trainyard.settings import Settings
from trainyard.spec.chain import ChainSpec
from trainyard.spec.training import TrainerConfig

MEDIAN_ERROR, WORST_ERROR, RUNS, ROWS = 0.30, 0.60, size(3, 1), size(240, 40)
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "sft full": ("sft", {"stage": "sft", "method": "full"}),
    "sft lora": ("sft", {"stage": "sft", "method": "lora"}),
    "dpo lora": ("preference", {"stage": "dpo", "method": "lora"}),
    "kto lora": ("labelled", {"stage": "kto", "method": "lora"}),
    "cpt packed": ("text", {"stage": "cpt", "method": "full", "engine": {"batching": "packed"}}),
    "reward": ("preference", {"stage": "reward", "method": "lora"}),
}
HYPER = {"epochs": 2, "batch_size": 4, "max_length": 96}


def write_rows(folder: Path) -> None:
    """A file of rows for each port, of mixed lengths."""
    chance = random.Random(7)
    vocabulary = [f"w{number}" for number in range(200)]

    def text(least: int, most: int) -> str:
        return " ".join(chance.choices(vocabulary, k=chance.randint(least, most)))

    rows: dict[str, list[dict[str, Any]]] = {"sft": [], "preference": [], "labelled": [], "text": []}
    for number in range(ROWS):
        question = {"role": "user", "content": text(3, 10)}
        answers = [[{"role": "assistant", "content": text(5, 30)}] for _ in range(2)]
        rows["sft"].append({"messages": [question, *answers[0]]})
        rows["preference"].append({"prompt": [question], "chosen": answers[0], "rejected": answers[1]})
        rows["labelled"].append({"prompt": [question], "completion": answers[0], "label": number % 2 == 0})
        rows["text"].append({"text": text(20, 80)})
    for name, node_rows in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in node_rows), encoding="utf-8")


def chain_of(port: str, config: dict[str, Any]) -> ChainSpec:
    trainer = {"device": "cpu", "hyperparameters": HYPER, **config}
    nodes = [{"type": "data_source", "config": {"path": f"{port}.jsonl"}}, {"type": "trainer", "config": trainer}]
    return ChainSpec.model_validate({"name": "plan-time", "nodes": nodes})


def run_once(spec: ChainSpec, settings: Settings, folder: Path) -> float:
    """Wall seconds of the training of a chain, as its trainer node would run it."""
    chain = resolve_chain(spec, settings)
    node, looks = chain.node("trainer"), find_results(chain, settings)
    assert isinstance(node.config, TrainerConfig)
    finished = FinishedNodes(chain, {}, {name: look.key for name, look in looks.items()})
    data = probe_data(finished, node, folder, settings, None)
    job = prepare_job(
        node.config.model_copy(update={"reuse": False}),
        str(node.config.base_model),
        settings,
        data={data.port: str(data.folder)},
        data_sha256={data.port: data.name},
        run=folder.name,
    )
    produced = train_within_memory(
        job, folder / "out", desired_state=keep_running, on_event=lambda event: None, settings=settings
    )
    return float(produced.facts["time"]["seconds"])


def judge(name: str, settings: Settings) -> list[tuple[float, Sample]]:
    """Errors of the plan before each run of a job: planned / wall - 1."""
    spec, errors = chain_of(*JOBS[name]), []
    for number in range(RUNS):
        planned = plan_chain(spec, settings, measure=number == 0, say=lambda text: None).nodes[1].estimate
        assert planned.seconds is not None, planned.basis
        folder = Path(tempfile.mkdtemp(prefix="plan-time-"))
        loads = [os.getloadavg()[0]]
        wall = run_once(spec, settings, folder)
        loads.append(os.getloadavg()[0])
        error = planned.seconds / wall - 1
        load = f"load {loads[0]:.1f} to {loads[1]:.1f}"
        print(f"  {name:<11} {planned.seconds:7.1f} s planned, {wall:7.1f} s, {error:+5.0%}, {load}", flush=True)
        errors.append((abs(error), Sample(planned.seconds, wall, 0.0)))
    return errors


def main(job_names: list[str]) -> int:
    samples: dict[str, list[Sample]] = {}
    errors: list[float] = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        write_rows(work)
        settings = Settings(home=work / "home", working_folder=work, min_free_mb=0)
        for job in job_names or JOBS:
            judged = judge(job, settings)
            errors += [error for error, _ in judged]
            samples[job] = [sample for _, sample in judged]
    print(f"  {len(errors)} runs in {time.monotonic() - started:.0f} s")
    rows = [
        Row.at_most("median of |planned / wall - 1|", median(errors), MEDIAN_ERROR),
        Row.at_most("greatest |planned / wall - 1|", max(errors), WORST_ERROR),
    ]
    return finish("plan_time", rows, samples)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
