"""The eight verbs of a session as calls: what a caller sends -> what `Session` takes -> a reply in JSON.

A verb is a function (side, given, body) -> reply. What it raises is the reply, and the session stays open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainyard.backends.native.sessions.batches import Encoder
from trainyard.backends.sessions.records import SAVED_FOLDER
from trainyard.errors import Conflict, InvalidInput
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.stores.whole import write_folder
from trainyard.train.checkpoint.state import read_digest, require_name
from trainyard.train.contracts import Sampling
from trainyard.train.session.session import Session

MOST_SAMPLES = 512
KEPT_OUTPUTS = 64
"""Files of logits and hidden states, the newest."""
Export = Callable[[Path], None]


@dataclass
class SessionSide:
    """The session, and what its verbs need next to it."""

    session: Session
    export: Export
    """Writes the trained adapter or model as other programs read it."""
    encoder: Encoder = field(init=False)

    def __post_init__(self) -> None:
        self.encoder = Encoder(self.session)

    @property
    def outputs(self) -> Path:
        return self.session.folder / "outputs"


Verb = Callable[[SessionSide, Mapping[str, Any], bytes], dict[str, Any]]


def forward(side: SessionSide, arguments: JsonMapping, body: bytes) -> JsonObject:
    batch = side.encoder.batch(arguments, body)
    outputs = tuple(arguments.get("outputs") or ())
    try:
        result = side.session.forward(batch, normalizer=arguments.get("normalizer"), outputs=outputs)
    except KeyError as error:
        raise InvalidInput(
            f"A batch of stage {side.session.engine.config.stage} needs {error}.",
            do="Give rows: the stage makes all of their tensors.", code="E-STEP",
        ) from error  # fmt: skip
    if result.outputs:
        trim_outputs(side.outputs)
    return {
        "forward_id": result.forward_id,
        "loss": finite(float(result.loss)),
        "units": result.units,
        "metrics": {name: finite(float(value)) for name, value in result.metrics.items()},
        "outputs": [
            {"name": Path(output["file"]).stem, "shape": output["shape"], "sha256": output["sha256"]}
            for output in result.outputs.values()
        ],
    }


def backward(side: SessionSide, arguments: JsonMapping, _: bytes) -> JsonObject:
    result = side.session.backward(
        arguments["forward_id"], scale=arguments.get("scale", 1.0), measure=arguments.get("measure", True)
    )
    norm = None if result.grad_norm is None else finite(result.grad_norm)
    return {"accumulated": result.accumulated, "grad_norm": norm, "overflow": result.overflow}


def step(side: SessionSide, arguments: JsonMapping, _: bytes) -> JsonObject:
    names = ("max_grad_norm", "learning_rate", "metric")
    result = side.session.step(**{name: arguments.get(name) for name in names})
    return {
        "skipped": result.skipped,
        "global_step": result.global_step,
        "learning_rate": result.learning_rate,
        "grad_norm": finite(float(result.grad_norm)),
    }


def zero_grad(side: SessionSide, _arguments: Mapping[str, object], _: bytes) -> dict[str, object]:
    side.session.zero_grad()
    return {}


def generate(side: SessionSide, arguments: JsonMapping, _: bytes) -> JsonObject:
    """Return each prompt `samples` times, next to each other; all are drawn together by one generator."""
    samples = int(arguments.get("samples") or 1)
    prompts = side.encoder.prompts(arguments["prompts"], ask=True)
    if len(prompts) * samples > MOST_SAMPLES:
        raise InvalidInput(
            f"{len(prompts)} prompts with {samples} samples each are {len(prompts) * samples} completions.",
            do=f"Draw at most {MOST_SAMPLES} in a call.", code="E-SAMPLING",
        )  # fmt: skip
    sampling = arguments.get("sampling") or {}
    stop = {"stop_ids": tuple(sampling["stop_ids"])} if sampling.get("stop_ids") is not None else {}
    repeated = [prompt for prompt in prompts for _ in range(samples)]
    completions = side.session.generate(repeated, Sampling(**{**sampling, **stop}))
    return {
        "completions": [
            {
                **asdict(completion),
                "stop_reason": completion.stop_reason.value,
                "prompt": at // samples,
                "prompt_ids": repeated[at],
            }
            for at, completion in enumerate(completions)
        ]
    }


def logprobs(side: SessionSide, arguments: JsonMapping, _: bytes) -> JsonObject:
    rows = side.encoder.prompts(arguments["rows"], ask=False)
    return {"ids": rows, "logprobs": side.session.logprobs(rows)}


def save(side: SessionSide, arguments: JsonMapping, _: bytes) -> JsonObject:
    if arguments.get("kind") == "result":
        return save_result(side, arguments["name"])
    record = side.session.save(arguments["name"], kind=arguments.get("kind", "full"))
    return {name: record[name] for name in ("name", "kind", "sha256")}


def save_result(side: SessionSide, name: str) -> JsonObject:
    """Write the adapter or the model as other programs read it; not encrypted, since they have no key."""
    require_name(name)
    target = side.session.folder / SAVED_FOLDER / name
    if target.exists():
        raise Conflict(f"A state named {name!r} is there already.", do="Choose another name.", code="E-FILE-EXISTS")
    write_folder(target, side.export)
    return {"name": name, "kind": "result", "sha256": read_digest(target), "path": str(target)}


def load(side: SessionSide, arguments: JsonMapping, _: bytes) -> JsonObject:
    record = side.session.load(arguments["name"], optimizer=arguments.get("optimizer", True))
    return {name: record[name] for name in ("name", "sha256")}


VERBS: dict[str, Verb] = {
    "forward": forward,
    "backward": backward,
    "step": step,
    "zero_grad": zero_grad,
    "generate": generate,
    "logprobs": logprobs,
    "save": save,
    "load": load,
}
LOOKING = frozenset({"generate", "logprobs", "save"})
"""Verbs that change nothing that a checkpoint contains."""


def finite(value: float) -> float | None:
    """Return the number, or None where JSON has no name for it."""
    return value if math.isfinite(value) else None


def trim_outputs(folder: Path) -> None:
    """Remove the oldest files above the limit."""
    if folder.is_dir():
        files = sorted(folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
        for path in files[:-KEPT_OUTPUTS]:
            path.unlink(missing_ok=True)
