"""Download a model from the Hub before a child process needs it.

The flow process downloads, because it alone has the Hub's token and can say in words what went wrong. A child gets a
folder; the content key of a result then names the files that were downloaded, not a name whose files may change.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from trainyard.errors import NotFound, TrainyardError, Unavailable
from trainyard.settings import Settings
from trainyard.stores.models import TOKENIZER_FILES, ModelSource, resolve_model

FILES = ("*.json", "*.safetensors", "*.jinja", *(name for name in TOKENIZER_FILES if not name.endswith(".json")))
"""What a loader reads: never pickled weights, code or pictures."""


def download_model(name: str, settings: Settings) -> ModelSource:
    """Return the model that a name means, checked; a Hub name that is not on this machine is downloaded first.

    Raises what `resolve_model` raises, `NotFound` (`E-MODEL-NOT-FOUND`) for a name that the Hub does not know or does
    not show to this token, and `Unavailable` (`E-MODEL-DOWNLOAD`) where the Hub cannot be reached.
    """
    source = resolve_model(name, settings)
    if source.path is not None:
        return source
    hub = import_hub()
    try:
        hub.snapshot_download(name, allow_patterns=list(FILES))
    except hub.errors.GatedRepoError as error:
        raise NotFound(
            f"The Hub does not give {name!r} to this account.",
            why="The model is gated: its owner asks every user to accept its terms first.",
            do=f"Accept the terms at https://huggingface.co/{name} and set HF_TOKEN, then run it again.",
            code="E-MODEL-NOT-FOUND",
        ) from error
    except hub.errors.RepositoryNotFoundError as error:
        raise NotFound(
            f"The Hub has no model {name!r}, or does not show it to this account.",
            do="Correct the name, or set HF_TOKEN to an account that may read it.",
            code="E-MODEL-NOT-FOUND",
        ) from error
    except (hub.errors.HfHubHTTPError, hub.errors.LocalEntryNotFoundError, ConnectionError, TimeoutError) as error:
        raise unreachable(name, error) from error
    model = resolve_model(name, settings)
    if model.path is None:
        raise unreachable(name, "the download left no config.json")
    return model


def unreachable(name: str, error: object) -> TrainyardError:
    return Unavailable(
        f"The model {name!r} is not on this machine and could not be downloaded.",
        why=str(error).strip().splitlines()[0],
        do="Run it again when the Hub can be reached, or name a folder with the model.",
        code="E-MODEL-DOWNLOAD",
    )


def import_hub() -> ModuleType:
    """Return the Hub's library, imported only when something has to be downloaded: it costs a tenth of a second."""
    importlib.import_module("huggingface_hub.errors")
    return importlib.import_module("huggingface_hub")
