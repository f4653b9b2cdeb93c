"""A distributed TRL training: its ranks, the values that they agree on, and sharded weights.

With ddp accelerate wraps the model, as it does for everybody. With fsdp and fsdp_hybrid transformers itself shards the
model while it loads it (`DistributedConfig`, torch's `fully_shard`): accelerate shards on GPUs only, and on a CPU would
run ddp without a word. The trainer of transformers cannot checkpoint such a model, so the parts of the optimizer are
written by ours, one file a process, inside the one checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from trainyard.backends.job import TrainingJob
from trainyard.compute.rank_process import MEETING_FILE, RANKS_FOLDER
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.spec.axes.strategies import Strategy
from trainyard.train.methods.loading import default_attention
from trainyard.train.parallel.team import Team, join_team, take_device

PART_FILE = "optimizer_{}.pt"
"""A process's part of the optimizer, next to its random state in a checkpoint."""
IN_PARTS = (Strategy.FSDP, Strategy.FSDP_HYBRID)


@contextmanager
def join_ranks(folder: Path, device: str) -> Iterator[Team]:
    """This process among those that the launcher started. accelerate finds the group that is opened here."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if device == "cuda":
        take_device(int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", size)))
    with join_team(rank, size, folder / RANKS_FOLDER / MEETING_FILE, device) as team:
        yield team


def sync_value(team: Team | None, value: Any) -> Any:
    """Return rank 0's value on every rank."""
    return value if team is None else team.shared(value)


def is_sharded(job: TrainingJob) -> bool:
    """Return whether each process has a shard of the weights."""
    return job.config.launch.strategy in IN_PARTS


def describe_layout(job: TrainingJob) -> dict[str, object]:
    """Return the layout of the shards, for the record."""
    launch = job.config.launch
    size = {"shard_size": count_parts(job)} if launch.strategy is Strategy.FSDP_HYBRID else {}
    return {"strategy": launch.strategy.value, "processes": launch.processes, **size}


def count_parts(job: TrainingJob) -> int:
    """Return the number of processes that share one copy of the weights."""
    launch = job.config.launch
    hybrid = launch.strategy is Strategy.FSDP_HYBRID
    return (launch.shard_size or launch.processes // 2) if hybrid else launch.processes


def load_sharded_model(job: TrainingJob, checkpoint: Path | None) -> Any:
    """Load the whole model, sharded while it is loaded: the base, or the content of a checkpoint."""
    source = job.base if checkpoint is None else str(next(checkpoint.glob("checkpoint-*")))
    require_family(AutoConfig.from_pretrained(source, trust_remote_code=False))
    size = count_parts(job)
    model = AutoModelForCausalLM.from_pretrained(
        source,
        trust_remote_code=False,
        use_safetensors=True,
        dtype=torch.float32,
        attn_implementation=default_attention(source),
        distributed_config=DistributedConfig(
            fsdp_size=size, dp_replicate_size=job.config.launch.processes // size, tp_size=1
        ),
    )
    model.config.use_cache = False
    return model


def require_family(config: Any) -> None:
    """Refuse what transformers does not cut, or cuts wrongly. Raises `InvalidInput` (`E-LAUNCH`).

    In transformers 5.23 weights that two modules share are gathered once: after the first optimizer step one of the two
    shows the old ones, and the training learns something else without a word.
    """
    if config.get_text_config().tie_word_embeddings:
        why = "Its embeddings and its output layer share their weights, which transformers does not keep the same."
    elif not getattr(config, "base_model_fsdp_plan", None):
        why = "Its family does not say where it may be cut."
    else:
        return
    raise InvalidInput(
        f"This model of type {config.model_type} cannot be sharded by the trl backend.",
        why=why,
        do="Use strategy ddp, or backend native with strategy fsdp_hybrid.",
        code="E-LAUNCH",
    )


# The states of an optimizer whose weights are in parts


def local_states(optimizer: Any) -> dict[str, object]:
    """Return an optimizer's state with this process's parts as plain tensors."""
    state = optimizer.state_dict()
    local = {
        index: {name: value.to_local() if isinstance(value, DTensor) else value for name, value in entry.items()}
        for index, entry in state["state"].items()
    }
    return {**state, "state": local}


def take_states(optimizer: Any, saved: JsonObject) -> None:
    """The inverse: parts become tensors that know of the others, like the weights that they belong to."""
    weights = [value for group in optimizer.param_groups for value in group["params"]]
    parts = {
        index: {name: cut_part(value, weights[index]) for name, value in entry.items()}
        for index, entry in saved["state"].items()
    }
    optimizer.load_state_dict({**saved, "state": parts})


def cut_part(value: Any, weight: Any) -> Any:
    """Return a state of the shape of a weight's part, in the same places; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.shape != weight.to_local().shape or not value.ndim:
        return value
    return DTensor.from_local(
        value, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape, stride=weight.stride()
    )
