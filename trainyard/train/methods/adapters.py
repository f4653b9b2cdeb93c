"""Adapters as files and inside a model: put one in, read one, compare two, write one.

Names in a saved adapter: `base_model.model.<module>.lora_A.weight` (rank, in) and `.lora_B.weight` (out, rank).
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import peft
import torch
from peft import LoraConfig, PeftConfig, PeftModel
from safetensors.torch import load_file, save_file

from trainyard.errors import Corrupt, InvalidInput, NotFound, TrainyardError
from trainyard.stores.models import check_adapter_folder
from trainyard.train.head import evaluating
from trainyard.train.methods.contract import Head
from trainyard.train.methods.guarding import base_digests, require_unchanged_base
from trainyard.train.methods.loading import ADAPTER_WEIGHTS
from trainyard.train.methods.lora import TASKS

NEW, EARLIER, REFERENCE = "default", "earlier", "reference"
"""Names of the adapters in a model; PEFT saves `default` without a folder of its own."""
Weights = dict[str, torch.Tensor]
EMBEDDINGS = ("embed_tokens", "lm_head", "wte", "base_layer")
PREFIX = "base_model.model."
FACTORS = (".lora_A.weight", ".lora_B.weight")
TOLERANCE = 1e-3
"""Most that a logit may move in float32; sums in another order move logits of usual size by some 1e-5."""
PROBE_SHAPE = (4, 64)
"""Rows and tokens of the comparison."""
SHAPE = ("r", "lora_alpha", "lora_dropout", "oft_block_size", "use_rslora", "layers_to_transform")
"""Fields of its shape that a continued adapter keeps, whatever the settings say; targets are compared separately."""


def inject(model: Any, config: PeftConfig, name: str) -> PeftModel:
    """The model with one more adapter. Raises `InvalidInput` (`E-TRAINABLE`) when PEFT finds no place for it."""
    try:
        with warnings.catch_warnings():
            # PEFT asks transformers for a property by its old name.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            if isinstance(model, PeftModel):
                # Not the method of its class, which gives every adapter of a reward model a score of its own.
                PeftModel.add_adapter(model, name, config)
                return model
            return peft.get_peft_model(model, config, adapter_name=name)
    except ValueError as error:
        raise InvalidInput(
            "The adapter does not fit the model.",
            why=str(error).splitlines()[0],
            do="Use lora.target_modules: all-linear, or name modules that the model has.",
            code="E-TRAINABLE",
        ) from error


def read_config(folder: Path, head: Head, *, trainable: bool) -> Any:
    """The config of a saved adapter, for the task of the head. A frozen adapter drops nothing out.

    Raises `NotFound` (`E-ADAPTER-NOT-FOUND`), and what `check_adapter_folder` raises.
    """
    if not (folder / "adapter_config.json").is_file() or not (folder / ADAPTER_WEIGHTS).is_file():
        raise NotFound(
            f"There is no adapter in {folder}.",
            why=f"An adapter is a folder with adapter_config.json and {ADAPTER_WEIGHTS}.",
            do="Name the folder of a trained adapter.",
            code="E-ADAPTER-NOT-FOUND",
        )
    check_adapter_folder(folder)
    config: Any = PeftConfig.from_pretrained(str(folder))
    config.base_model_name_or_path = None  # folders move; `require_same_base` checks that it is the same base
    config.task_type, config.inference_mode = TASKS[head], not trainable
    if not trainable:
        for dropout in ("lora_dropout", "module_dropout"):
            if hasattr(config, dropout):
                setattr(config, dropout, 0.0)
    return config


def load_adapter(model: Any, folder: Path, config: Any, name: str, device: str) -> PeftModel:
    """The model with a saved adapter under a name. Raises `Corrupt` (`E-ADAPTER-INVALID`) when weights are missing.

    A module that the adapter never had, such as the score of a reward model, keeps its first values. Raises
    `TrainyardError` (`E-BASE-CHANGED`) when loading changed a weight of the base: 0.1 s a gigabyte to find out.
    """
    before = base_digests(model)
    known = set(config.modules_to_save or ())
    check_adapter_folder(folder, [module for module, _ in model.named_modules()])
    model = inject(model, config, name)
    saved = peft.load_peft_weights(str(folder), device=device)
    wanted = peft.get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    new = {key: value for key, value in wanted.items() if key not in saved and is_new_module(key, known, model)}
    wrong = [key for key in wanted if key not in new and shape_of(saved, key) != shape_of(wanted, key)]
    # PEFT writes weights of the base along when an adapter sits on an embedding.
    wrong += [key for key in saved if key not in wanted and key.split(".")[-2] not in EMBEDDINGS]
    if wrong:
        raise Corrupt(
            f"The adapter in {folder} does not match its own config: {wrong[0]} ({len(wrong)} in all).",
            why="Weights are missing, have another shape or belong to another model.",
            do="Train the adapter again, or take another version of it.",
            code="E-ADAPTER-INVALID",
        )
    peft.set_peft_model_state_dict(model, {**new, **saved}, adapter_name=name)
    require_unchanged_base(before, model, folder.name)
    return model


def shape_of(weights: Weights, key: str) -> torch.Size | None:
    return weights[key].shape if key in weights else None


def is_new_module(key: str, known: set[str], model: PeftModel) -> bool:
    """Whether a weight belongs to a whole module that PEFT added for the task."""
    parts = key.split(".")
    return tuner(model).prefix not in key and not any(module in parts for module in known)


def tuner(model: PeftModel) -> Any:
    """Return PEFT's tuner of a model, which can activate several adapters at a time."""
    return model.base_model


def written_in(model: PeftModel) -> Any:
    """The base with the adapter summed into its weights, which says what both said before.

    Raises `TrainyardError` (`E-MERGE`) when a logit moved by more than `TOLERANCE`, and for NaN.
    """
    before_BTV = probe_logits(model)
    try:
        whole = model.merge_and_unload(safe_merge=True)
    except ValueError as error:
        raise make_diverged_error("The adapter contains values that are not finite.") from error
    divergence = float((before_BTV - probe_logits(whole)).abs().max())
    if not divergence <= TOLERANCE:  # also when it is not a number
        raise make_diverged_error(
            f"The merged model differs from base plus adapter: a logit moved by {divergence:.3g}.",
            f"At most {TOLERANCE:.3g} is allowed.",
        )
    return whole


def probe_logits(model: Any) -> torch.Tensor:
    """Logits of fixed token ids, spread over the vocabulary."""
    vocabulary = model.config.get_text_config().vocab_size
    ids_BT = torch.randint(vocabulary, PROBE_SHAPE, generator=torch.Generator().manual_seed(0))
    with evaluating(model):
        logits: torch.Tensor = model(input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT)).logits
    return logits.float()


def make_diverged_error(what: str, why: str = "A merged model would be broken.") -> TrainyardError:
    return TrainyardError(
        what,
        why=why,
        do="Serve the adapter with its base, or train it again with a lower learning rate.",
        code="E-MERGE",
    )


def require_same_kind(config: PeftConfig, wanted: PeftConfig) -> None:
    """A continued adapter stays what it is. Raises `InvalidInput` (`E-ADAPTER-MISMATCH`)."""
    old, new = kind(config), kind(wanted)
    if old != new:
        raise InvalidInput(
            f"The earlier adapter is of kind {old}, and the method makes one of kind {new}.",
            why="An adapter that is continued keeps its kind.",
            do="Use the method of the earlier adapter, or `adapter: merge` with two low-rank adapters.",
            code="E-ADAPTER-MISMATCH",
        )


def kind(config: PeftConfig) -> str:
    """lora, dora or oft."""
    return "dora" if getattr(config, "use_dora", False) else str(getattr(config.peft_type, "value", "")).lower()


def other_shape(config: Any, wanted: Any) -> list[str]:
    """A warning for each setting that the earlier adapter overrules."""
    return [
        f"The earlier adapter has {name} {old}, and keeps it; the settings say {new}."
        for name in SHAPE
        if (old := getattr(config, name, None)) != (new := getattr(wanted, name, None))
    ]


def require_sum(*configs: Any) -> None:
    """Adapters that are saved as one have to be sums of low-rank matrices, with no whole module in common.

    Raises `InvalidInput` (`E-ADAPTER-MISMATCH`).
    """
    other = [kind(config) for config in configs if kind(config) != "lora"]
    if other:
        raise InvalidInput(
            f"An adapter of kind {other[0]} and another one cannot be written as one adapter.",
            why="Only plain low-rank adapters are sums; the result would need both to be loaded in order.",
            do="Use `adapter: continue`, or method lora in both trainers.",
            code="E-ADAPTER-MISMATCH",
        )
    whole = [set(config.modules_to_save or ()) for config in configs]
    shared = set.intersection(*whole) if whole else set()
    if shared:
        raise InvalidInput(
            f"Both adapters contain the whole module {sorted(shared)[0]!r}.",
            why="One of the two would be lost.",
            do="Leave it out of lora.modules_to_save here, or use `adapter: continue`.",
            code="E-ADAPTER-MISMATCH",
        )


# Writing


def save_adapter(model: PeftModel, base: str, earlier: Path | None, folder: Path) -> None:
    """Write the trained adapter; with `earlier`, the sum of both as one adapter."""
    config: Any = model.peft_config[NEW]
    config.base_model_name_or_path = base
    # The vocabulary never grows here, so the base's embeddings are not part of an adapter.
    model.save_pretrained(str(folder), safe_serialization=True, selected_adapters=[NEW], save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    if earlier is not None:
        write_sum(earlier, folder, base)


def write_sum(earlier: Path, folder: Path, base: str) -> None:
    """Replace the adapter of `folder` by one that does what both do: ranks side by side, scales inside B.

    B A = [s1 B1, s2 B2] [A1; A2]; a module that only one of them adapts gets zeros for the other, so that every module
    has the same rank, as servers expect.
    """
    configs = [LoraConfig.from_pretrained(str(place)) for place in (earlier, folder)]
    parts = [load_file(place / ADAPTER_WEIGHTS) for place in (earlier, folder)]
    modules = sorted({name for part in parts for name in factors(part)})
    ranks = [config.r for config in configs]
    weights = {name: value for part in parts for name, value in part.items() if not name.endswith(FACTORS)}
    for module in modules:
        given = [factors(part).get(module) for part in parts]
        ends = next(pair for pair in given if pair is not None)
        pairs = [
            scaled(pair, config, module) if pair is not None else zeros(ends, rank)
            for pair, config, rank in zip(given, configs, ranks, strict=True)
        ]
        weights[f"{module}.lora_A.weight"] = torch.cat([a for a, _ in pairs], dim=0).contiguous()
        weights[f"{module}.lora_B.weight"] = torch.cat([b for _, b in pairs], dim=1).contiguous()
    save_file(weights, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    sum_config(configs, modules, base).save_pretrained(str(folder))


def write_difference(initial: Weights, folder: Path, base: str) -> None:
    """Replace the adapter of `folder` by what it learned: the trained factors and, subtracted, those it began with.

    B A - B0 A0 = [s B, -s B0] [A; A0], of twice the rank. While it trained, the base was W - s B0 A0 (PiSSA) or its
    quantised form, which B0 A0 corrects (LoftQ); with this adapter it is the base as its files have it.
    """
    config = LoraConfig.from_pretrained(str(folder))
    weights = load_file(folder / ADAPTER_WEIGHTS)
    trained, begun = factors(weights), factors(initial)
    for module, pair in trained.items():
        a, b = scaled(pair, config, module)
        a0, b0 = scaled(begun[module], config, module)
        weights[f"{module}.lora_A.weight"] = torch.cat([a, a0]).contiguous()
        weights[f"{module}.lora_B.weight"] = torch.cat([b, -b0], dim=1).contiguous()
    save_file(weights, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    sum_config([config, config], sorted(trained), base).save_pretrained(str(folder))


def factors(part: Weights) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Module -> (A, B)."""
    names = [name.removesuffix(".lora_A.weight") for name in part if name.endswith(".lora_A.weight")]
    return {name: (part[f"{name}.lora_A.weight"], part[f"{name}.lora_B.weight"]) for name in names}


def scaled(
    pair: tuple[torch.Tensor, torch.Tensor], config: LoraConfig, module: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(A, scale x B)"""
    rank = pair[0].shape[0]
    scale = config.lora_alpha / (math.sqrt(rank) if config.use_rslora else rank)
    return pair[0].float(), pair[1].float() * scale


def zeros(like: tuple[torch.Tensor, torch.Tensor], rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(rank, like[0].shape[1]), torch.zeros(like[1].shape[0], rank)


def sum_config(configs: list[LoraConfig], modules: list[str], base: str) -> LoraConfig:
    """The config of the summed adapter, with a scale of 1; modules by their full names, as PEFT writes `all-linear`."""
    rank = sum(config.r for config in configs)
    whole = sorted({module for config in configs for module in config.modules_to_save or ()})
    return LoraConfig(
        task_type=configs[-1].task_type,
        base_model_name_or_path=base,
        r=rank,
        lora_alpha=rank,
        lora_dropout=configs[-1].lora_dropout,
        target_modules=[module.removeprefix(PREFIX) for module in modules],
        modules_to_save=whole or None,
        inference_mode=True,
    )
