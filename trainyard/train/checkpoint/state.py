"""Complete state of a training run, as named tensors and plain values.

Leaving out any one of them changes the bits of what follows; `trainyard prove-resume` drops each in turn and has to see
it. Nothing is pickled: tensors go to safetensors, the rest to JSON.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from trainyard.errors import Corrupt
from trainyard.json_types import JsonMapping, JsonObject

Tensors = dict[str, torch.Tensor]

TENSOR, TUPLE, ITEMS = "__tensor__", "__tuple__", "__items__"
"""Marks in the JSON form: a tensor by name, a tuple, and a mapping whose keys are not all text (or are marks)."""


def flatten(value: Any, name: str, tensors: Tensors) -> Any:
    """Return a JSON value for `value`; its tensors are added to `tensors` under `name/...`.

    Raises `TypeError` for what a checkpoint cannot store: anything but tensors, plain values, and lists, tuples and
    mappings of them.
    """
    if isinstance(value, torch.Tensor):
        while name in tensors:  # {"a/b": one, "a": {"b": another}}
            name += "'"
        tensors[name] = value.detach()
        return {TENSOR: name}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and not value.keys() & {TENSOR, TUPLE, ITEMS}:
            return {key: flatten(part, f"{name}/{key}", tensors) for key, part in value.items()}
        items = [(flatten(key, name, tensors), flatten(part, f"{name}/{key}", tensors)) for key, part in value.items()]
        return {ITEMS: [list(item) for item in items]}
    if isinstance(value, list | tuple):
        parts = [flatten(part, f"{name}/{index}", tensors) for index, part in enumerate(value)]
        return {TUPLE: parts} if isinstance(value, tuple) else parts
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name} is a {type(value).__name__}, which a checkpoint cannot store")


def rebuild(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the inverse of `flatten`."""
    if isinstance(value, dict):
        if TENSOR in value:
            return tensors[value[TENSOR]]
        if TUPLE in value:
            return tuple(rebuild(part, tensors) for part in value[TUPLE])
        if ITEMS in value:
            return {rebuild(key, tensors): rebuild(part, tensors) for key, part in value[ITEMS]}
        return {key: rebuild(part, tensors) for key, part in value.items()}
    if isinstance(value, list):
        return [rebuild(part, tensors) for part in value]
    return value


def random_state() -> JsonObject:
    """Return the state of every generator that training may draw from."""
    version, state_words, following = random.getstate()
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    words_N = torch.from_numpy(np.asarray(keys, dtype=np.uint32).astype(np.int64))
    return {
        "python": [version, torch.tensor(state_words), following],
        "numpy": [kind, words_N, position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
        "cuda": list(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else [],
    }


def require_same_devices(state: JsonMapping) -> None:
    """Raise `Corrupt` (`E-CHECKPOINT-MISMATCH`) when the run had another number of CUDA devices."""
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if len(state["cuda"]) != here:
        raise Corrupt(
            f"The checkpoint contains the random state of {len(state['cuda'])} CUDA devices, this machine has {here}.",
            do="Continue on a machine like the first one, or start the training again.",
            code="E-CHECKPOINT-MISMATCH",
        )


def restore_random_state(state: JsonMapping) -> None:
    """Put every generator back. The devices are those of `require_same_devices`."""
    version, state_words, following = state["python"]
    random.setstate((version, tuple(state_words.tolist()), following))
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"].to(torch.uint8).cpu())
    if state["cuda"]:
        torch.cuda.set_rng_state_all([part.to(torch.uint8).cpu() for part in state["cuda"]])


def weights(model: torch.nn.Module) -> Tensors:
    """Return what moves: trained parameters, and the buffers of the modules (statistics, caches of positions)."""
    trainable = {f"parameter/{name}": value for name, value in model.named_parameters() if value.requires_grad}
    return trainable | {f"buffer/{name}": value for name, value in model.named_buffers()}


def require_same_weights(model: torch.nn.Module, saved: Mapping[str, torch.Tensor]) -> None:
    """Raise `Corrupt` (`E-CHECKPOINT-MISMATCH`) when names, shapes or dtypes differ."""
    here = weights(model)
    differing = sorted(here.keys() ^ saved.keys()) or [
        name for name in here if here[name].shape != saved[name].shape or here[name].dtype != saved[name].dtype
    ]
    if differing:
        raise Corrupt(
            f"The checkpoint belongs to another model or method: {differing[0]} differs ({len(differing)} in all).",
            do="Continue with the config that the checkpoint was made with, or start the training again.",
            code="E-CHECKPOINT-MISMATCH",
        )


def restore_weights(model: torch.nn.Module, saved: Mapping[str, torch.Tensor]) -> None:
    """Copy into the model's own tensors, which are those of `require_same_weights`."""
    with torch.no_grad():
        for name, value in weights(model).items():
            value.copy_(saved[name])


def gradients(model: torch.nn.Module) -> Tensors:
    """Return the accumulated gradients, which a stop inside an accumulation must not lose."""
    return {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is not None
    }


def restore_gradients(model: torch.nn.Module, saved: Mapping[str, torch.Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.grad = saved[name].to(parameter.device).clone() if name in saved else None
