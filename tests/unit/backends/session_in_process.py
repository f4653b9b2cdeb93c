"""What a session computes when its verbs are called directly: the numbers as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.backends.session_host import ROWS
from trainyard.backends.native.assembly import set_determinism
from trainyard.backends.native.sessions.program import open_engine
from trainyard.backends.sessions.records import read_record
from trainyard.backends.sessions.running import session_job
from trainyard.compute.child import Events
from trainyard.data.rows import Message, SftRow
from trainyard.settings import load_settings
from trainyard.train.contracts import Sampling
from trainyard.train.session.session import Session


def open_here(home: Path, session_id: str, folder: Path) -> Session:
    settings = load_settings(home=home, threads=1)
    job = session_job(read_record(settings, session_id), settings).job
    set_determinism(job)
    folder.mkdir(parents=True, exist_ok=True)
    return open_engine(job, folder, Events(folder / "events.jsonl"), "cpu")[1]


def batch_here(session: Session) -> Any:
    engine = session.engine
    rows = [SftRow([Message(**message) for message in row["messages"]]) for row in ROWS]
    examples, _ = engine.stage.encode(rows, engine.tokenizer, engine.config)
    return engine.stage.collate(list(examples), int(engine.tokenizer.pad_token_id))


def main(home: str, session_id: str, steps: str, out: str) -> None:
    session = open_here(Path(home), session_id, Path(out).with_suffix(""))
    result: dict[str, Any] = {"losses": [], "grad_norms": []}
    for _ in range(int(steps)):
        forward = session.forward(batch_here(session))
        session.backward(forward.forward_id)
        moved = session.step()
        session.zero_grad()
        result["losses"].append(float(forward.loss))
        result["grad_norms"].append(float(moved.grad_norm))
    (generated,) = session.generate([[5, 6, 7]], Sampling(max_new_tokens=8, seed=3))
    result |= {"ids": generated.ids, "logprobs": generated.logprobs, "scored": session.logprobs([[5, 6, 7, 8]])}
    result["weights"] = session.save("last", kind="weights")["sha256"]
    Path(out).write_text(json.dumps(result))
