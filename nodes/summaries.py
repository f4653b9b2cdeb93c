"""One line for each finished node: the message of its state in Prefect, and its row in the run's report."""

from __future__ import annotations

from collections.abc import Callable

from trainyard.stores.artifacts import NodeOutput


def summary(node_type: str, output: NodeOutput) -> str:
    """What came out of a node, in words."""
    return ("reused: " if output.reused else "") + SUMMARIES.get(node_type, rows)(output)


def rows_of(output: NodeOutput) -> dict[str, int]:
    """Port -> rows, where a port has rows."""
    return {port.value: given.rows for port, given in output.outputs.items() if given.rows is not None}


def rows(output: NodeOutput) -> str:
    return ", ".join(f"{count:,} {port}" for port, count in rows_of(output).items()) or "done"


def training(output: NodeOutput) -> str:
    facts = output.facts
    port = next((port.value for port in output.outputs), "nothing")
    trained = (facts.get("tokens") or {}).get("trained", 0)
    losses = f", loss {facts['first_loss']:.3f} to {facts['final_loss']:.3f}" if facts.get("final_loss") else ""
    return f"{port} after {facts.get('steps', '?')} steps on {trained:,} tokens{losses}"


def evaluation(output: NodeOutput) -> str:
    facts = output.facts
    line = (facts.get("benchmarks") or {}).get(facts.get("primary"))
    figures = f" on {facts['primary']} ({line['baseline']:.3f} to {line['candidate']:.3f})" if line else ""
    return ("better than the baseline" if facts.get("better") else "not better than the baseline") + figures


def deployment(output: NodeOutput) -> str:
    return f"{output.facts.get('version', 'the adapter')} is live"


SUMMARIES: dict[str, Callable[[NodeOutput], str]] = {
    "trainer": training,
    "evaluator": evaluation,
    "deployer": deployment,
}
