"""Fine-tune a chat model through a step session: the loop is here, the model on the machine of `trainyard up`.

    python examples/sft_session.py ROWS.jsonl [MODEL]

A line of ROWS.jsonl is {"messages": [{"role": ..., "content": ...}, ...]}; MODEL is a folder or a name, by default the
one of the settings. The session renders the rows and computes what a training on the same rows computes; this program
decides what comes next. `trainyard.here` is this machine.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard import here

STEPS, ROWS_PER_STEP = 20, 8
QUESTION = "What did you learn?"


def train(surface: Any, session: str, rows: Sequence[dict[str, Any]], steps: int = STEPS) -> list[float]:
    """Train on the assistant's turns; the loss of each step, a mean over its labelled tokens."""
    sessions, losses = surface.sessions, []
    for step in range(steps):
        batch = random.Random(step).sample(rows, min(ROWS_PER_STEP, len(rows)))
        found = sessions.forward(session=session, rows=batch)
        sessions.backward(session=session, forward_id=found.forward_id)
        moved = sessions.step(session=session)
        sessions.zero_grad(session=session)
        losses.append(found.loss)
        print(f"step {moved.global_step}  loss {found.loss:.4f}  gradient {moved.grad_norm:.3f}", flush=True)
    return losses


def main(rows_file: str, model: str | None = None) -> None:
    rows = [json.loads(line) for line in Path(rows_file).read_text(encoding="utf-8").splitlines() if line.strip()]
    settings = {"stage": "sft", "method": "lora", **({"base_model": model} if model else {})}
    session = here.sessions.create(parameters=settings, wait=True).id
    try:
        train(here, session, rows)
        print(here.sessions.generate(session=session, prompts=[QUESTION], temperature=0).completions[0].text)
        print(here.sessions.save(session=session, name="adapter", kind="result").path)
    finally:
        here.sessions.close(session=session)  # with a checkpoint: `trainyard sessions resume` continues it


if __name__ == "__main__":
    main(*sys.argv[1:3])
