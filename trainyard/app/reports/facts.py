"""Facts of a report, from what the run has left: its chain, events, results, evaluations and entries of the ledger.

Digests, counts, numbers, and the names that people gave; no row and no answer, except the samples of an evaluation
where they are requested. Messages of failed nodes are left out: they may quote a row.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trainyard.app import run_folders
from trainyard.app.artifacts.evaluations import EvaluatedBenchmark, Evaluation, show_evaluation
from trainyard.app.artifacts.ledger import list_rows, open_ledger
from trainyard.app.artifacts.lineage import build_lineage
from trainyard.app.artifacts.lineage_drawing import draw_lineage
from trainyard.app.context import Context
from trainyard.app.data.row_counts import list_balances
from trainyard.app.jobs.provenance import TrainingOrigin, list_trainings
from trainyard.app.reports.drawing import place_intervals, plot_losses
from trainyard.app.run_folders import FoundArtifact, RunFolder
from trainyard.app.run_records import RunResult, data_sources, read_events, read_result
from trainyard.app.training_logs import find_training_logs
from trainyard.errors import NotFound
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.operations.artifacts import EvaluationInput, format_time
from trainyard.spec.axes.data import Port
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.jobs import NoteStore
from trainyard.stores.ledger.log import Head
from trainyard.stores.ledger.merkle import hash_leaf
from trainyard.stores.ledger.proofs import format_inclusion
from trainyard.stores.ledger.recording import TRAINED
from trainyard.stores.spending import SpendingStore

SHORT = 12
JOULES_PER_KWH = 3_600_000
MOST_NODES = 16
"""Nodes of the picture of a lineage, which has a page's height; `trainyard lineage` draws more."""
VERDICTS = {True: "better", False: "not better", None: "not evaluated"}


SETS = {
    "unseen_wording": "Unseen wording: questions about documents that were trained on, in words that were not.",
    "unseen_documents": "Unseen documents: they took no part in the training.",
    "heldout": "Held out: rows that took no part in the training.",
    "general": "General: text that has nothing to do with the data.",
}
"""Set of an evaluation -> what a reader has to know of it."""


@dataclass(frozen=True)
class RunFiles:
    """A run as its files are."""

    run: RunFolder
    result: RunResult | None
    artifacts: tuple[FoundArtifact, ...]
    entries: tuple[JsonObject, ...]
    """Of the ledger, in its order."""
    context: Context


def read_run(run: RunFolder, context: Context) -> RunFiles:
    try:
        rows = list_rows(open_ledger(context), context.caller.tenant)
    except NotFound:  # this home has no ledger, which the report says
        rows = {}
    entries = [entry for entry in rows.values() if entry.get("run") == run.id]
    versions = {str(entry.get("version")) for entry in entries if entry.get("version")}
    entries += [entry for entry in rows.values() if not entry.get("run") and str(entry.get("version")) in versions]
    store = run_folders.open_store(context)
    return RunFiles(run, read_result(run.path), tuple(run_folders.find_artifacts(run, store)), tuple(entries), context)


def gather(files: RunFiles, samples: int) -> JsonObject:
    """Return the facts of a report as the template reads them."""
    evaluations = list(list_evaluations(files))
    trainings = list(describe_trainings(files))
    sources = data_sources(files.run.path, files.context.settings.artifacts)
    deployment = describe_deployment(files)
    cost = describe_cost(files)
    return {
        "run": describe_run(files),
        "answers": [
            {"question": "What data?", **answer_data(sources, files)},
            {"question": "Which tokens?", **answer_tokens(trainings)},
            {"question": "What did it replace?", **answer_replaced(deployment)},
            {"question": "How much better, how certain?", **answer_better(evaluations)},
            {"question": "At what cost?", **answer_cost(cost, trainings)},
        ],
        "sources": sources,
        "balances": list(list_balances(files.run.path)),
        "trainings": trainings,
        "evaluations": evaluations,
        "samples": list_samples(evaluations, samples),
        "recorded_samples": sum(len(item["evaluation"].samples) for item in evaluations),
        "deployment": deployment,
        "cost": cost,
        "versions": sorted({pair for item in trainings for pair in item["origin"].versions.items()}),
        "lineage": draw_run(files),
        "proof": describe_proof(files),
    }


def describe_run(files: RunFiles) -> JsonObject:
    run, result = files.run, files.result
    note = NoteStore(files.context.settings.notes).read(run.id)
    times = [float(event["time"]) for event in read_events(run.path)]
    entry = next((entry for entry in files.entries if entry["kind"] == TRAINED), {})
    return {
        "id": run.id,
        "name": result.name if result else "",
        "chain": run.name,
        "digest": str(run.chain.get("digest") or ""),
        "tenant": run.tenant,
        "theme": str(run.chain.get("theme") or ""),
        "tags": [str(tag) for tag in run.chain.get("tags") or ()],
        "note": note.text if note else "",
        "state": result.state_text if result else "not ended",
        "began": format_time(times[0]) if times else "",
        "ended": format_time(times[-1]) if times and result else "",
        "sender": str(entry.get("sender_address") or ""),
        "nodes": [(str(node["id"]), str(node["type"])) for node in run.chain.get("nodes") or ()],
    }


# Data


def answer_data(sources: Sequence[JsonMapping], files: RunFiles) -> JsonObject:
    if not sources:
        return {"answer": "No source is recorded.", "detail": ""}
    names = [
        f"{source['source']} ({source['rows'] or 0:,} rows, {source['format'] or 'documents'})" for source in sources
    ]
    licences = sorted({str(source["license"] or "licence not stated") for source in sources})
    trained_sets = [item for entry in files.entries if entry["kind"] == TRAINED for item in entry.get("data") or ()]
    digests = ", ".join(dict.fromkeys(f"{item['port']} {str(item['sha256'])[:SHORT]}…" for item in trained_sets))
    trained = [balance for balance in list_balances(files.run.path) if balance["node"] == last_data_node(files)]
    kept = "; ".join(
        f"{balance['kept'] or 0:,} {balance['port']} rows kept for training"
        + (f", {sum(balance['held_out'].values()):,} held out" if balance["held_out"] else "")
        + (f", {sum(balance['dropped'].values()):,} dropped" if balance["dropped"] else "")
        for balance in trained
    )
    parts = [kept, *list_generators(files), f"SHA-256 of the rows trained on: {digests}" if digests else ""]
    return {"answer": "; ".join([*names, *licences]), "detail": ". ".join(filter(None, parts))}


def list_generators(files: RunFiles) -> list[str]:
    """Return how each generator of the run made its rows."""
    nodes = [node for node in files.run.chain.get("nodes") or () if node["type"] == "ai_generator"]
    return [f"{node['id']} made rows of the template {describe_generator(node['config'])}" for node in nodes]


def describe_generator(config: JsonMapping) -> str:
    model = config.get("model")
    how = f"by the model {model}" if model else "from the text by rule, without a model"
    return f"{config.get('template', 'qa')} {how}"


def last_data_node(files: RunFiles) -> str:
    """Return the last node that made rows, whose counts are what was trained on."""
    types = dict(describe_run(files)["nodes"])
    made = [event["node"] for event in read_events(files.run.path) if event["event"] in ("finished", "reused")]
    rows = [node for node in made if types.get(node) in ("data_source", "ai_generator", "validator")]
    return rows[-1] if rows else ""


# Trainings


def describe_trainings(files: RunFiles) -> Iterator[JsonObject]:
    """Yield each trainer with its curve, its counts and its entry of the ledger."""
    logs = {log.node: log for log in find_training_logs(files.run.path)}
    for origin in list_trainings(files.artifacts, list(logs.values()), files.context):
        points = logs[origin.node].curve() if origin.node in logs else []
        curves = {
            "loss": [(point.step, point.loss) for point in points if point.loss is not None],
            "held-out loss": [(point.step, point.eval_loss) for point in points if point.eval_loss is not None],
        }
        entry = find_entry(files, origin.node)
        yield {"origin": origin, "plot": plot_losses(curves), "entry": entry, "rows": list_settings(origin, entry)}


def find_entry(files: RunFiles, node: str) -> JsonObject:
    trained = [row for row in files.entries if row["kind"] == TRAINED and row.get("node") == node]
    return trained[-1] if trained else {}


def list_settings(origin: TrainingOrigin, entry: JsonMapping) -> list[tuple[str, str]]:
    """Return what a reader asks about a training, in the order in which it is asked."""
    words, model, numbers = origin.words, entry.get("model_trained") or {}, entry.get("model_parameters") or {}
    device = entry.get("gpu_used") or {}
    parameters = model.get("parameters")
    rows = [
        ("objective and method", " ".join(filter(None, (words.get("stage"), words.get("method"))))),
        ("base model", f"{model.get('name') or words.get('base_model', '')}"),
        ("parameters of the base", f"{parameters:,}" if isinstance(parameters, int) else ""),
        ("SHA-256 of the base", words.get("base_sha256", "")),
        ("steps", number_text(entry.get("steps"))),
        ("learning rate, schedule", f"{number_text(numbers.get('learning_rate'))} {numbers.get('schedule') or ''}"),
        ("epochs", number_text(numbers.get("epochs"))),
        ("rows of a step", count_step_rows(numbers)),
        ("rank", number_text(numbers.get("rank"))),
        ("optimizer, weight decay", f"{numbers.get('optimizer') or ''} {number_text(numbers.get('weight_decay'))}"),
        ("warm-up (share of the steps)", number_text(numbers.get("warmup_ratio"))),
        ("longest row (tokens)", number_text(numbers.get("max_length"))),
        ("seed", "" if origin.seed is None else str(origin.seed)),
        ("precision", words.get("precision", "")),
        ("device", " ".join(filter(None, (str(device.get("kind", "")), str(device.get("name", "")))))),
        ("backend", words.get("backend", "")),
        ("chat template (SHA-256)", words.get("chat_template_sha256", "")),
        ("weights (SHA-256)", str(entry.get("weights_sha256") or "")),
    ]
    return [(name, value.strip()) for name, value in rows if value.strip()]


def count_step_rows(numbers: JsonMapping) -> str:
    size, times = numbers.get("batch_size"), numbers.get("gradient_accumulation")
    return (
        f"batch {size} × accumulation {times} = {size * times}"
        if isinstance(size, int) and isinstance(times, int)
        else ""
    )


def number_text(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def answer_tokens(trainings: Sequence[JsonMapping]) -> JsonObject:
    lines, details = [], []
    for training in trainings:
        tokens, node = training["origin"].tokens, training["origin"].node
        read, total = tokens.get("read"), (training["entry"].get("tokens") or {}).get("trained")
        if not read:
            continue
        epochs = (training["entry"].get("model_parameters") or {}).get("epochs")
        passes = f"each of {number_text(epochs)} passes" if epochs else "each pass"
        lines.append(f"{node} learns from {tokens.get('trained', 0):,} of {read:,} tokens in {passes}")
        rest = ", ".join(f"{tokens.get(name, 0):,} {name}" for name in ("truncated", "dropped"))
        steps = f"; {total:,} were trained in all steps" if isinstance(total, int) else ""
        details.append(f"{node}: {tokens.get('masked', 0):,} are prompts (masked, no loss), {rest}{steps}")
    return {"answer": "; ".join(lines) or "Nothing was trained.", "detail": ". ".join(details)}


# Evaluation


def list_evaluations(files: RunFiles) -> Iterator[JsonObject]:
    for artifact in files.artifacts:
        if artifact.port is not Port.REPORT or artifact.reference is None:
            continue
        report = show_evaluation(EvaluationInput(run=files.run.id, node=artifact.node), files.context)
        shown = [line for line in report.benchmarks if line.improvement.mean is not None]
        bars = place_intervals([bounds(line) for line in shown])
        names = map(name_metric, shown)
        sets = [SETS[name] for name in dict.fromkeys(line.set for line in shown) if name in SETS]
        yield {"evaluation": report, "lines": list(zip(shown, names, bars, strict=True)), "sets": sets}


def bounds(line: EvaluatedBenchmark) -> tuple[float, float, float]:
    interval = line.improvement
    mean = interval.mean or 0.0
    return mean, mean if interval.low is None else interval.low, mean if interval.high is None else interval.high


def answer_better(evaluations: Sequence[JsonMapping]) -> JsonObject:
    if not evaluations:
        return {"answer": "It was not evaluated: nothing is known about it being better.", "detail": ""}
    report: Evaluation = evaluations[-1]["evaluation"]
    verdict = "not enough rows to say" if report.gate.few_rows else VERDICTS[report.gate.better]
    line = next((line for line in report.benchmarks if f"{line.name}/{line.set}" == report.gate.primary), None)
    if line is None or line.baseline is None or line.candidate is None:
        return {"answer": f"{verdict.capitalize()} than {report.baseline}.", "detail": "; ".join(report.gate.reasons)}
    mean, low, high = bounds(line)
    answer = (
        f"{verdict.capitalize()}, compared with {report.baseline}: {name_metric(line)} {line.baseline:.3g} → "
        f"{line.candidate:.3g}, improvement {mean:+.3g} [{low:+.3g}, {high:+.3g}]"
    )
    cases = f"{line.improvement.cases} cases of {line.set.replace('_', ' ')}"
    meaning = "it is above 0, so it is an improvement there" if low > 0 else "it is not above 0, so it may be chance"
    detail = f"The {report.confidence:.0%} interval is over {cases}; {meaning}."
    losses = list_losses(report.benchmarks, line)
    return {"answer": "; ".join([answer, *losses]), "detail": " ".join([detail, SETS.get(line.set, "")]).strip()}


def list_losses(lines: Iterable[EvaluatedBenchmark], primary: EvaluatedBenchmark) -> list[str]:
    """Return where the weights became worse with certainty; a verdict by one metric would hide it."""
    return [
        f"worse at {name_benchmark(line)} of {line.set.replace('_', ' ')}: {line.baseline:.3g} → {line.candidate:.3g}"
        for line in lines
        if line is not primary and line.baseline is not None and line.candidate is not None
        and line.improvement.high is not None and line.improvement.high < 0
    ]  # fmt: skip


def name_benchmark(line: EvaluatedBenchmark) -> str:
    return line.name.replace("heldout", "held-out").replace("_", " ")


def name_metric(line: EvaluatedBenchmark) -> str:
    """Return `held-out loss (lower is better)`."""
    return f"{name_benchmark(line)} ({'higher' if line.higher_is_better else 'lower'} is better)"


def list_samples(evaluations: Sequence[JsonMapping], most: int) -> list[JsonMapping]:
    samples = [sample.model_dump() for item in evaluations for sample in item["evaluation"].samples]
    return samples[:most]


# Deployment, cost


def describe_deployment(files: RunFiles) -> JsonObject:
    """Return what was registered and made live, what it replaced, and what is live now."""
    nodes = files.result.nodes if files.result else ()
    deployer = next((node for node in reversed(nodes) if node.type == "deployer"), None)
    if deployer is None:
        return {}
    facts = deployer.facts
    fields: JsonObject = {
        "deployed": facts.get("deployed") is True, "version": str(facts.get("version") or ""),
        "previous": str(facts.get("previous") or ""),
        "verdict": str(facts.get("verdict") or ""), "reasons": [str(reason) for reason in facts.get("reasons") or ()],
        "targets": [str(target.get("type")) for target in facts.get("targets") or ()],
        "warnings": [str(warning) for warning in facts.get("warnings") or ()],
    }  # fmt: skip
    if fields["version"]:
        registry = AdapterRegistry(files.context.settings.adapters)
        tenant, role, number = fields["version"].split("/")
        live = registry.live(tenant, role).version
        fields |= {"live": live is not None and f"v{live}" == number, "live_now": f"v{live}" if live else "nothing"}
    return fields


def answer_replaced(deployment: JsonMapping) -> JsonObject:
    if not deployment:
        return {"answer": "Nothing: the run has no deployer, and no version was made live.", "detail": ""}
    if not deployment["deployed"]:
        detail = "; ".join(deployment["reasons"])
        return {
            "answer": f"Nothing: not deployed ({deployment['verdict'] or 'the run did not get there'}).",
            "detail": detail,
        }
    before = deployment["previous"] or "nothing; the role had no live version"
    now = "It is live now." if deployment.get("live") else f"Since then {deployment.get('live_now')} is live."
    detail = " ".join([now, *deployment["warnings"]])
    return {"answer": f"{deployment['version']} replaced {before}.", "detail": detail}


def describe_cost(files: RunFiles) -> JsonObject:
    trained = [entry for entry in files.entries if entry["kind"] == TRAINED and not entry.get("reused")]
    spent = SpendingStore(files.context.settings.spending).find_cost(files.run.id)
    joules = [float(entry["energy_j"]) for entry in trained if entry.get("energy_j")]
    flops = [int(entry["flops"]) for entry in trained if entry.get("flops")]
    price: JsonMapping = next((entry["gpu_price_per_hour"] for entry in trained), {})
    measured = sum(joules) / JOULES_PER_KWH if joules else None
    return {
        "text": spent.text if spent else "",
        "energy_kwh": spent.energy_kwh if spent and spent.energy_kwh else measured,
        "flops": sum(flops) if flops else None,
        "seconds": files.result.seconds if files.result else None,
        "training_s": sum(float(entry.get("time_training_s") or 0) for entry in trained),
        "price": price, "provider": next((str(entry.get("gpu_provider")) for entry in trained), ""),
    }  # fmt: skip


def answer_cost(cost: JsonMapping, trainings: Sequence[JsonMapping]) -> JsonObject:
    devices = [text for training in trainings for name, text in training["rows"] if name == "device"]
    time_text = f"{cost['training_s']:,.1f} s of training" if cost["training_s"] else "no training time is recorded"
    energy = f"{cost['energy_kwh']:.3f} kWh" if cost["energy_kwh"] else "energy not measured on this device"
    answer = f"{cost['text'] or 'No price is set on this machine'}; {time_text}; {energy}"
    whole = f"{cost['seconds']:,.0f} s for the whole run" if cost["seconds"] else ""
    return {"answer": answer, "detail": ", ".join(filter(None, [*dict.fromkeys(devices), whole]))}


# The ledger


def draw_run(files: RunFiles) -> str:
    """Return the lineage of the run's last weights as the address of a picture; empty where it trained none."""
    outputs = [entry.get("outputs") or {} for entry in files.entries if entry["kind"] == TRAINED]
    digests = [str(output["sha256"]) for made in outputs for output in made.values() if output.get("sha256")]
    if not digests:
        return ""
    picture = draw_lineage(build_lineage(digests[-1], files.context), MOST_NODES)
    return f"data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()}"


def describe_proof(files: RunFiles) -> JsonObject:
    """Return the inclusion proof of the run's last training, else of its last step; {} without a ledger."""
    if not files.entries:
        return {}
    trained = [entry for entry in files.entries if entry["kind"] == TRAINED]
    entry = (trained or files.entries)[-1]
    ledger = open_ledger(files.context)
    head = ledger.head()
    return {
        "entry": entry["seq"], "entries": list_entries(files.entries, head), "size": head.size,
        "origin": head.checkpoint.origin, "root": head.checkpoint.root.hex(),
        "key": ledger.current_key(head).vkey, "text": format_inclusion(head, int(entry["seq"])),
        "trained": bool(trained), "reproducible": bool(entry.get("recipe_sha256")),
    }  # fmt: skip


def list_entries(entries: Sequence[JsonMapping], head: Head) -> list[JsonObject]:
    """Return the entries of the run with their leaf hashes, by which each inclusion proof is checked."""
    rows = sorted(entries, key=lambda row: int(row["seq"]))
    return [
        {
            "seq": row["seq"], "kind": row["kind"], "subject": str(row.get("node") or row.get("version") or ""),
            "leaf": hash_leaf(head.tiles.entry(int(row["seq"]))).hex(),
            "proof": format_inclusion(head, int(row["seq"])),
        }
        for row in rows
    ]  # fmt: skip
