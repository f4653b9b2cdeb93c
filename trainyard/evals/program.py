"""The evaluating child: reads spec.json, scores every row with every participant, writes scores.json.

Started by `python -m trainyard.compute.launch trainyard.evals.program:main FOLDER`. It only scores; statistics, gate
and report are made by the parent, which needs no torch.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import peft
import torch
import transformers

from trainyard.compute.child import SPEC_FILE, Events, Stopped
from trainyard.errors import TrainyardError
from trainyard.evals.benchmarks.table import benchmark
from trainyard.evals.cases import Case, Value
from trainyard.evals.job import SCORES_FILE, EvaluationJob, label, listed_benchmarks
from trainyard.evals.model import HuggingFaceModel, load_participants, pick_device
from trainyard.evals.reward_model import load_reward_participants
from trainyard.evals.tasks import cases_of, gold_of
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.nodes import BenchmarkSpec
from trainyard.stores.whole import write_json_durably

SAMPLE_TOKENS = 48


def main(folder: Path, events: Events) -> None:
    """Run the job of `folder/spec.json`; progress goes to `events`, the result to `folder/scores.json`."""
    started = time.monotonic()
    job = EvaluationJob.model_validate_json((folder / SPEC_FILE).read_text(encoding="utf-8"))
    torch.set_num_threads(job.threads)
    torch.manual_seed(job.seed)
    lines = [(line, cases_of(line, job)) for line in listed_benchmarks(job)]
    participants: JsonObject = load_reward_participants(job) if job.head == "reward" else load_participants(job)
    scored = []
    for step, (line, cases) in enumerate(lines, 1):
        if events.stop_requested():
            raise Stopped("asked to stop between two benchmarks; an evaluation starts over")
        scored.append(score_line(line, cases, participants, job))
        events.emit("progress", step=step, total_steps=len(lines), text=label(line), seconds=time.monotonic() - started)
    samples = answer_samples(lines, participants, job) if job.head == "causal" else []
    facts = {"device": pick_device(job.device), "threads": job.threads, "versions": versions()}
    facts["seconds"] = round(time.monotonic() - started, 3)
    write_json_durably(folder / SCORES_FILE, {"benchmarks": scored, "samples": samples, "facts": facts})


def score_line(line: BenchmarkSpec, cases: list[Case], participants: JsonMapping, job: EvaluationJob) -> JsonObject:
    """Return one benchmark on one set: each participant's value per row, and the counts of rows left out."""
    score = benchmark(line.name).score
    if score is None:
        return score_answers(line, cases, participants, job)
    values = {role: score(model, cases) for role, model in participants.items()}
    rows = min(len(scores) for scores in values.values())
    cases = cases[:rows]
    indices = [index for index in range(rows) if all(scores[index] is not None for scores in values.values())]
    refused = count_refusals([cases[index] for index in range(rows) if index not in set(indices)], participants)
    if not indices:
        raise nothing_scored_error(line, rows, refused, participants["candidate"].context)
    for role, scores in values.items():
        refuse_non_finite(role, label(line), cases, scores)
    return {
        "name": line.name,
        "set": label(line).split("/", 1)[1],
        "gold": gold_of(line, job),
        "margin": line.margin,
        "relative_margin": line.relative_margin,
        "required": line.required,
        "ids": [cases[index].id for index in indices],
        "clusters": [cases[index].cluster or cases[index].id for index in indices],
        "values": {role: [scores[index] for index in indices] for role, scores in values.items()},
        "skipped": rows - len(indices),
        "refused": refused,
    }


def count_refusals(cases: Sequence[Case], participants: JsonMapping) -> dict[str, int]:
    """Words of the chat template -> rows that it refuses with them, the most frequent first."""
    messages = {
        case.id: model.refused[case.id] for case in cases for model in participants.values() if case.id in model.refused
    }
    return dict(Counter(messages.values()).most_common())


def nothing_scored_error(line: BenchmarkSpec, rows: int, refused: Mapping[str, int], context: int) -> TrainyardError:
    """Return the error of a benchmark that no row can be scored on."""
    long = rows - sum(refused.values())
    why = [f"{long} of {rows} rows do not fit {context} tokens of context."] if long else []
    why += [f"The chat template refuses {count} of {rows} rows: {message}" for message, count in refused.items()]
    return TrainyardError(
        f"No row of {label(line)} could be scored.",
        why=" ".join(why),
        do="Hold out shorter rows (max_tokens of the validator) that the chat template takes, or use another base.",
        code="E-DATA-EMPTY",
    )


def score_answers(
    line: BenchmarkSpec, cases: list[Case], participants: Mapping[str, HuggingFaceModel], job: EvaluationJob
) -> JsonObject:
    """Each participant's answers, which a judge scores outside of this child."""
    assert job.config.judge is not None, "a judged benchmark has a judge"
    tokens = job.config.judge.answer_tokens
    answers = {role: model.generate(cases, tokens) for role, model in participants.items()}
    indices = [index for index in range(len(cases)) if all(texts[index] is not None for texts in answers.values())]
    refused = count_refusals(cases, participants)
    if not indices:
        raise nothing_scored_error(line, len(cases), refused, participants["candidate"].context)
    return {
        "name": line.name,
        "set": label(line).split("/", 1)[1],
        "gold": gold_of(line, job),
        "margin": line.margin,
        "relative_margin": line.relative_margin,
        "required": line.required,
        "places": indices,
        "ids": [cases[index].id for index in indices],
        "clusters": [cases[index].cluster or cases[index].id for index in indices],
        "answers": {role: [texts[index] for index in indices] for role, texts in answers.items()},
        "skipped": len(cases) - len(indices),
        "refused": refused,
    }


def refuse_non_finite(role: str, name: str, cases: Sequence[Case], values: Sequence[Value]) -> None:
    """Refuse a value that is not a finite number: the model is broken, which an average would hide."""
    for case, value in zip(cases, values, strict=False):
        if value is not None and not math.isfinite(value):
            raise TrainyardError(
                f"The {role} gives {value} on {name}, row {case.id}.",
                why="Its weights contain NaN or infinite numbers, or its precision overflows.",
                do="Train again with a lower learning rate or in fp32; this adapter cannot be used.",
                code="E-NON-FINITE",
            )


def answer_samples(
    lines: list[tuple[BenchmarkSpec, list[Case]]], participants: dict[str, HuggingFaceModel], job: EvaluationJob
) -> list[dict[str, str]]:
    """Return a few prompts of every set in turn, answered by baseline and candidate (greedy)."""
    sets: dict[str, list[tuple[str, Case]]] = {}
    for line, cases in lines:
        name = label(line).partition("/")[2]
        if named := [(name, case) for case in cases if case.prompt]:
            sets.setdefault(name, named)
    turns = zip_longest(*sets.values())
    chosen = [item for turn in turns for item in turn if item is not None][: job.config.samples]
    prompts = [case for _, case in chosen]
    answers = {role: participants[role].generate(prompts, SAMPLE_TOKENS) for role in ("baseline", "candidate")}
    return [
        {
            "set": name,
            "prompt": case.question(),
            "gold": case.gold[0] if case.gold else "",
            "baseline": answers["baseline"][index] or "",
            "candidate": answers["candidate"][index] or "",
        }
        for index, (name, case) in enumerate(chosen)
    ]


def versions() -> dict[str, str]:
    return {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__}
