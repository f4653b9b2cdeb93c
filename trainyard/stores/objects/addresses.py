"""The store at an address: a folder (`file:///srv/weights`) or a bucket (`gs://bucket/prefix`)."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainyard.errors import InvalidInput, Unavailable
from trainyard.stores.objects.local import FolderStore
from trainyard.stores.objects.store import ObjectSettings, ObjectStore, check_name

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


def open_store(address: str, settings: ObjectSettings | None = None) -> ObjectStore:
    """The store at `file:///folder` or `gs://bucket/prefix`.

    Raises `InvalidInput` (`E-OBJECT-STORE`), `Unavailable` (`E-PACKAGE-MISSING`: the gcs extra is not installed).
    """
    parts = urlsplit(address)
    prefix = unquote(parts.path).strip("/")
    if parts.query or parts.fragment:
        raise wrong_address(address, "An address has neither a query nor a fragment.")
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and prefix and ".." not in prefix.split("/"):
        return FolderStore(Path("/") / prefix)
    if parts.scheme == "gs" and _BUCKET.fullmatch(parts.netloc):
        if prefix:
            check_name(prefix)
        return open_bucket(parts.netloc, prefix, settings or ObjectSettings())
    raise wrong_address(address, "Known are file:///folder and gs://bucket/prefix.")


def open_bucket(bucket: str, prefix: str, settings: ObjectSettings) -> ObjectStore:
    """Return the store of a bucket. Raises `Unavailable` (`E-PACKAGE-MISSING`) without the gcs extra."""
    try:
        from trainyard.stores.objects.gcs import GcsStore  # an extra; its client takes a second to import
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("google"):
            raise
        raise Unavailable(
            "The client for gs:// addresses is not installed.",
            why=f"There is no module {error.name}.",
            do="pip install 'trainyard[gcs]', or use a file:/// address.",
            code="E-PACKAGE-MISSING",
        ) from error
    return GcsStore(bucket, prefix, settings)


def wrong_address(address: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"{address!r} is not a valid address of an object store.",
        why=why,
        do="Write file:///srv/weights or gs://bucket/prefix.",
        code="E-OBJECT-STORE",
    )
