"""What a running job does now, in a word: reading, generating, starting, training, evaluating …"""

from __future__ import annotations

from pathlib import Path

import orjson

from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.tail import read_end

WORDS = {
    "data_source": "reading", "ai_generator": "generating", "validator": "validating", "trainer": "training",
    "evaluator": "evaluating", "deployer": "deploying",
}  # fmt: skip
STARTING = "starting"
TAIL_BYTES = 16_384
"""What is read of the end of a run's events: some seconds of them."""
ACTIVE = ("started", "progress", "note", "warning")


def read_activity(folder: Path, types: dict[str, str]) -> str:
    """Return what the node that reported last does; empty where none is active. `types`: node -> its type."""
    for event in reversed(last_events(folder / EVENTS_FILE)):
        word = WORDS.get(types.get(str(event.get("node")), ""))
        if word is None:
            continue
        if event["event"] not in ACTIVE:
            return ""
        is_starting = word == WORDS["trainer"] and (event["event"] == "started" or event.get("text") == STARTING)
        return STARTING if is_starting else word
    return ""


def last_events(path: Path) -> list[dict[str, object]]:
    """Return the whole lines at the end of a file of events."""
    data, is_whole = read_end(path, TAIL_BYTES)
    lines = data.split(b"\n")[0 if is_whole else 1 : -1]
    return [orjson.loads(line) for line in lines if line]
