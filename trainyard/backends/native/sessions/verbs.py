"""The eight verbs of a session as calls: what a caller sends -> what `Session` takes -> a reply in JSON.

A verb is a function (side, given, body) -> reply. What it raises is the reply, and the session stays open.
"""

from __future__ import annotations

import base64
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainyard.backends.native.sessions.batches import Encoder
from trainyard.backends.native.sessions.token_rows import read_token_rows
from trainyard.backends.sessions.records import SAVED_FOLDER
from trainyard.errors import Conflict, InvalidInput
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.stores.whole import write_folder
from trainyard.train.checkpoint.state import load_snapshot, read_digest, require_name
from trainyard.train.contracts import Generated, Sampling
from trainyard.train.model.sampling import PromptQuestions
from trainyard.train.session.session import Session
from trainyard.train.session.slots import AdapterSlots
from trainyard.train.session.token_steps import run_token_step

MOST_SAMPLES = 512
KEPT_WEIGHTS = 4
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
    slots: AdapterSlots = field(init=False)
    loaded: OrderedDict[str, JsonObject] = field(default_factory=OrderedDict)
    """Trained weights of saved states that calls sample with, the newest."""

    def __post_init__(self) -> None:
        self.encoder, self.slots = Encoder(self.session), AdapterSlots(self.session)

    @contextmanager
    def showing(self, weights: str | None) -> Iterator[None]:
        """The weights of a saved state in place while the block runs, those of the base with `""`, and the session's
        own without a name. Raises `NotFound` (`E-NOT-FOUND`), `Corrupt`, `InvalidInput` (`E-STEP`)."""
        if weights is None:
            yield
        elif weights:
            with self.session.showing(self.weights_of(weights)):
                yield
        else:
            model = self.session.engine.model
            if not hasattr(model, "disable_adapter"):
                raise InvalidInput("Only an adapter can be switched off.", do="Use method lora.", code="E-STEP")
            with model.disable_adapter():
                yield

    def weights_of(self, name: str) -> JsonObject:
        """Return the trained weights of a saved state; the newest are in memory."""
        if name not in self.loaded:
            snapshot, _ = load_snapshot(self.session.folder, name, self.session.sealer)
            self.loaded[name] = snapshot.parts["weights"]
            if len(self.loaded) > KEPT_WEIGHTS:
                self.loaded.popitem(last=False)
        self.loaded.move_to_end(name)
        return self.loaded[name]

    @property
    def outputs(self) -> Path:
        return self.session.folder / "outputs"


Verb = Callable[[SessionSide, Mapping[str, Any], bytes], dict[str, Any]]


def forward(side: SessionSide, arguments: JsonMapping, body: bytes) -> JsonObject:
    if "token_loss" in arguments:
        return token_step(side, arguments, body)
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


def token_step(side: SessionSide, arguments: JsonMapping, body: bytes) -> JsonObject:
    """Score rows with explicit targets by a named loss, and with `backward` add its gradients."""
    rows = read_token_rows(body, side.encoder.vocabulary, side.session.context)
    result = run_token_step(
        side.session, rows, arguments["token_loss"], arguments.get("settings") or {},
        backward=bool(arguments.get("backward")),
    )  # fmt: skip
    flat = torch.cat([row.flatten() for row in result.logprobs]).numpy()
    return {"loss": result.loss, "logprobs": base64.b64encode(flat.astype("<f4").tobytes()).decode()}


def backward(side: SessionSide, arguments: JsonMapping, _: bytes) -> JsonObject:
    result = side.session.backward(
        arguments["forward_id"], scale=arguments.get("scale", 1.0), measure=arguments.get("measure", True)
    )
    norm = None if result.grad_norm is None else finite(result.grad_norm)
    return {"accumulated": result.accumulated, "grad_norm": norm, "overflow": result.overflow}


def step(side: SessionSide, arguments: JsonMapping, _: bytes) -> JsonObject:
    names = ("max_grad_norm", "learning_rate", "metric", "options")
    values = {name: arguments.get(name) for name in names}
    if values["max_grad_norm"] == 0:
        values["max_grad_norm"] = math.inf  # no clipping
    result = side.session.step(**values)
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
    stop = {name: tuple(sampling[name]) for name in ("stop_ids", "stop_texts") if sampling.get(name) is not None}
    repeated = [prompt for prompt in prompts for _ in range(samples)]
    with side.showing(arguments.get("weights")):
        completions = side.session.generate(repeated, Sampling(**{**sampling, **stop}))
        count = int(arguments.get("likeliest") or 0)
        pairs = zip(repeated, completions, strict=True)
        likeliest = [list_likeliest(side, prompt, completion, count) for prompt, completion in pairs]
    return {
        "completions": [
            {
                **asdict(completion),
                "stop_reason": completion.stop_reason.value,
                "prompt": at // samples,
                "prompt_ids": repeated[at],
                **({"likeliest": likeliest[at]} if likeliest[at] is not None else {}),
            }
            for at, completion in enumerate(completions)
        ]
    }


def list_likeliest(
    side: SessionSide, prompt: list[int], completion: Generated, count: int
) -> list[list[tuple[int, float]]] | None:
    """Return the likeliest tokens at each place of a completion; None where none are requested."""
    if not count:
        return None
    scores = side.session.score_prompt([*prompt, *completion.ids], PromptQuestions(top_k=count))
    return scores.likeliest[len(prompt) - 1 :]


def logprobs(side: SessionSide, arguments: JsonMapping, _: bytes) -> JsonObject:
    rows = side.encoder.prompts(arguments["rows"], ask=False)
    if "questions" in arguments:
        with side.showing(arguments.get("weights")):
            scores = side.session.score_prompt(rows[0], PromptQuestions(**arguments["questions"]))
        return asdict(scores)
    return {"ids": rows, "logprobs": side.session.logprobs(rows)}


def save(side: SessionSide, arguments: JsonMapping, _: bytes) -> JsonObject:
    if arguments.get("kind") == "result":
        with side.showing(arguments.get("weights")):
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


def open_slot(side: SessionSide, arguments: JsonMapping, _: bytes) -> JsonObject:
    """Begin a new adapter in a slot."""
    side.slots.open(arguments["name"], int(arguments["seed"]))
    return {"name": arguments["name"]}


def drop_slot(side: SessionSide, arguments: JsonMapping, _: bytes) -> JsonObject:
    side.slots.drop(arguments["name"])
    return {"name": arguments["name"]}


def run_verb(side: SessionSide, verb: str, arguments: JsonMapping, body: bytes) -> JsonObject:
    """Carry out a verb with the adapter of its slot in the model; what uses saved weights needs none.

    Raises `InvalidInput` (`E-STEP`) for what a session of several processes does not do.
    """
    if int(side.session.parallelism.layout["processes"]) > 1:
        require_shared(verb, arguments)
    if verb not in SLOT_VERBS and "weights" not in arguments:
        side.slots.enter(str(arguments.get("slot") or ""))
    return {**SLOT_VERBS, **VERBS}[verb](side, arguments, body)


def require_shared(verb: str, arguments: JsonMapping) -> None:
    """Raise `InvalidInput` (`E-STEP`) for calls that look into the model of one process."""
    unshared = [name for name in ALONE if arguments.get(name) not in (None, "", 0)]
    if verb in SLOT_VERBS or unshared:
        raise InvalidInput(
            f"A session of several processes takes no {unshared[0] if unshared else verb}.",
            why="Its processes share the eight verbs on one adapter.",
            do="Leave it out, or create a session of one process.",
            code="E-STEP",
        )


ALONE = ("slot", "token_loss", "weights", "likeliest", "questions")
"""Arguments of the wires of other services, for which a session has to be one process."""
SLOT_VERBS: dict[str, Verb] = {"open_slot": open_slot, "drop_slot": drop_slot}
"""Calls about the adapters of a session, besides the eight verbs."""
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
