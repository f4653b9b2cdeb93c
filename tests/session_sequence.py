"""Every verb of a session in one order: through a surface that is called, and directly in a process of its own.

python -m tests.session_sequence HOME SESSION OUT
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from tests.unit.backends.session_host import ROWS
from tests.unit.backends.session_in_process import batch_here, open_here
from trainyard.train.contracts import Sampling

VERBS = ("forward", "backward", "step", "zero_grad", "generate", "logprobs", "save", "load")
START = "start"
"""The state that every sequence begins with."""
TOKENS, RATE = [5, 6, 7, 8], 2e-3
PROMPT, DRAWN = [5, 6, 7], {"max_new_tokens": 8, "seed": 3}
Call = Callable[..., dict[str, Any]]


def tensors() -> dict[str, torch.Tensor]:
    """A batch as tensors."""
    ids = torch.tensor([TOKENS])
    return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}


def sequence_over(call: Call, read_output: Callable[[str], bytes], name: str) -> dict[str, Any]:
    """The numbers of a surface. `call(verb, **fields)` is a reply as JSON has it; `name` is that of a saved state."""
    call("load", name=START)
    forward = call("forward", rows=ROWS, outputs=["logits"])
    content = read_output(forward["outputs"][0]["name"])
    assert hashlib.sha256(content).hexdigest() == forward["outputs"][0]["sha256"]
    assert list(load(content)["logits"].shape) == forward["outputs"][0]["shape"]
    backward = call("backward", forward_id=forward["forward_id"], scale=0.5)
    step = call("step", learning_rate=RATE)
    assert call("zero_grad")["verb"] == "zero_grad"
    sent = call("forward", tensors=save(tensors()))
    second = call("backward", forward_id=sent["forward_id"])
    moved = call("step")
    call("zero_grad")
    (completion,) = call("generate", prompts=[{"tokens": PROMPT}], **DRAWN)["completions"]
    scored = call("logprobs", rows=[{"tokens": TOKENS}])["logprobs"]
    saved = call("save", name=name, kind="weights")
    loaded = call("load", name=name, optimizer=False)
    assert loaded["sha256"] == saved["sha256"]
    return {
        "losses": [forward["loss"], sent["loss"]],
        "units": [forward["units"], sent["units"]],
        "logits": hashlib.sha256(content).hexdigest(),
        "backwards": [
            [result["grad_norm"], result["accumulated"], result["overflow"]] for result in (backward, second)
        ],
        "steps": [
            [result[key] for key in ("global_step", "learning_rate", "grad_norm", "skipped")]
            for result in (step, moved)
        ],
        "drawn": [completion[key] for key in ("ids", "text", "logprobs", "logprobs_at_one", "stop_reason")],
        "logprobs": scored,
        "weights": saved["sha256"],
        "after": call("logprobs", rows=[{"tokens": TOKENS}])["logprobs"],
    }


def sequence_here(home: Path, session_id: str, out: Path) -> dict[str, Any]:
    """The same numbers by the verbs of a session in this process."""
    session = open_here(home, session_id, out.with_suffix(""))
    session.save(START)
    session.load(START)
    forward = session.forward(batch_here(session), outputs=["logits"])
    backward = session.backward(forward.forward_id, scale=0.5)
    step = session.step(learning_rate=RATE)
    session.zero_grad()
    sent = session.forward(tensors())
    second = session.backward(sent.forward_id)
    moved = session.step()
    session.zero_grad()
    (completion,) = session.generate([PROMPT], Sampling(**DRAWN))  # type: ignore[arg-type]
    scored = session.logprobs([TOKENS])
    saved = session.save("last", kind="weights")
    session.load("last", optimizer=False)
    return {
        "losses": [float(forward.loss), float(sent.loss)],
        "units": [forward.units, sent.units],
        "logits": forward.outputs["logits"]["sha256"],
        "backwards": [[result.grad_norm, result.accumulated, result.overflow] for result in (backward, second)],
        "steps": [
            [result.global_step, result.learning_rate, float(result.grad_norm), result.skipped]
            for result in (step, moved)
        ],
        "drawn": [
            completion.ids,
            completion.text,
            completion.logprobs,
            completion.logprobs_at_one,
            completion.stop_reason.value,
        ],
        "logprobs": scored,
        "weights": saved["sha256"],
        "after": session.logprobs([TOKENS]),
    }


if __name__ == "__main__":
    output_path = Path(sys.argv[3])
    output_path.write_text(json.dumps(sequence_here(Path(sys.argv[1]), sys.argv[2], output_path)))
