"""Summaries of finished nodes: the message of its state in Prefect, and its row in the run's report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainyard.app.run_records import format_closed_gate, is_closed_gate
from trainyard.backends.results import early_stop_text
from trainyard.stores.artifacts import NodeOutput


def summary(node_type: str, output: NodeOutput) -> str:
    """Return the result of a node in words."""
    if is_closed_gate(output.facts):
        return f"not deployed: {format_closed_gate(output.facts)}"
    return SUMMARIES[node_type](output)


def count_rows(output: NodeOutput) -> dict[str, int]:
    """Port -> rows, where a port has rows."""
    return {port.value: reference.rows for port, reference in output.outputs.items() if reference.rows is not None}


def balances(output: NodeOutput) -> str:
    """Return what each port kept of what was read, and where the rest is: `78 of 120 sft (20 held out, 22 too
    long)`.
    """
    lines = [
        balance(port.value, reference.rows, output.facts.get(port.value)) for port, reference in output.outputs.items()
    ]
    return "; ".join(lines) or "done"


def generation(output: NodeOutput) -> str:
    facts = {**output.facts, "read": output.facts.get("asked"), "dropped": output.facts.get("rejected")}
    line = "; ".join(balance(port, count, facts) for port, count in count_rows(output).items()) or "done"
    return line + best_answers(output.facts.get("candidates") or {})


def best_answers(facts: Mapping[str, Any]) -> str:
    """Return what a reward model has chosen: `; the best of 4 answers, mean reward 0.12 to 0.98`."""
    means = facts.get("mean_reward")
    if not means:
        return ""
    return f"; the best of {facts['best_of']} answers, mean reward {means['first']:.3f} to {means['best']:.3f}"


def balance(port: str, rows: int | None, facts: Mapping[str, Any] | None) -> str:
    facts = facts or {}
    rest = {"held_out": sum((facts.get("heldout") or {}).values()), **(facts.get("dropped") or {})}
    rest_text = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in rest.items() if count)
    noticed = [
        f"{match['found']:,} {kind.replace('_', ' ')} {DONE[match['action']]}"
        for kind, match in (facts.get("sensitive") or {}).items()
        if match["found"] and match["action"] in DONE
    ]
    line = f"{rows or 0:,} of {facts['read']:,} {port} ({rest_text})" if rest_text else f"{rows or 0:,} {port}"
    return ", ".join([line, *noticed]) + describe_held_out_documents(facts)


def describe_held_out_documents(facts: Mapping[str, Any]) -> str:
    """Return the names of documents that no row is trained of: `; held out whole: prices.md and 2 more documents`."""
    names = facts.get("unseen_names") or ()
    more = facts["documents"]["heldout"] - len(names) if names else 0
    rest = f" and {more:,} more {'document' if more == 1 else 'documents'}" if more > 0 else ""
    return f"; held out whole: {', '.join(names)}{rest}" if names else ""


DONE = {"count": "found", "mask": "masked"}
"""Action on sensitive data -> its word; quarantined rows are counted among the dropped ones."""


def training(output: NodeOutput) -> str:
    facts = output.facts
    port = next((port.value for port in output.outputs), "nothing")
    trained, rows = ((facts.get(name) or {}).get("trained", 0) for name in ("tokens", "rows"))
    planned = " (as planned)" if facts.get("counted") == "plan" else ""
    ends = facts.get("loss_at_start"), facts.get("loss_at_end")
    losses = f", loss {ends[0]:.3f} to {ends[1]:.3f}" if ends[0] is not None and ends[1] is not None else ""
    evaluated = early_stop_text(facts)
    evaluation = facts.get("evaluation") or {}
    best, metric = evaluation.get("best"), "reward" if "loss" not in (evaluation.get("best") or {}) else "loss"
    held_out = f", best held-out {metric} {best[metric]:.3f} at step {best['step']}" if best else ""
    losses += held_out + (f", {evaluated}" if evaluated else "")
    losses += describe_rollouts(facts.get("rollouts") or {}) + spent(facts.get("time") or {})
    lost = describe_lost_rows(facts.get("data") or {})
    diverged = "".join(f"; {divergence['text']}" for divergence in facts.get("divergence") or ())
    steps = facts.get("steps", "?")
    return f"{port} after {steps} steps on {trained:,} tokens of {rows:,} rows{planned}{losses}{lost}{diverged}"


LOST = {"dropped_template": "refused by the chat template", "dropped_truncated": "too long", "dropped_same": "equal"}
"""Reason of a ledger -> its words; the others are read as they are."""
MOST_REASONS = 2
"""Reasons of a template that a line names."""


def describe_lost_rows(data: Mapping[str, Any]) -> str:
    """Return the rows that were cut, and those that were not trained, by reason with the template's words."""
    rows = data.get("rows") or {}
    lost = {name: count for name, count in rows.items() if name.startswith("dropped_") and count}
    cut = rows.get("truncated") or 0
    cut_line = f"; {cut:,} of {rows.get('read', 0):,} rows cut at max_length" if cut else ""
    if not lost:
        return cut_line
    refusals = sorted((data.get("refused") or {}).items(), key=lambda item: -item[1]["rows"])[:MOST_REASONS]
    suffixes = {"dropped_template": f" ({'; '.join(text for text, _ in refusals)})"} if refusals else {}
    reasons = [
        f"{count:,} {LOST.get(name, name.removeprefix('dropped_').replace('_', ' '))}{suffixes.get(name, '')}"
        for name, count in lost.items()
    ]
    return f"{cut_line}; {sum(lost.values()):,} of {rows.get('read', 0):,} rows left out: {', '.join(reasons)}"


def describe_rollouts(rollouts: Mapping[str, Any]) -> str:
    """Return what completions were worth at the start and at the end, and how far the policy is from its start."""
    if not rollouts:
        return ""
    start, end = rollouts["at_start"], rollouts["at_end"]
    away = f", {end['kl']:.3f} nats a token from its start" if "kl" in end else ""
    return f", reward {start['reward']:.3f} to {end['reward']:.3f}{away}"


def spent(time: Mapping[str, Any]) -> str:
    """Return the seconds of a training next to those that a plan expected, with the error of the plan."""
    if "seconds" not in time:
        return ""
    expected = time.get("expected")
    error = f" (expected {expected:,.0f} s, {time['seconds'] / expected - 1:+.0%})" if expected else ""
    return f", in {time['seconds']:,.0f} s{error}"


def evaluation(output: NodeOutput) -> str:
    facts = output.facts
    line = (facts.get("benchmarks") or {}).get(facts.get("primary"))
    metrics = f" on {facts['primary']} ({line['baseline']:.3f} to {line['candidate']:.3f})" if line else ""
    if few := facts.get("few_rows"):
        return f"not enough rows to say{metrics}: {' '.join(few).removesuffix('.')}"
    if facts.get("better"):
        cautions = " ".join(facts.get("cautions") or ()).removesuffix(".")
        return f"better than the baseline{metrics}" + (f", on few rows: {cautions}" if cautions else "")
    failed = [str(reason).partition(": ")[0] for reason in facts.get("reasons") or ()]
    return f"not better than the baseline{metrics}" + (f": {', '.join(failed)} failed" if failed else "")


def deployment(output: NodeOutput) -> str:
    parts = [target["merged"] for target in output.facts.get("targets") or () if target.get("merged")]
    merged = [
        f"; merged as {model['format']}, largest difference of a logit {model['divergence']:.3g}" for model in parts
    ]
    if message := output.facts.get("kept"):
        promote = f"trainyard adapters promote {output.facts['version']}"
        return f"{message}; to make it live: {promote}"
    return f"{output.facts.get('version', 'the adapter')} is live{''.join(dict.fromkeys(merged))}"


SUMMARIES: dict[str, Callable[[NodeOutput], str]] = {
    "data_source": balances,
    "ai_generator": generation,
    "validator": balances,
    "trainer": training,
    "evaluator": evaluation,
    "deployer": deployment,
}
