"""Adapter versions on the data worker: one repository for a role, one commit and one tag for a version.

`trainyard adapters pull`, `AutoPeftModel.from_pretrained("acme/coder", revision="v3")` and vLLM read them by the wire
of the Hub. A version that has its tag is not sent again.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from trainyard.errors import NotFound
from trainyard.serve.data_card import write_cards
from trainyard.serve.publication import stage
from trainyard.serve.signatures import sign_published
from trainyard.settings import Settings
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.repositories.client import open_data_workers

KIND = "models"


def upload_version(version: AdapterVersion, registry: AdapterRegistry, settings: Settings) -> str | None:
    """Upload a version where the setting `data_worker_uploads` says so, and return its commit; None where it does not.

    Raises `Unavailable` (`E-URL`) where no data worker answers: the version stays registered, and the same run uploads
    it when it is tried again.
    """
    if "adapters" not in settings.data_worker_uploads:
        return None
    workers, repository, tag = open_data_workers(settings), f"{version.tenant}/{version.role}", f"v{version.version}"
    try:
        return workers.find_commit(KIND, repository, tag)
    except NotFound:
        with TemporaryDirectory(dir=registry.root.parent, prefix=".upload-") as work:
            folder = Path(work) / "version"
            folder.mkdir()
            stage(version, registry, folder)
            sign_published(folder, settings)  # without the cards, which are not part of the version
            for name, text in write_cards(version, registry.path(version), settings.home, repository).items():
                (folder / name).write_text(text, encoding="utf-8")
            files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
            commit = workers.upload_folder(KIND, repository, files, f"Publish {version.name}")
        workers.tag(KIND, repository, tag, commit)
        return commit
