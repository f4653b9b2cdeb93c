"""The evaluation report: `report.json` for machines, `report.md` for people, from the same numbers.

Torch-free: it reads what the evaluating child scored and the trainers' `training.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.evals.benchmarks.table import Benchmark, benchmark
from trainyard.evals.gate import Measured, choose_primary, judge
from trainyard.evals.job import EvaluationJob, training_facts, version_name
from trainyard.evals.statistics import ConfidenceInterval, Flips, bootstrap, count_flips, improvements
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.latent import Latent
from trainyard.spec.estimate.verdict import describe_small_sets, explain_too_few_rows

Report = dict[str, Any]
LONGEST_SAMPLE = 300
"""Characters of a sample in the Markdown report; the JSON has all of it."""


def build_report(job: EvaluationJob, scores: JsonMapping) -> Report:
    """Statistics, gate and origin of one evaluation, as the JSON report.

    `scores` is the child's `scores.json`. Raises `InvalidInput` (`E-BENCHMARK`).
    """
    lines = [benchmark_entry(job, line) for line in scores["benchmarks"]]
    primary = choose_primary([line_label(line) for line in lines], job.config.primary)
    verdict = judge(
        [build_measured(line, control_of(job)) for line in lines], primary, job.config.confidence,
        few_rows=below_floor(job, lines, primary), live=live_name(job),
    )  # fmt: skip
    return {
        "primary": primary,
        "confidence": job.config.confidence,
        "resamples": job.config.resamples,
        "base_model": job.base_model,
        "baseline": job.baseline.name,
        "live": live_name(job) or None,
        "adapter_sha256": job.candidate_sha256,
        "benchmarks": lines,
        "gate": {**asdict(verdict), "cautions": cautions(job, lines, primary)},
        "notes": [*notes(lines, primary, control_of(job)), *missing_control(job), *filter(None, [job.live_note])],
        "samples": list(scores["samples"]),
        "training": training_summary(job),
        "facts": dict(scores["facts"]),
    }


def cautions(job: EvaluationJob, lines: Sequence[Mapping[str, object]], primary: str) -> list[str]:
    """Return what makes the verdict rest on little: few rows to train on, few rows in the primary benchmark."""
    return describe_small_sets(*counted_rows(job, lines, primary))


def below_floor(job: EvaluationJob, lines: Sequence[Mapping[str, object]], primary: str) -> list[str]:
    """Why there are not enough rows for a verdict, by `least_rows`; empty where there are."""
    return explain_too_few_rows(*counted_rows(job, lines, primary), least=job.config.least_rows)


def counted_rows(job: EvaluationJob, lines: Sequence[JsonMapping], primary: str) -> tuple[int | None, int]:
    """The rows that the candidate was trained on, None where nothing says it, and those of the primary benchmark."""
    trained = training_facts(Path(job.candidate.path)) if job.candidate.path else {}
    rows = ((trained.get("data") or {}).get("rows") or {}).get("trained")
    return rows, next(line["rows"] for line in lines if line_label(line) == primary)


def live_name(job: EvaluationJob) -> str:
    """`default/handbook/v1`, which the candidate has to be better than; empty without one."""
    return version_name(Path(job.live.path)) if job.live and job.live.path else ""


def benchmark_entry(job: EvaluationJob, scored: JsonMapping) -> Report:
    """Summarize one benchmark on one set: means, paired improvement with its interval, flips, and the control."""
    row = benchmark(scored["name"])
    values: Mapping[str, Sequence[float]] = scored["values"]
    improvement, flips = compare(job, row, values["baseline"], values["candidate"], scored["clusters"])
    control, live = values.get("control"), values.get("live")
    over_live = compare(job, row, live, values["candidate"], scored["clusters"])[0] if live else None
    against = compare(job, row, control, values["candidate"], scored["clusters"])[0] if control else None
    return {
        "name": scored["name"],
        "set": scored["set"],
        "metric": row.metric,
        "higher_is_better": row.higher_is_better,
        "rows": len(scored["ids"]),
        "skipped": scored["skipped"],
        "refused": dict(scored.get("refused") or {}),
        "gold": scored["gold"],
        "margin": max(scored["margin"], scored["relative_margin"] * abs(float(np.mean(values["baseline"])))),
        "required": scored.get("required"),
        "baseline": float(np.mean(values["baseline"])),
        "candidate": float(np.mean(values["candidate"])),
        "control": float(np.mean(control)) if control else None,
        "improvement": asdict(improvement),
        "flips": asdict(flips),
        "vs_control": asdict(against) if against else None,
        "live": float(np.mean(live)) if live else None,
        "vs_live": asdict(over_live) if over_live else None,
        **({"judge": scored["judge"]} if "judge" in scored else {}),
        "scores": {"ids": scored["ids"], "clusters": scored["clusters"], "candidate": values["candidate"]},
    }


def compare(
    job: EvaluationJob, row: Benchmark, before: Sequence[float], after: Sequence[float], clusters: Sequence[str]
) -> tuple[ConfidenceInterval, Flips]:
    improvement, config = improvements(before, after, higher_is_better=row.higher_is_better), job.config
    bounds = bootstrap(
        improvement, clusters, confidence=config.confidence, resamples=config.resamples, seed=config.seed
    )
    return bounds, count_flips(improvement)


def line_label(line: JsonMapping) -> str:
    return f"{line['name']}/{line['set']}"


def build_measured(line: JsonMapping, control: str | None) -> Measured:
    """Return the input of the gate for one line; only a control of shuffled answers takes part in the verdict."""
    intervals = {name: ConfidenceInterval(**line[name]) if line[name] else None for name in ("vs_live", "vs_control")}
    return Measured(
        line_label(line), line["metric"], ConfidenceInterval(**line["improvement"]), line["margin"],
        over_live=intervals["vs_live"],
        over_control=intervals["vs_control"] if (control or SHUFFLED) == SHUFFLED else None,
        shortfall=find_shortfall(line),
    )  # fmt: skip


def find_shortfall(line: JsonMapping) -> str:
    """Return how a candidate misses the mean that its benchmark requires; empty where it has it, or none is."""
    required, mean = line["required"], line["candidate"]
    if required is None or (mean >= required if line["higher_is_better"] else mean <= required):
        return ""
    bound = "at least" if line["higher_is_better"] else "at most"
    return f"{line_label(line)}: {mean:.4g} {line['metric']}; {bound} {required:.4g} is required."


SHUFFLED = "shuffled_answers"
"""The control that decides: a candidate that is not better than it has learned the format alone."""
LIKE_CONTROL = {
    "pauses": "the control, which had the same curriculum and pauses in place of thoughts. What it gained may come "
    "from the curriculum.",
}
"""Other kind of control -> what it means that a candidate is like it."""


def control_of(job: EvaluationJob) -> str | None:
    """Return the kind of the control; None without one."""
    control = job.control
    return training_facts(Path(control.path)).get("control") if control is not None and control.path else None


def missing_control(job: EvaluationJob) -> list[str]:
    """Return a note where thoughts that were trained with a curriculum have no control with the same one."""
    trained = training_facts(Path(job.candidate.path)) if job.candidate.path else {}
    latent = (trained.get("stage_settings") or {}).get("latent") or {}
    if latent.get("type") != Latent.COCONUT.value or not latent.get("feedback") or control_of(job) == "pauses":
        return []
    return [
        "The candidate was trained with technique coconut, and no control with the same curriculum was: what it "
        "gained may come from the curriculum and not from its thoughts. A second trainer with `control: pauses` "
        "shows it."
    ]


def notes(lines: Sequence[JsonMapping], primary: str, control: str | None) -> list[str]:
    """Return notes on the verdict: synthetic gold, skipped rows, a candidate that is like its control."""
    sentences = []
    synthetic = sorted({line["set"] for line in lines if line["gold"].startswith("synthetic")})
    if synthetic:
        sentences.append(
            f"The right answers of {', '.join(synthetic)} are synthetic: made by a program or a model, not by a person."
        )
    sentences += [note for line in lines if (note := skipped_note(line))]
    sentences += [judge_note(line) for line in lines if "judge" in line]
    for line in lines:
        against = line["vs_control"]
        if line_label(line) == primary and against and (against["low"] is None or against["low"] <= 0):
            like = LIKE_CONTROL.get(control or SHUFFLED)
            sentences += [f"{primary}: the candidate is not clearly better than {like}"] if like else []
    return sentences


def skipped_note(line: JsonMapping) -> str:
    """Return the rows of a line that were left out, with the chat template's words; empty if all were scored."""
    refused = line["refused"]
    count = sum(refused.values())
    long = 0 if "judge" in line else line["skipped"] - count
    parts = [f"{long} did not fit the context"] if long else []
    parts += [f"{rows} were refused by the chat template ({message})" for message, rows in refused.items()]
    return f"{line_label(line)}: {long + count} rows were left out: {'; '.join(parts)}." if parts else ""


def judge_note(line: JsonMapping) -> str:
    """Facts of the judge of a line: its bias, its failures, its agreement with labels, and what it took."""
    judge, sentences = line["judge"], []
    if bias := judge.get("position_bias"):
        sentences.append(f"its verdict changed with the order in {share_text(bias)} of {bias['pairs']} pairs")
    if agreed := judge.get("agreement"):
        kappa = agreed["kappa"]
        sentences.append(f"it agrees with {share_text(agreed['accuracy'])} of the labels, kappa {interval_text(kappa)}")
    failed = sum(judge["failed"].values())
    sentences.append(
        f"{failed} of {judge['calls']} calls failed" if failed else f"all {judge['calls']} calls were answered"
    )
    tokens = judge["prompt_tokens"] + judge["completion_tokens"]
    cost = "" if judge["cost_usd"] is None else f", {judge['cost_usd']:.4f} USD"
    unclear = line["skipped"] - sum(line["refused"].values())
    skipped = f" {unclear} rows without a consistent verdict are left out." if unclear else ""
    return f"{line_label(line)}: judged by {judge['model']}; {'; '.join(sentences)}; {tokens:,} tokens{cost}.{skipped}"


def share_text(interval: Mapping[str, object]) -> str:
    """`12.0% [4.0%, 20.0%]`."""
    bounds = "" if interval["low"] is None else f" [{interval['low']:.1%}, {interval['high']:.1%}]"
    return f"{interval['mean']:.1%}{bounds}"


def training_summary(job: EvaluationJob) -> dict[str, object]:
    """Return the trainers' records of candidate and control: token ledger, losses and how they were trained."""
    keys = (
        "stage",
        "method",
        "backend",
        "base_model",
        "tokens",
        "rows",
        "counted",
        "steps",
        "loss_at_start",
        "loss_at_end",
        "losses",
        "evaluation",
        "rollouts",
        "seconds",
    )
    participants = {"candidate": job.candidate, "control": job.control}
    training = {
        role: training_facts(Path(participant.path))
        for role, participant in participants.items()
        if participant and participant.path
    }
    return {role: {key: facts[key] for key in keys if key in facts} for role, facts in training.items() if facts}


def markdown(report: JsonMapping) -> str:
    """The report as a page: verdict first, then tables, samples, training and the origin of the right answers."""
    verdict = report["gate"]
    intro = (
        f"Candidate: adapter `{report['adapter_sha256'][:12] or 'unnamed'}` on `{report['base_model']}`. Baseline: "
        f"{report['baseline']}. Primary metric: `{report['primary']}`."
        + (f" Live: `{report['live']}`." if report["live"] else "")
    )
    reading = (
        f"Intervals: {report['confidence']:.0%}, bootstrap over independent cases, {report['resamples']} resamples. "
        "A positive improvement is better for every metric."
    )
    parts = ["# Evaluation report", verdict_text(verdict), bullets(verdict["reasons"] or verdict["passed"]), intro]
    parts += ["## Results", results_table(report), reading]
    if report["notes"]:
        parts += ["## Notes", bullets(report["notes"])]
    origins = {line["set"]: line["gold"] for line in report["benchmarks"]}
    parts += ["## Origin of the right answers", table(["set", "right answers from"], list(origins.items()))]
    if report["samples"]:
        keys = ("prompt", "gold", "baseline", "candidate")
        rows = [[cell(sample[key]) for key in keys] for sample in report["samples"]]
        parts += ["## Samples", table(["prompt", "right answer", "baseline", "candidate"], rows)]
    if report["training"]:
        parts += ["## Training", training_table(report["training"]), "![Training loss](curves.svg)"]
    return "\n\n".join(parts) + "\n"


def bullets(texts: Sequence[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def verdict_text(verdict: JsonMapping) -> str:
    if verdict.get("few_rows"):
        return "**Not enough rows to say.** The candidate is not deployed unless the deployer has `few_rows: allow`."
    if verdict["better"] and verdict.get("cautions"):
        return f"**Better, on few rows.** The candidate may replace its baseline. {' '.join(verdict['cautions'])}"
    if verdict["better"]:
        return "**Better.** The candidate may replace its baseline."
    count = len(verdict["reasons"])
    return f"**Not better**, for {count} reason{'s' if count != 1 else ''}. The candidate is not deployed."


def results_table(report: JsonMapping) -> str:
    has_control = any(line["control"] is not None for line in report["benchmarks"])
    has_live = any(line["live"] is not None for line in report["benchmarks"])
    head = ["benchmark", "rows", "baseline", "candidate", "improvement", "better / worse / equal"]
    head += ["control", "better than control by"] if has_control else []
    head += ["live", "better than live by"] if has_live else []
    rows = []
    for line in report["benchmarks"]:
        flips = line["flips"]
        row = [f"{line_label(line)} ({line['metric']})", str(line["rows"])]
        row += [f"{line['baseline']:.4f}", f"{line['candidate']:.4f}", interval_text(line["improvement"])]
        row.append(f"{flips['better']} / {flips['worse']} / {flips['equal']}")
        if has_control:
            against = line["vs_control"]
            row += [f"{line['control']:.4f}", interval_text(against)] if against else ["", ""]
        if has_live:
            row += [f"{line['live']:.4f}", interval_text(line["vs_live"])] if line["vs_live"] else ["", ""]
        rows.append(row)
    return table(head, rows)


def interval_text(interval: Mapping[str, object]) -> str:
    if interval["low"] is None:
        return f"{interval['mean']:+.4f} (one case: no interval)"
    return f"{interval['mean']:+.4f} [{interval['low']:+.4f}, {interval['high']:+.4f}]"


def cell(text: str) -> str:
    """Text that cannot break out of a Markdown table cell, nor be read as markup."""
    flat = " ".join(text.split())
    flat = flat if len(flat) <= LONGEST_SAMPLE else flat[:LONGEST_SAMPLE] + "…"
    for mark, harmless in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("`", "\\`"), ("[", "\\["), ("!", "\\!")):
        flat = flat.replace(mark, harmless)
    return flat or "(nothing)"


def training_table(training: Mapping[str, JsonMapping]) -> str:
    """Return the token ledger and the losses, one column per trained adapter."""
    keys = ["stage", "method", "backend", "steps", "loss_at_start", "loss_at_end", "seconds"]
    training = {
        name: {**facts, **read_training_evals(facts), **read_rollout_facts(facts)} for name, facts in training.items()
    }
    more = (*EVALUATED, *DRAWN.values())
    keys += [key for key in more if any(facts.get(key) is not None for facts in training.values())]
    ledger = list(dict.fromkeys(name for facts in training.values() for name in facts.get("tokens", {})))
    rows = [[key, *(number(facts.get(key)) for facts in training.values())] for key in keys]
    rows += [
        [f"tokens {name}", *(number(facts.get("tokens", {}).get(name)) for facts in training.values())]
        for name in ledger
    ]
    rows.append(["rows trained", *(number((facts.get("rows") or {}).get("trained")) for facts in training.values())])
    return table(["", *training], rows)


EVALUATED = ("best held-out loss", "best held-out reward", "at step", "weights of step")


def read_training_evals(facts: JsonMapping) -> JsonObject:
    """Return what a trainer measured on held-out rows while it trained; empty where it did not."""
    evaluation = facts.get("evaluation") or {}
    best = evaluation.get("best") or {}
    values = (best.get("loss"), best.get("reward"), best.get("step"), evaluation.get("result_step"))
    return dict(zip(EVALUATED, values, strict=True))


DRAWN = {
    ("at_start", "reward"): "reward at the start",
    ("at_end", "reward"): "reward at the end",
    ("at_end", "kl"): "nats a token from the start",
    ("at_end", "ended"): "share of completions that ended",
    ("at_end", "constant_groups"): "share of groups with one reward",
}
"""Path of a rollout metric -> its row in the table."""


def read_rollout_facts(facts: JsonMapping) -> JsonObject:
    """Return what a trainer has learned from the rewards of its completions; empty where it drew none."""
    rollouts = facts.get("rollouts") or {}
    return {row: rollouts[end].get(name) for (end, name), row in DRAWN.items() if end in rollouts}


def number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4f}".rstrip("0").rstrip(".")
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def headline(report: Report) -> dict[str, object]:
    """Return the few facts that travel with the reference: for the plan table, the demo and the deployer."""
    keys = ("baseline", "candidate", "control", "live", "improvement", "vs_control", "vs_live")
    sets = {line_label(line): {key: line[key] for key in keys} for line in report["benchmarks"]}
    return {
        "better": report["gate"]["better"],
        "primary": report["primary"],
        "reasons": report["gate"]["reasons"],
        "cautions": report["gate"]["cautions"],
        "few_rows": report["gate"]["few_rows"],
        "live": report["live"],
        "adapter_sha256": report["adapter_sha256"],
        "benchmarks": sets,
    }
