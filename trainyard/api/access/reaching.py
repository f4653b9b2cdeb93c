"""What a caller over a network may name: templates, stored chains, chains as they are, models in the data roots.

A path of a data source is resolved inside the data roots wherever a chain runs. A model may be in any folder for the
user of this machine; a caller over a network names one of the Hub, of this home, of a folder in the data roots, or the
default base model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainyard.data.paths import data_roots, is_inside, refuse_path
from trainyard.errors import Denied, InvalidInput, NotFound
from trainyard.settings import Settings
from trainyard.stores.models import model_folder

MODEL_FIELDS = frozenset({"base_model", "model", "teacher", "tokenizer", "judge"})
"""Last names of fields that may name a model's folder."""


def require_reachable(texts: Iterable[tuple[str, str]], settings: Settings, tenant: str) -> None:
    """Refuse a model's folder outside of what chains may read. Raises `Refused` (`R-PATH-ROOT`)."""
    for place, text in texts:
        if place.rpartition(".")[2] in MODEL_FIELDS:
            require_model(place, text, settings, tenant)


def require_model(place: str, text: str, settings: Settings, tenant: str) -> None:
    roots = (*data_roots(settings, tenant or None), settings.models)
    looks_like_path = text.startswith(("/", "~", ".")) or ".." in Path(text).parts or "\\" in text
    folder = model_folder(text, settings) if len(text) <= 4096 else None
    if folder is None and not looks_like_path:
        return
    if folder is not None and folder == model_folder(settings.default_base_model, settings):
        return  # what a chain without a base model takes
    if folder is None or not is_inside(folder, roots):
        raise refuse_path(text, roots, place, "is not a model's folder in the data roots")


def require_template(target: str | Mapping[str, Any], templates: tuple[str, ...]) -> None:
    """Refuse the file of a chain, which only the user of this machine may name; it is not looked for.

    Raises `Denied` (`E-LOCAL`), and `NotFound` (`E-PARAMETER`) for a name that is neither.
    """
    if not isinstance(target, str) or target in templates:
        return
    do = "Give the chain itself, or store it by `chains create` and run it by its id."
    why = f"Templates are {', '.join(templates)}." if templates else ""
    if set(target) & set("./\\~"):
        what = f"{target[:100]!r} is a file, which can only be named on the machine itself."
        raise Denied(what, why=why, do=do, code="E-LOCAL")
    raise NotFound(f"There is no template {target[:100]!r}.", why=why, do=do, code="E-PARAMETER")


def refuse_whole_chain(target: str | Mapping[str, Any]) -> None:
    """Refuse to run what was not stored. Raises `InvalidInput` (`E-PARAMETER`)."""
    if not isinstance(target, str):
        raise InvalidInput(
            "A run takes a template's name or an ended run, not a whole chain.",
            why="What runs over a network is stored first, so that everybody can see later what it was.",
            do="Store the chain by `chains create`, then run it by `chains run`.", code="E-PARAMETER",
        )  # fmt: skip
