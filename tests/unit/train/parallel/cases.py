"""What the processes of a test do. Each function runs in every process; what it returns is looked at by the test."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.unit.train.losses.stage_rows import TOKENIZER, make_model
from tests.unit.train.session.engines import freeze_model, make_config, make_feed
from trainyard.compute.rank_process import main as rank_main
from trainyard.compute.rank_process import read_notes
from trainyard.errors import TrainyardError
from trainyard.spec.axes.devices import Precision
from trainyard.spec.axes.stages import Stage
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.training import LaunchSettings, TrainerConfig
from trainyard.train.checkpoint.state import Snapshot, flatten, require_same
from trainyard.train.checkpoint.writer import CheckpointWriter, find_newest, load_checkpoint
from trainyard.train.contracts import Cursor, Sampling
from trainyard.train.loop import count_done, train
from trainyard.train.losses.table import STAGES
from trainyard.train.methods.full import plain_groups
from trainyard.train.optimizers import make_optimizer
from trainyard.train.parallel.session import END, SharedSession, make_strategy, serve
from trainyard.train.parallel.team import Team
from trainyard.train.progress import SavedProgress
from trainyard.train.rows.batching import Feed
from trainyard.train.schedules import LearningRate
from trainyard.train.session.session import Session, TrainState

Result = dict[str, Any]


def session_on(
    team: Team,
    folder: Path,
    config: TrainerConfig,
    *,
    precision: Precision = Precision.FP32,
    dropout: float = 0.0,
    total_steps: int = 4,
) -> Session:
    """A session of one process, or this process's side of a shared one; the first weights are the same in all."""
    random.seed(0)  # a forked process has one of its own
    stage = STAGES[config.stage.type]
    model = make_model(stage.head, 0)
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = dropout
    reference = freeze_model(model) if stage.needs_reference(config) else None
    launch = config.launch
    common = {"tokenizer": TOKENIZER, "precision": precision}
    if launch.strategy is Strategy.SINGLE:
        optimizer = make_optimizer(plain_groups(model, config), config)
        rate = LearningRate(optimizer, config, total_steps)
        torch.manual_seed(0)
        return Session(TrainState(model, reference, stage, config, optimizer, rate, **common), folder)
    parallelism = make_strategy(team, model, launch)
    parallelism.last_step = total_steps
    optimizer = parallelism.optimizer(plain_groups(model, config), config)
    rate = LearningRate(optimizer, config, total_steps)
    torch.manual_seed(team.rank)
    engine = TrainState(model, reference, stage, config, optimizer, rate, parallelism=parallelism, **common)
    return SharedSession(engine, folder, team)


@contextmanager
def lead_team(team: Team, session: Session) -> Iterator[bool]:
    """True in the process that leads; the others have served when the block is entered with False."""
    if not team.leading:
        assert isinstance(session, SharedSession)
        serve(session)
        yield False
        return
    yield True
    if isinstance(session, SharedSession):
        team.broadcast_command(END)
        team.close()


def config_for(team: Team, strategy: str, stage: str = "sft", batch: int = 4, **hyper: Any) -> TrainerConfig:
    """The rows of a step are the same for every number of processes: `batch` in all."""
    shard: dict[str, Any] = {"shard_size": 2} if strategy == "fsdp_hybrid" else {}
    if "diloco" in hyper:
        shard["diloco"] = hyper.pop("diloco")
    launch = LaunchSettings(strategy=Strategy(strategy), processes=team.size, **shard)
    preference = {"preference": hyper.pop("preference")} if "preference" in hyper else {}
    fields = {"batch_size": batch // team.size, "warmup_ratio": 0.0, "max_steps": 4, **hyper}
    config = make_config(Stage(stage), **fields)
    return TrainerConfig.model_validate({**config.model_dump(), "launch": launch.model_dump(), **preference})


def digest(tensors: dict[str, torch.Tensor]) -> str:
    hasher = hashlib.sha256()
    for name in sorted(tensors):
        hasher.update(name.encode() + tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return hasher.hexdigest()


def list_weights(session: Session) -> dict[str, torch.Tensor]:
    return {str(at): value for at, value in enumerate(session.parameters)}


def count_bytes(session: Session) -> dict[str, int]:
    """What this process holds of weights, gradients and optimizer states."""
    tensors: dict[str, torch.Tensor] = {}
    flatten(session.engine.optimizer.state_dict(), "state", tensors)
    states = [value for value in tensors.values() if value.ndim]
    grads = [value.grad for value in session.parameters if value.grad is not None]
    return {
        "weights": sum(value.numel() * 4 for value in session.parameters),
        "gradients": sum(value.numel() * value.element_size() for value in grads),
        "states": sum(value.numel() * value.element_size() for value in states),
    }


def count_outer_bytes(session: Session) -> int:
    """What this process keeps for the exchanges of islands."""
    tensors: dict[str, torch.Tensor] = {}
    flatten(session.parallelism.own_parts(), "outer", tensors)
    return sum(value.numel() * value.element_size() for value in tensors.values())


def never() -> bool:
    return False


def measure_after_backward(team: Team, folder: Path, strategy: str, **hyper: Any) -> Result:
    """What each process holds between a backward and a step."""
    config = config_for(team, strategy, **hyper)
    session = session_on(team, folder, config)
    with lead_team(team, session) as leads:
        if leads:
            forward = session.forward(make_feed(config, 8).step(Cursor())[0])
            session.backward(forward.forward_id, measure=False)
    return count_bytes(session)


def refuse_save(_session: Session, _progress: SavedProgress) -> None:
    raise AssertionError("nothing is saved here")


def whole_run(
    team: Team, folder: Path, strategy: str, *, rows: int = 8, precision: str = "fp32", scale: float = 0, **hyper: Any
) -> Result:
    """Four steps of the loop, as the backend runs them. `scale` is fp16's first loss scale."""
    config = config_for(team, strategy, **hyper)
    session = session_on(team, folder, config, precision=Precision(precision))
    if scale:
        session.scaler.load_state_dict({**session.scaler.state_dict(), "scale": scale})
    progress = SavedProgress()
    with lead_team(team, session) as leads:
        if leads:
            feed = make_feed(config, rows)
            train(session, feed, progress, total_steps=4, save=refuse_save, save_steps=100, stop=never)
            session.show_served()
            weights = {name: value.clone() for name, value in session.snapshot().parts["weights"].items()}
            save_file(weights, folder / "weights.safetensors")
    return {
        "losses": progress.losses,
        "digest": digest(list_weights(session)),
        "held": count_bytes(session),
        "steps": session.global_step,
        "skipped": session.skipped,
        "facts": session.parallelism.facts(),
        "parameters": sum(value.numel() for value in session.parameters),
        "outer": count_outer_bytes(session),
    }


def verbs(team: Team, folder: Path, strategy: str, **hyper: Any) -> Result:
    """Every verb, in an order that a program of its own may have; saved inside an accumulation and taken back."""
    config = config_for(team, strategy, **hyper)
    session = session_on(team, folder / f"files-{team.rank}", config, dropout=0.1)
    result: Result = {}
    with lead_team(team, session) as leads:
        if leads:
            result = run_verbs(session, make_feed(config, 8))
    return {**result, "digest": digest(list_weights(session)), "written": list_written(folder / f"files-{team.rank}")}


def list_written(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def run_verbs(session: Session, feed: Feed) -> Result:
    """What the verbs reply, as plain values."""
    batches = [batch for step in range(2) for batch in feed.step(Cursor(0, step, 0))]
    prompts = [[5, 6, 7], [8, 9]]
    first = session.forward(batches[0], outputs=("logits",), op_seq=1)
    again = session.forward(batches[0], outputs=("logits",), op_seq=1)
    measured = session.backward(first.forward_id)
    saved = session.save("inside")
    ends = []
    for turn in range(2):
        if turn:
            session.load("inside")
        second = session.forward(batches[1])
        session.backward(second.forward_id, measure=False)
        stepped = session.step()
        session.zero_grad()
        following = session.forward(batches[0])
        session.backward(following.forward_id, measure=False)
        session.step()
        session.zero_grad()
        ends.append([float(second.loss), float(stepped.grad_norm), float(following.loss), state_digest(session)])
    weights = session.save("served", kind="weights")
    return {
        "same_reply": first is again,
        "loss": float(first.loss),
        "units": first.units,
        "logits": first.outputs["logits"]["shape"],
        "norm": measured.grad_norm,
        "ends": ends,
        "generated": [reply.ids for reply in session.generate(prompts, Sampling(max_new_tokens=6, seed=3))],
        "logprobs": session.logprobs(prompts),
        "refusals": [refusal(lambda: session.backward("forward-1")), refusal(session.step), refusal(session.zero_grad)],
        "saved": [saved["kind"], weights["kind"]],
        "file": weights["path"],
    }


def refusal(call: Callable[[], Any]) -> str | None:
    try:
        call()
    except TrainyardError as error:
        return error.code
    return None


def state_digest(session: Session) -> str:
    """SHA-256 of everything that a checkpoint would hold."""
    tensors, values = session.snapshot().flat()
    return hashlib.sha256((digest(tensors) + json.dumps(values["parts"])).encode()).hexdigest()


def part_of_run(
    team: Team, folder: Path, strategy: str, root: str, *, stop_after: int | None = None, resumed: bool = False,
    dropout: float = 0.1, **hyper: Any,
) -> Result:  # fmt: skip
    """The loop with checkpoints as the backend writes them, maybe stopped inside a step, maybe taken up again."""
    config = config_for(team, strategy, **hyper)
    session, progress = session_on(team, folder, config, dropout=dropout), SavedProgress()
    count, state = itertools.count(), ""
    with lead_team(team, session) as leads, CheckpointWriter(Path(root) / f"checkpoints-{team.rank}") as writer:
        if leads:
            if resumed:
                tensors, values = load_checkpoint(find_newest(writer.root, None).path)
                snapshot = Snapshot.from_flat(tensors, values)
                require_same(snapshot, session.identity())
                session.restore(snapshot)
                progress = SavedProgress.from_values(values["progress"])

            def save(session: Session, progress: SavedProgress) -> None:
                tensors, values = session.snapshot().flat()
                writer.save(count_done(session), tensors, {**values, "progress": progress.as_values()})

            train(
                session, make_feed(config, 12), progress, total_steps=4, save=save, save_steps=100,
                stop=lambda: stop_after is not None and next(count) == stop_after,
            )  # fmt: skip
            state = state_digest(session)
    return {"digest": digest(list_weights(session)), "state": state, "losses": progress.losses}


def take_up(team: Team, folder: Path, strategy: str, root: str, **hyper: Any) -> Result:
    """The code with which a saved state of other processes is refused, and whether its weights alone are taken."""
    config = config_for(team, strategy, **hyper)
    session = session_on(team, folder, config)
    before, refused, weights = digest(list_weights(session)), None, None
    with lead_team(team, session) as leads:
        if leads:
            session.folder = Path(root)
            try:
                session.load("inside")
            except TrainyardError as error:
                refused = str(error)
            unchanged = digest(list_weights(session)) == before
            session.load("served", optimizer=False)
            weights = {name: value.clone() for name, value in session.snapshot().parts["weights"].items()}
            save_file(weights, folder / "weights.safetensors")
            return {"refused": refused, "unchanged": unchanged, "digest": digest(list_weights(session))}
    return {"digest": digest(list_weights(session))}


def program(target: str, root: str) -> Result:
    """A backend's program on the job in `root`, in this process; what it noted at its end."""
    folder = Path(root)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rank_main(target, root)
    return read_notes(folder)[int(os.environ["RANK"])]
