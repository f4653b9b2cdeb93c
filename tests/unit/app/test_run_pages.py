"""What a run's page in Prefect shows of its nodes."""

from __future__ import annotations

from flows.notes import cell
from trainyard.app.run_records import NodeResult, NodeState


def test_a_message_of_a_node_is_no_markup() -> None:
    message = "rows | 3 <img src=x> ![a](http://x) `b`\n# two"
    node = NodeResult(id="data", type="data_source", state=NodeState.FAILED, seconds=1.0, message=message)
    assert cell(node) == "rows \\| 3 &lt;img src=x> \\!\\[a](http://x) \\`b\\`<br># two"
