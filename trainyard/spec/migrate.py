"""Other spellings of what our words say, accepted here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from pydantic_core import PydanticCustomError

from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.axis import AxisValue, Variant
from trainyard.spec.axes.methods import ADAPTER_PROFILES, METHOD_SETTINGS, Method
from trainyard.spec.axes.stages import STAGE_SETTINGS, Stage

OBJECTIVES = {**{stage.value: stage.value for stage in Stage}, "rlhf": Stage.PPO.value}
"""Objectives that some tools call a method -> our stage. RLHF is PPO against a reward model."""
ALIGNMENTS: dict[str, object] = {"dpo": "dpo", "orpo": {"type": "dpo", "loss": "orpo"}}
"""What a job's `alignment` names -> our stage."""
ADAPTERS = ("lora", "qlora", "dora")
"""Methods that a job may name as its `adapter`."""
RENAMED = {"hyperparams": "hyperparameters"}
HYPERPARAMETERS = {"lr_scheduler": "schedule"}
USUAL = {"stage": "sft", "method": "lora"}
"""Axis that is written as a variant -> its value where none is written."""
VARIANTS: dict[str, Mapping[Any, type[Variant]]] = {"stage": STAGE_SETTINGS, "method": METHOD_SETTINGS}
MOVED = {
    **{
        f"lora.{name}": f"method.{name}"
        for name in ("profile", "rank", "alpha", "dropout", "target_modules", "modules_to_save", "layers", "rslora")
    },
    "lora.lora_plus_ratio": "method.ratio",
    "engine.oft_block_size": "method.block_size",
    "engine.freeze_blocks": "method.blocks",
    "engine.freeze_head": "method.head",
    **{
        f"preference.{name}": f"stage.{name}"
        for name in ("loss", "beta", "label_smoothing", "desirable_weight", "undesirable_weight")
    },
    "preference.simpo_gamma": "stage.gamma",
    "engine.reward_centering": "stage.centering",
    **{
        f"rollouts.{name}": f"stage.{name}"
        for name in (
            "rewards", "num_generations", "max_completion_length", "temperature", "beta", "num_iterations", "epsilon",
            "loss", "scale_rewards",
        )
    },
}  # fmt: skip
"""Settings that earlier versions had in groups of their own -> where they are now."""
EMPTIED = {"lora": "method", "preference": "stage", "rollouts": "stage"}
"""Group that has no setting any more -> the axis into which they moved."""
READERS = {
    "preference": (Stage.DPO, Stage.KTO),
    "rollouts": (Stage.GRPO,),
    "lora": tuple(method for method in Method if method.facts.adapter),
}
"""Group of names that other stages have as well -> the stages whose group it was."""
ISLAND_SETTINGS = ("num_islands", "inner_steps", "outer_lr", "outer_momentum", "pseudo_gradient_dtype")
"""Settings of DiLoCo that some documents write flat, as `diloco_inner_steps`."""
INNER_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
DEVICES = {"metal": "mps", "wgpu": "auto"}
"""Devices of other tools -> ours. WebGPU computes on whatever is there, which `auto` takes and records."""
CUDA_NUMBER = re.compile(r"cuda[:(](\d{1,3})\)?")


def trainer_words(value: Any) -> object:
    """Return a trainer's or a job's settings in our words.

    `method: "dpo"` names an objective: it becomes `stage: dpo` with the default method, unless a stage is given that
    says otherwise, which stays and is refused. `hyperparams` becomes `hyperparameters`, `lr_scheduler` in it
    `schedule`, and `checkpoint_dir` the folder of `engine.mirror`. Anything else passes unchanged, and so does a key
    whose own word is given as well: it is refused as unknown.
    """
    if not isinstance(value, Mapping):
        return value
    settings = rename_keys(value, RENAMED)
    method = settings.get("method")
    stage = OBJECTIVES.get(method.lower()) if isinstance(method, str) else None
    if stage is not None and ("stage" not in settings or read_variant(settings, "stage")["type"] == stage):
        settings |= {"stage": settings.get("stage", stage), "method": USUAL["method"]}
    if isinstance(hyper := settings.get("hyperparameters"), Mapping):
        settings["hyperparameters"] = inner = rename_keys(hyper, HYPERPARAMETERS)
        if "lr_scheduler" in hyper and isinstance(schedule := inner.get("schedule"), str):
            inner["schedule"] = normalize_word(schedule)
    folder, engine = settings.get("checkpoint_dir"), settings.get("engine", {})
    if isinstance(folder, str) and isinstance(engine, Mapping) and "mirror" not in engine:
        settings["engine"] = {**engine, "mirror": f"file:{quote(folder)}"}
        del settings["checkpoint_dir"]
    return move_settings(gather_islands(settings))


def gather_islands(settings: dict[str, object]) -> dict[str, object]:
    """Return the same with `diloco_inner_steps` and its like in `launch.diloco`, from next to `launch` or from within.

    `strategy: diloco` is DiLoCo over ddp. A setting whose own word is given as well stays, and is refused as unknown.
    """
    launch = settings.get("launch", {})
    if not isinstance(launch, Mapping):
        return settings
    flat = {f"diloco_{name}": name for name in ISLAND_SETTINGS}
    moved = {flat[key]: value for group in (settings, launch) for key, value in group.items() if key in flat}
    named = launch.get("strategy") == "diloco"
    diloco = launch.get("diloco") or {}
    if not (moved or named) or not isinstance(diloco, Mapping) or moved.keys() & diloco.keys():
        return settings
    rest = {key: value for key, value in launch.items() if key not in flat and not (named and key == "strategy")}
    kept = {key: value for key, value in settings.items() if key not in flat}
    return {**kept, "launch": {**rest, "diloco": {**diloco, **moved}}}


def job_words(body: Any) -> Any:
    """Return a job's body in our words: those of its trainer, `adapter: "LoRA"` and `alignment: "DPO"`, and its tenant.

    `tenant_id` of the data set is the tenant of the job: its own folder is one of those that the data may be in.
    """
    if not isinstance(body, Mapping):
        return body
    settings = provider_words(body)
    adapter, alignment, dataset = settings.get("adapter"), settings.get("alignment"), settings.get("dataset")
    if isinstance(adapter, str) and adapter.lower() in ADAPTERS and "method" not in settings:
        settings["method"] = settings.pop("adapter").lower()
    if isinstance(alignment, str) and alignment.lower() in ALIGNMENTS and "stage" not in settings:
        settings["stage"] = ALIGNMENTS[settings.pop("alignment").lower()]
    if (
        isinstance(dataset, Mapping)
        and "tenant_id" in dataset
        and settings.get("tenant") in (None, dataset["tenant_id"])
    ):
        settings["dataset"] = {key: value for key, value in dataset.items() if key != "tenant_id"}
        settings["tenant"] = dataset["tenant_id"]
    return trainer_words(settings)


def chain_words(body: Any) -> object:
    """Return a chain in our words: `tenant_id` of rows on a data worker is the tenant of the chain."""
    nodes = body.get("nodes") if isinstance(body, Mapping) else None
    if not isinstance(nodes, list | tuple):
        return body
    chain = {**body, "nodes": list(nodes)}
    for index, node in enumerate(nodes):
        config = node.get("config") if isinstance(node, Mapping) else None
        if not (isinstance(config, Mapping) and config.get("data_worker") and "tenant_id" in config):
            continue
        if chain.get("tenant") in (None, config["tenant_id"]):
            chain["tenant"] = config["tenant_id"]
            kept = {key: value for key, value in config.items() if key != "tenant_id"}
            chain["nodes"][index] = {**node, "config": kept}
    return chain


def provider_words(body: JsonMapping) -> JsonObject:
    """Return the body of a job at a cloud provider in our words: `provider`, `model`, two files of rows, `suffix`."""
    settings = dict(body)
    if "training_file" not in settings or "dataset" in settings:
        return settings
    dataset: JsonObject = {"path": settings.pop("training_file")}
    if (validation := settings.pop("validation_file", None)) is not None:
        dataset["heldout"] = {"path": validation}
        settings.setdefault("eval", {"set": "heldout"})
    settings["dataset"] = dataset
    if isinstance(provider := settings.get("provider"), str) and "backend" not in settings:
        settings["backend"] = provider.lower()
        del settings["provider"]
    if "model" in settings and "base_model" not in settings:
        settings["base_model"] = settings.pop("model")
    if (suffix := settings.pop("suffix", None)) is not None:
        service = settings.get("service")
        settings["service"] = {**(service if isinstance(service, Mapping) else {}), "suffix": suffix}
    return settings


def night_words(body: Any) -> object:
    """Return the training of a night in our words: `preference` has the settings of its dpo buckets."""
    if not isinstance(body, Mapping) or not isinstance(preference := body.get("preference"), Mapping):
        return body
    moved = {old: value for key, value in preference.items() if (old := f"preference.{key}") in MOVED}
    written = any(not is_default(body, old, value) for old, value in moved.items())
    return {**body, "stage": Stage.DPO.value} if written and read_variant(body, "stage")["type"] == "sft" else body


# Settings that moved into their stage or method


def move_settings(stored: JsonMapping) -> dict[str, object]:
    """Return the same with the settings of the groups of earlier versions inside their stage and method.

    One that does not belong there is dropped where it has its default, as a stored spec writes it out. Raises
    `PydanticCustomError` for another value of it, and for one that contradicts what is there.
    """
    moved_settings = {key: value for key, value in stored.items() if key not in EMPTIED or value is not None}
    for group in dict.fromkeys(old.partition(".")[0] for old in MOVED):
        settings = moved_settings.get(group)
        if not isinstance(settings, Mapping):
            continue
        for key, value in settings.items():
            old = f"{group}.{key}"
            if old in MOVED:
                move_setting(moved_settings, old, value)
            elif group in EMPTIED:  # a misspelt one, which is refused there
                moved_settings[EMPTIED[group]] = {**read_variant(moved_settings, EMPTIED[group]), key: value}
        moved_settings[group] = {key: value for key, value in settings.items() if f"{group}.{key}" not in MOVED}
        if group in EMPTIED:
            del moved_settings[group]
    return moved_settings


def move_setting(settings: JsonObject, old: str, value: Any) -> None:
    axis, _, name = MOVED[old].partition(".")
    variant, readers = read_variant(settings, axis), find_readers(old)
    if variant["type"] in readers:
        if variant.get(name, value) != value:
            args = {"old": old, "new": MOVED[old], "was": value, "now": variant[name], "instead": f"Remove {old}."}
            raise PydanticCustomError("contradiction", "{old} is {was}, and {new} is {now}", args)
        settings[axis] = {**variant, name: value}
    elif variant["type"] in list(VARIANTS[axis]) and not is_default(settings, old, value):
        args = {
            "old": old,
            "readers": f"{axis} {', '.join(readers)}",
            "instead": f"Remove {old}, or use {axis} {next(iter(readers))}.",
            "code": "E-SPEC-KEY",
        }
        raise PydanticCustomError("unread_setting", "Only {readers} reads {old}; here it would be ignored", args)


def read_variant(settings: JsonMapping, axis: str) -> dict[str, object]:
    """Return the value of an axis as a mapping with a `type`."""
    variant = settings.get(axis) or USUAL[axis]
    variant = variant.model_dump(exclude_unset=True) if isinstance(variant, Variant) else variant
    return {"type": USUAL[axis], **variant} if isinstance(variant, Mapping) else {"type": variant}


def find_readers(old: str) -> dict[AxisValue, type[Variant]]:
    """Return the values of the axis that have a setting of an earlier group, with their models."""
    axis, _, name = MOVED[old].partition(".")
    types = READERS.get(old.partition(".")[0], tuple(VARIANTS[axis]))
    return {value: VARIANTS[axis][value] for value in types if name in VARIANTS[axis][value].model_fields}


def is_default(settings: JsonMapping, old: str, value: object) -> bool:
    """Return whether a setting is as an earlier version left it or wrote it out."""
    group, _, name = old.partition(".")
    usual = [next(iter(find_readers(old).values())).model_fields[MOVED[old].partition(".")[2]].default]
    if group == "lora":
        profile, rank = settings[group].get("profile", "platform"), settings[group].get("rank")
        usual.append(ADAPTER_PROFILES.get(profile, {}).get(name))
        usual.append(2.0 * rank if name == "alpha" and isinstance(rank, int) else None)
    return (tuple(value) if isinstance(value, list) else value) in usual


def spell_out(settings: JsonMapping) -> JsonObject:
    """Return the same with every stage and method as a mapping with its `type`."""
    return {**settings, **{axis: read_variant(settings, axis) for axis in VARIANTS.keys() & settings.keys()}}


def group_settings(config: JsonMapping) -> dict[str, object]:
    """Return a complete config with the settings in the groups of earlier versions, which is what scripts read.

    Settings of another stage or method have their default there, but for one that has none.
    """
    settings = {**config, **{axis: config[axis]["type"] for axis in VARIANTS}, **{group: {} for group in EMPTIED}}
    profile = ADAPTER_PROFILES[config["method"].get("profile", "platform")]
    for old, new in MOVED.items():
        (group, _, key), (axis, _, name) = old.partition("."), new.partition(".")
        readers = find_readers(old)
        if settings[axis] in readers:
            value = config[axis][name]
        else:  # earlier versions wrote out the defaults of what is not read
            kind, model = next(iter(readers.items()))
            usual = model(type=kind).model_dump(mode="json") | (profile if group == "lora" else {})
            value = usual[name]
        settings[group] = {**settings[group], key: value}
    return {**settings, "rollouts": settings["rollouts"] if settings["stage"] == Stage.GRPO else None}


def list_deprecated(value: object, where: str = "") -> Iterator[str]:
    """Yield a line for each setting in a plain value, at any depth, that is where earlier versions had it."""
    if isinstance(value, Mapping):
        for old, new in MOVED.items():
            group, _, name = old.partition(".")
            if isinstance(value.get(group), Mapping) and name in value[group]:
                yield f"{where}{old} is deprecated: write {where}{new}."
        for key, item in value.items():
            yield from list_deprecated(item, f"{where}{key}.")
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from list_deprecated(item, f"{where}{at}.")


def rename_keys(settings: JsonMapping, names: Mapping[str, str]) -> dict[str, object]:
    """Return the same with our names, but for a key whose own name is settings as well."""
    return {names.get(key, key) if names.get(key) not in settings else key: value for key, value in settings.items()}


def normalize_word(word: str) -> str:
    """Return a name of an enumeration, such as `OneCycle`, as we write it."""
    return INNER_CAPITAL.sub("_", word).lower()


def device_word(value: Any) -> object:
    """Return a device in our words: `cuda:0`, `Cuda(0)`, `metal` and `wgpu` are read; a GPU's number above 0 stays."""
    if not isinstance(value, str):
        return value
    word = value.strip().lower()
    return "cuda" if parse_gpu(word) == 0 else DEVICES.get(word, word)


def parse_gpu(word: str) -> int | None:
    """Return the number in `cuda:1`; None where there is none."""
    match = CUDA_NUMBER.fullmatch(word)
    return int(match[1]) if match else None
