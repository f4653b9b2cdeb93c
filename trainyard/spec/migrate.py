"""Other spellings of what our words say, accepted here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from trainyard.spec.axes.stages import Stage

OBJECTIVES = {**{stage.value: stage.value for stage in Stage}, "rlhf": Stage.PPO.value}
"""Objectives that some tools call a method -> our stage. RLHF is PPO against a reward model."""
ALIGNMENTS: dict[str, dict[str, Any]] = {"dpo": {"stage": "dpo"}, "orpo": {"stage": "dpo", "loss": "orpo"}}
"""What a job's `alignment` names -> our stage, and the loss where it is not the usual one."""
ADAPTERS = ("lora", "qlora", "dora")
"""Methods that a job may name as its `adapter`."""
RENAMED = {"hyperparams": "hyperparameters"}
HYPERPARAMETERS = {"lr_scheduler": "schedule"}
DEFAULT_METHOD = "lora"
INNER_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
DEVICES = {"metal": "mps", "wgpu": "auto"}
"""Devices of other tools -> ours. WebGPU computes on whatever is there, which `auto` takes and records."""
CUDA_NUMBER = re.compile(r"cuda[:(](\d{1,3})\)?")


def trainer_words(given: Any) -> Any:
    """A trainer's or a job's settings in our words.

    `method: "dpo"` names an objective: it becomes `stage: dpo` with the default method, unless a stage is given that
    says otherwise, which stays and is refused. `hyperparams` becomes `hyperparameters`, `lr_scheduler` in it
    `schedule`, and `checkpoint_dir` the folder of `engine.mirror`. Anything else passes unchanged, and so does a key
    whose own word is given as well: it is refused as unknown.
    """
    if not isinstance(given, Mapping):
        return given
    words = renamed(given, RENAMED)
    method = words.get("method")
    stage = OBJECTIVES.get(method.lower()) if isinstance(method, str) else None
    if stage is not None and words.get("stage") in (None, stage):
        words |= {"stage": stage, "method": DEFAULT_METHOD}
    if isinstance(hyper := words.get("hyperparameters"), Mapping):
        words["hyperparameters"] = hyperparameter_words(hyper)
    folder, engine = words.get("checkpoint_dir"), words.get("engine", {})
    if isinstance(folder, str) and isinstance(engine, Mapping) and "mirror" not in engine:
        words["engine"] = {**engine, "mirror": f"file:{quote(folder)}"}
        del words["checkpoint_dir"]
    return words


def hyperparameter_words(given: Mapping[str, Any]) -> dict[str, Any]:
    words = renamed(given, HYPERPARAMETERS)
    if "lr_scheduler" in given and isinstance(schedule := words.get("schedule"), str):
        words["schedule"] = plain(schedule)
    return words


def job_words(given: Any) -> Any:
    """A job's body in our words: those of its trainer, `adapter: "LoRA"` and `alignment: "DPO"`, and its tenant.

    `tenant_id` of the data set is the tenant of the job: its own folder is one of those that the data may be in.
    """
    if not isinstance(given, Mapping):
        return given
    words = dict(given)
    adapter, alignment, dataset = words.get("adapter"), words.get("alignment"), words.get("dataset")
    if isinstance(adapter, str) and adapter.lower() in ADAPTERS and "method" not in words:
        words["method"] = words.pop("adapter").lower()
    if isinstance(alignment, str) and alignment.lower() in ALIGNMENTS and "stage" not in words:
        words |= aligned(ALIGNMENTS[words.pop("alignment").lower()], words.get("preference", {}))
    if isinstance(dataset, Mapping) and "tenant_id" in dataset and words.get("tenant") in (None, dataset["tenant_id"]):
        words["dataset"] = {key: value for key, value in dataset.items() if key != "tenant_id"}
        words["tenant"] = dataset["tenant_id"]
    return trainer_words(words)


def aligned(found: Mapping[str, Any], preference: Any) -> dict[str, Any]:
    """The stage of an alignment and, where it is not the usual one, its loss."""
    words = {"stage": found["stage"]}
    if "loss" in found and isinstance(preference, Mapping):
        words["preference"] = {"loss": found["loss"], **preference}
    return words


def renamed(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The same with our names, but for a key whose own name is given as well."""
    return {names.get(key, key) if names.get(key) not in given else key: value for key, value in given.items()}


def plain(word: str) -> str:
    """A name of an enumeration, such as `OneCycle`, as we write it."""
    return INNER_CAPITAL.sub("_", word).lower()


def device_word(given: Any) -> Any:
    """A device in our words: `cuda:0`, `Cuda(0)`, `metal` and `wgpu` are read; a GPU's number above 0 stays."""
    if not isinstance(given, str):
        return given
    word = given.strip().lower()
    return "cuda" if named_gpu(word) == 0 else DEVICES.get(word, word)


def named_gpu(word: str) -> int | None:
    """The number in `cuda:1`; None where there is none."""
    found = CUDA_NUMBER.fullmatch(word)
    return int(found[1]) if found else None
