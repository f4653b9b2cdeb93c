"""The techniques of latent reasoning by name, and what works with any of them: attach, save and load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trainyard.errors import Corrupt, Reason, Refused
from trainyard.spec.axes.latent import LATENT_FILE, AnyLatent, Latent, LatentSettings
from trainyard.stores.whole import file_sha256
from trainyard.train.latent import rollout
from trainyard.train.latent.coconut import COCONUT
from trainyard.train.latent.codi import CODI
from trainyard.train.latent.contract import LatentModule, LatentSpec
from trainyard.train.latent.dsa.technique import DSA
from trainyard.train.latent.hidden_cot import HIDDEN_COT
from trainyard.train.latent.pause import PAUSE
from trainyard.train.latent.quiet_star import QUIET_STAR
from trainyard.train.model.sampling import LATENT

TECHNIQUES: dict[Latent, LatentSpec] = {
    Latent.QUIET_STAR: QUIET_STAR,
    Latent.DSA: DSA,
    Latent.PAUSE: PAUSE,
    Latent.COCONUT: COCONUT,
    Latent.HIDDEN_COT: HIDDEN_COT,
    Latent.CODI: CODI,
}
SETTINGS_FILE, WEIGHTS_FILE = LATENT_FILE, "latent.safetensors"
"""What a technique leaves next to the weights that were trained with it."""


def prepare(model: Any, tokenizer: Any, settings: LatentSettings, *, seed: int = 0) -> LatentModule:
    """Return the own weights of a technique for a model; the same seed gives the same bits."""
    torch.manual_seed(seed)
    return TECHNIQUES[settings.type].prepare(model, tokenizer, settings).to(model.device)


def attach(
    model: Any, tokenizer: Any, settings: LatentSettings, *, seed: int, earlier: Path | None = None
) -> LatentModule:
    """Make the technique a part of a model, with the weights of an earlier training where there are some.

    Raises as `load`, `InvalidInput` (`E-MODEL-INVALID`) for a model that the technique cannot read, and `Refused`
    (`R-BATCH`) for one that recomputes its activations where the gradients would be wrong.
    """
    if not settings.facts.recomputes and rollout.unwrap_base(model).is_activation_checkpointing:
        because = f"With gradient checkpointing, technique {settings} would compute wrong gradients without a message."
        where = "config.hyperparameters.gradient_checkpointing"
        raise Refused([Reason("R-BATCH", "trainer", where, because, "Remove gradient_checkpointing.")])
    if settings.facts.keeps_cache:
        rollout.require_passes(model)
    module = prepare(model, tokenizer, settings, seed=seed)
    before = read_settings(earlier) if earlier is not None else None
    if earlier is not None and before is not None:
        if before.type is not settings.type:
            raise broken_error(earlier, f"It is {before}, and {settings} is trained.")
        take_weights(module, earlier)
    module.attach(model)
    return module


@contextmanager
def detach_technique(model: Any) -> Iterator[LatentModule | None]:
    """The model without its technique, which is given; None where it has none."""
    module: LatentModule | None = getattr(model, LATENT, None)
    if module is None:
        yield None
        return
    module.detach(model)
    try:
        yield module
    finally:
        module.attach(model)


def save(module: LatentModule, folder: Path) -> None:
    """Write `latent.json` (the settings) and `latent.safetensors` (the own weights), where reading them matters."""
    if not module.settings.facts.thinks:
        return
    weights = {name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}
    save_file(weights, folder / WEIGHTS_FILE)
    record = {"latent": module.settings.model_dump(mode="json"), "weights_sha256": file_sha256(folder / WEIGHTS_FILE)}
    (folder / SETTINGS_FILE).write_bytes(orjson.dumps(record, option=orjson.OPT_INDENT_2))


def load_technique(folder: Path, model: Any, tokenizer: Any) -> LatentModule | None:
    """Return the technique that the weights of a folder were trained with, not attached; None without one.

    Raises `Corrupt` (`E-ADAPTER-INVALID`) for files that are not what `save` wrote, or not of this model.
    """
    settings = read_settings(folder)
    if settings is None:
        return None
    with torch.random.fork_rng(devices=[]):
        module = prepare(model, tokenizer, settings)
    take_weights(module, folder)
    return module.eval()


def read_settings(folder: Path) -> LatentSettings | None:
    """Return the settings of the technique of a folder; None without one. Raises `Corrupt` (`E-ADAPTER-INVALID`)."""
    path = folder / SETTINGS_FILE
    if not path.is_file():
        return None
    try:
        settings: LatentSettings = TypeAdapter(AnyLatent).validate_python(orjson.loads(path.read_bytes())["latent"])
    except (ValueError, KeyError, TypeError) as error:
        raise broken_error(folder, f"{SETTINGS_FILE} does not name a technique: {str(error)[:200]}") from error
    return settings


def take_weights(module: LatentModule, folder: Path) -> None:
    """Load the weights of `folder`. Raises `Corrupt` (`E-ADAPTER-INVALID`)."""
    try:
        module.load_state_dict(load_file(folder / WEIGHTS_FILE))
    except (SafetensorError, RuntimeError, OSError, ValueError) as error:
        raise broken_error(folder, f"{WEIGHTS_FILE} does not fit: {str(error)[:200]}") from error


def broken_error(folder: Path, why: str) -> Corrupt:
    return Corrupt(
        f"The latent technique in {folder.name} cannot be loaded.",
        why=why,
        do="Train it again on this base, or take another version of it.",
        code="E-ADAPTER-INVALID",
    )
