"""Adapters as files and inside a model: put one in, read one, compare two, write one.

Names in a saved adapter: `base_model.model.<module>.lora_A.weight` (rank, in) and `.lora_B.weight` (out, rank).
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import peft
import torch
from peft import PeftConfig, PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer

from trainyard.errors import Corrupt, InvalidInput, NotFound, TrainyardError
from trainyard.stores.models import check_adapter_folder
from trainyard.train.methods.contract import Head
from trainyard.train.methods.guarding import base_digests, require_unchanged_base
from trainyard.train.methods.loading import ADAPTER_WEIGHTS
from trainyard.train.methods.lora import TASKS
from trainyard.train.methods.sums import PREFIX, Weights
from trainyard.train.methods.targets import full_parameters
from trainyard.train.model.head import evaluating

NEW, EARLIER, REFERENCE = "default", "earlier", "reference"
"""Names of the adapters in a model; PEFT saves `default` without a folder of its own."""
EMBEDDINGS = ("embed_tokens", "lm_head", "wte", "base_layer")
TOLERANCE = 1e-3
"""Most that a logit may move in float32; sums in another order move logits of usual size by some 1e-5."""
PROBE_SHAPE = (4, 64)
"""Rows and tokens of the comparison."""
SHAPE = ("r", "lora_alpha", "lora_dropout", "oft_block_size", "use_rslora", "layers_to_transform")
"""Fields of its shape that a continued adapter keeps, whatever the settings say; targets are compared separately."""


def inject(model: Any, config: PeftConfig, name: str) -> PeftModel:
    """Return the model with one more adapter. Raises `InvalidInput` (`E-TRAINABLE`) when PEFT finds no place for it."""
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
    """Return the config of a saved adapter, for the task of the head. A frozen adapter drops nothing out.

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
    """Return the model with a saved adapter under a name. Raises `Corrupt` (`E-ADAPTER-INVALID`) when weights are
    missing.

    A module that the adapter never had, such as the score of a reward model, keeps its first values. Raises
    `TrainyardError` (`E-BASE-CHANGED`) when loading changed a weight of the base: 0.1 s a gigabyte to find out.
    """
    before, whole = base_digests(model), set(config.modules_to_save or ())
    check_adapter_folder(folder, [module for module, _ in model.named_modules()])
    if getattr(config, "target_parameters", None):  # adapters that compute together have to name them alike
        config.target_parameters = full_parameters(model, config.target_parameters)
    model = inject(model, config, name)
    fill_adapter(model, folder, whole, name, device)
    require_unchanged_base(before, model, folder.name)
    return model


def fill_adapter(model: PeftModel, folder: Path, whole: set[str], name: str, device: str) -> None:
    """Set the weights of an adapter that is in the model to the saved ones, which contain the modules of `whole`.

    Raises `Corrupt` (`E-ADAPTER-INVALID`).
    """
    saved = peft.load_peft_weights(str(folder), device=device)
    expected = peft.get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    new = {key: value for key, value in expected.items() if key not in saved and is_new_module(key, whole, model)}
    wrong = [key for key in expected if key not in new and find_shape(saved, key) != find_shape(expected, key)]
    # PEFT writes weights of the base along when an adapter sits on an embedding.
    wrong += [key for key in saved if key not in expected and key.split(".")[-2] not in EMBEDDINGS]
    if wrong:
        raise Corrupt(
            f"The adapter in {folder} does not match its own config: {wrong[0]} ({len(wrong)} in all).",
            why="Weights are missing, have another shape or belong to another model.",
            do="Train the adapter again, or take another version of it.",
            code="E-ADAPTER-INVALID",
        )
    peft.set_peft_model_state_dict(model, {**new, **saved}, adapter_name=name)


def find_shape(weights: Weights, key: str) -> torch.Size | None:
    return weights[key].shape if key in weights else None


def is_new_module(key: str, whole_modules: set[str], model: PeftModel) -> bool:
    """Return whether a weight belongs to a whole module that PEFT added for the task."""
    parts = key.split(".")
    return tuner(model).prefix not in key and not any(module in parts for module in whole_modules)


def tuner(model: PeftModel) -> Any:
    """Return PEFT's tuner of a model, which can activate several adapters at a time."""
    return model.base_model


def write_into_base(model: PeftModel) -> Any:
    """Return the base with the adapter summed into its weights: the same function as base and adapter.

    Raises `TrainyardError` (`E-MERGE`) when a logit moved by more than `TOLERANCE`, and for NaN.
    """
    require_own_weights(model)
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


def require_own_weights(model: PeftModel) -> None:
    """Raise `TrainyardError` (`E-MERGE`) where two adapted layers share their weights: a sum would add both to both."""
    owners: dict[int, str] = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, BaseTunerLayer):
            continue
        weight = getattr(layer.get_base_layer(), getattr(layer, "parameter_name", "weight"), None)
        if weight is not None and (other := owners.setdefault(id(weight), name)) != name:
            layers = f"{name.removeprefix(PREFIX)} and {other.removeprefix(PREFIX)}"
            raise make_diverged_error(f"{layers} share their weights.", "The adapters of both would be added to both.")


def probe_logits(model: Any, shape: tuple[int, int] = PROBE_SHAPE) -> torch.Tensor:
    """Logits of fixed token ids, spread over the vocabulary."""
    vocabulary = model.config.get_text_config().vocab_size
    ids_BT = torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(0)).to(model.device)
    with evaluating(model):
        logits: torch.Tensor = model(input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT)).logits
    return logits.float()


def make_diverged_error(message: str, why: str = "A merged model would be broken.") -> TrainyardError:
    return TrainyardError(
        message,
        why=why,
        do="Serve the adapter with its base, or train it again with a lower learning rate.",
        code="E-MERGE",
    )


def require_same_kind(config: PeftConfig, requested: PeftConfig) -> None:
    """A continued adapter stays what it is. Raises `InvalidInput` (`E-ADAPTER-MISMATCH`)."""
    old, new = kind(config), kind(requested)
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


def warn_about_shape(config: Any, requested: Any) -> list[str]:
    """Return a warning for each setting that the earlier adapter overrules."""
    return [
        f"The earlier adapter has {name} {old}, and keeps it; the settings say {new}."
        for name in SHAPE
        if (old := getattr(config, name, None)) != (new := getattr(requested, name, None))
    ]


def require_sum(*configs: Any) -> None:
    """Adapters that are saved as one have to be sums of low-rank matrices, with no whole module in common.

    Raises `InvalidInput` (`E-ADAPTER-MISMATCH`).
    """
    other = [kind(config) for config in configs if kind(config) != "lora"]
    other += [f"lora with bias {config.bias}" for config in configs if getattr(config, "bias", "none") != "none"]
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


def save_adapter(model: PeftModel, base: str, folder: Path) -> None:
    """Write the trained adapter."""
    config: Any = model.peft_config[NEW]
    config.base_model_name_or_path = base
    # The vocabulary never grows here, so the base's embeddings are not part of an adapter.
    model.save_pretrained(str(folder), safe_serialization=True, selected_adapters=[NEW], save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
