"""The shards of a model that the ranks of a ZeRO run keep: measure, save, load, gather (DeepSpeed's interpreter).

Stage 1 shares the optimizer's state, stage 2 the gradients too, stage 3 the weights as well. Nothing here believes the
configuration: `measure` looks at the tensors that this process really has.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import deepspeed
import orjson
import torch

from .deepspeed_hosts import Layout, exchange_files
from .failures import WorkerError, nonfinite_weights
from .files import checkpoint_places, commit, empty_checkpoint, write_whole

STATE_FILE = "progress.json"


def measure(engine: Any, sizes: dict[str, int], stage: int, world: int) -> dict[str, int]:
    """Elements of weights and of trained weights, and how many of each are in this process.

    Raises `WorkerError` (`E-CHECKPOINT-MISMATCH`) when stage 3 has left a parameter whole, or a stage from 1 on
    the state.
    """
    parameters = dict(engine.module.named_parameters())
    trained = sum(sizes[name] for name, parameter in parameters.items() if parameter.requires_grad)
    state = state_elements(engine, stage)
    if world > 1 and stage == 3:
        for name, parameter in parameters.items():
            size, here = sizes[name], count_local(parameter)
            if size > 1 and (parameter.numel() == size or here > math.ceil(size / world)):
                raise sharding_error(f"{name} is not sharded: one of {world} ranks has {here:,} of {size:,} elements.")
    if world > 1 and stage >= 1 and state > math.ceil(trained / world) + padding(engine, world):
        raise sharding_error(f"The optimizer of one of {world} ranks contains {state:,} of {trained:,} elements.")
    weights = sum(map(count_local, parameters.values()))
    return {"weights": sum(sizes.values()), "weights_here": weights, "trained": trained, "optimizer_here": state}


def count_local(parameter: torch.nn.Parameter) -> int:
    """Return the number of a parameter's elements in this process's memory; stage 3 stores its share in `ds_tensor`."""
    share = getattr(parameter, "ds_tensor", None)
    return int(parameter.numel() if share is None else share.numel())


def state_elements(engine: Any, stage: int) -> int:
    """Elements that the optimizer of this process moves."""
    optimizer = engine.optimizer
    if stage == 3:
        return sum(int(part.numel()) for part in optimizer.fp32_partitioned_groups_flat)
    if stage in (1, 2):
        return sum(int(part.numel()) for part in optimizer.single_partition_of_fp32_groups)
    return sum(int(parameter.numel()) for group in optimizer.param_groups for parameter in group["params"])


def padding(engine: Any, world: int) -> int:
    """Shares are filled up so that they are equal and aligned: a few elements for every group and parameter."""
    return 64 * world * max(1, len(engine.optimizer.param_groups)) + len(list(engine.module.parameters()))


def sharding_error(message: str) -> WorkerError:
    return WorkerError(
        message,
        why="The run would take the memory of an unshared one under the name of a shared one.",
        do="Report the versions in the log; use another launch.strategy until then.",
        code="E-CHECKPOINT-MISMATCH",
    )


def save(
    engine: Any, folder: Path, state: dict[str, Any], facts: dict[str, Any], *, layout: Layout, adapter: bool
) -> dict[str, Any]:
    """A checkpoint by all processes together, sealed by the first of each host; returns its facts there, nothing
    elsewhere."""
    writes = layout.writes
    temporary = empty_checkpoint(folder, state["step"]) if writes else checkpoint_places(folder, state["step"])[0]
    torch.distributed.barrier()
    # The frozen base is not part of an adapter's checkpoint: it is where it was.
    engine.save_checkpoint(str(temporary), tag=f"global_step{state['step']}", exclude_frozen_parameters=adapter)
    torch.distributed.barrier()
    exchange_files(temporary, layout)
    event: dict[str, Any] = {}
    if writes:
        write_whole(temporary / STATE_FILE, state)
        event = commit(folder, state["step"], facts)
    torch.distributed.barrier()
    return event


def load_checkpoint(engine: Any, checkpoint: Path, *, adapter: bool) -> tuple[int, list[list[float]], int]:
    """Take over a verified checkpoint; returns (step, losses, tokens)."""
    state = orjson.loads((checkpoint / STATE_FILE).read_bytes())
    path, _ = engine.load_checkpoint(str(checkpoint), load_module_strict=not adapter)
    if path is None:
        raise WorkerError(
            f"DeepSpeed found nothing to load in {checkpoint}.",
            do="Remove that folder: the training resumes from the checkpoint before it.",
            code="E-CHECKPOINT-CORRUPT",
        )
    return int(state["step"]), state["losses"], int(state["tokens"])


def gather(engine: Any, target: Path | None) -> None:
    """Write the trained weights to `target` (None in all processes but the first), whole and in float32."""
    module = engine.module
    adapter = hasattr(module, "peft_config")
    whole: dict[str, torch.Tensor] = {}
    for name, parameter in module.named_parameters():
        if adapter and not parameter.requires_grad:
            continue
        # The optimizer's own copy where the weights themselves are kept in half precision.
        exact = deepspeed.utils.safe_get_full_fp32_param(parameter) if parameter.requires_grad else None
        if exact is None:
            with deepspeed.zero.GatheredParameters([parameter]):
                exact = parameter.detach().float().clone()
        if target is not None:
            if not torch.isfinite(exact).all():
                raise WorkerError(**nonfinite_weights(name))
            whole[name] = exact.detach().float().cpu().clone()
    if target is None:
        return
    only = {"selected_adapters": ["default"]} if adapter else {}
    module.save_pretrained(str(target), safe_serialization=True, state_dict=whole, **only)
