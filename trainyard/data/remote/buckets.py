"""Files in buckets: `gs://` through the product's own object store, `s3://` and `az://` through fsspec.

Every file is recorded with what changes with its bytes (generation, version or ETag), and looked up again after it was
downloaded, so a set that changes while it is read is an error and one that changed since is read again. Credentials
are those of the environment, as each client documents; a chain has no field for them. Which buckets chains may read is
the operator's setting `data_buckets`, because those credentials may open others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainyard.data.remote.fetching import FetchJob, LocalSet, Pin, RemoteFile, fetch_folder
from trainyard.errors import (
    Conflict,
    InvalidInput,
    LimitExceeded,
    NotFound,
    Reason,
    Refused,
    TrainyardError,
    Unavailable,
)
from trainyard.loading import load_object
from trainyard.settings import Settings
from trainyard.spec.nodes import SourceSet
from trainyard.spec.packages import BUCKETS
from trainyard.stores.objects.addresses import open_store
from trainyard.stores.objects.store import check_name

MOST_BYTES = 16 << 30
"""Of one set, as of one download from an address."""
MOST_FILES = 100_000
VERSION_KEYS = ("VersionId", "version_id", "ETag", "etag", "LastModified", "last_modified", "created")
"""What file systems call that which changes with the bytes, the best first."""


def is_bucket_set(source: SourceSet) -> bool:
    """Return whether a set is a file or a folder of a bucket."""
    return source.in_bucket


def open_place(source: SourceSet, _settings: Settings) -> BucketPlace:
    """Return the file or the prefix that a set names."""
    assert source.url is not None
    return BucketPlace(source.url)


def fetch_set(job: FetchJob) -> Iterator[LocalSet]:
    """Download the files of the set. Raises what `BucketPlace` raises."""
    return fetch_folder(open_place(job.source, job.settings), job)


@dataclass(frozen=True)
class BucketPlace:
    """A file, or all files below a prefix."""

    address: str
    lasting: bool = False

    def require_access(self, settings: Settings) -> None:
        """Raise `Refused` (`R-SOURCE`) for a bucket that the operator has not listed."""
        if not settings.may_read(self.address):
            because = f"The bucket of {self.address!r} is not one that chains may read with this machine's credentials."
            instead = "Let the operator add it to data_buckets in trainyard.toml."
            raise Refused([Reason("R-SOURCE", None, "config.url", because, instead)])

    def look_up(self) -> tuple[str, Sequence[RemoteFile]]:
        """(digest of the listing, its files by name).

        Raises `NotFound` (`E-DATA-NOT-FOUND`), `LimitExceeded` (`E-DATA-LIMIT`), `Unavailable` (`E-OBJECT-STORE`,
        `E-PACKAGE-MISSING`).
        """
        files = self.list_objects() if self.scheme == "gs" else self.list_files()
        visible = sorted((file for file in files if not is_hidden(file.name)), key=lambda file: file.name)
        if not visible:
            raise NotFound(
                f"There is nothing at {self.address}.", do="Correct the address; a prefix ends at a slash.",
                code="E-DATA-NOT-FOUND",
            )  # fmt: skip
        size = sum(file.size or 0 for file in visible)
        if len(visible) > MOST_FILES or size > MOST_BYTES:
            raise LimitExceeded(
                f"{self.address} has {len(visible):,} files of {size:,} bytes.",
                why=f"At most {MOST_FILES:,} files of {MOST_BYTES:,} bytes are read.", do="Name a part of it.",
                code="E-DATA-LIMIT",
            )  # fmt: skip
        listing = json.dumps([asdict(file) for file in visible])
        return hashlib.sha256(listing.encode()).hexdigest(), visible

    def fetch(self, pin: Pin, file: RemoteFile, folder: Path) -> tuple[Path, Path]:
        """Download one file below `folder`. Raises `Conflict` (`E-OBJECT-CHANGED`) if it is not the listed one."""
        path = folder / "fetched" / check_name(file.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.scheme == "gs":
            above, _, name = self.address.rpartition("/")
            store = open_store(self.address if self.address.endswith("/") or not self.is_file(pin) else above)
            info = store.download(name if self.is_file(pin) else file.name, path)
            version = f"{info.generation}:{info.crc32c}"
        else:
            with asking(self.address):
                system = self.system()
                remote = self.path if self.is_file(pin) else f"{self.path.rstrip('/')}/{file.name}"
                system.get_file(remote, str(path))
                version = read_version(system.info(remote))
        if version != file.version:
            raise Conflict(
                f"{file.name} of {self.address} changed while it was read.",
                why=f"It was listed as {file.version}, and is {version} now.", do="Start the run again.",
                code="E-OBJECT-CHANGED",
            )  # fmt: skip
        return path, folder.absolute()

    @property
    def scheme(self) -> str:
        return urlsplit(self.address).scheme

    @property
    def path(self) -> str:
        """Bucket and key."""
        return self.address.partition("://")[2]

    def is_file(self, pin: Pin) -> bool:
        """Whether the address is that of one object."""
        return len(pin.files) == 1 and self.address.rpartition("/")[2] == pin.files[0].name

    def list_objects(self) -> list[RemoteFile]:
        """Files of a `gs://` address: the object of that name, else all below it."""
        above, _, name = self.address.rstrip("/").rpartition("/")
        if not self.address.endswith("/") and above.count("/") >= 2:
            info = open_store(above).head(name)
            if info is not None:
                return [RemoteFile(name, info.size, f"{info.generation}:{info.crc32c}")]
        infos = open_store(self.address.rstrip("/")).list()
        return [RemoteFile(info.name, info.size, f"{info.generation}:{info.crc32c}") for info in infos if info.size]

    def list_files(self) -> list[RemoteFile]:
        with asking(self.address):
            system = self.system()
            entries = system.find(self.path, detail=True)
            # adlfs answers with a list for the name of a file (2026.8, `AzureBlobFileSystem._find`).
            entries = entries if isinstance(entries, dict) else {self.path: system.info(self.path)}
        base = self.path.rstrip("/")
        files = {str(name): info for name, info in entries.items() if info.get("type") == "file" and info.get("size")}
        alone = list(files) == [base]
        names = {name: base.rpartition("/")[2] if alone else name.removeprefix(f"{base}/") for name in files}
        visible = {name: relative for name, relative in names.items() if not is_hidden(relative)}
        return [
            RemoteFile(check_name(relative), files[name]["size"], read_version(files[name]))
            for name, relative in visible.items()
        ]

    def system(self) -> Any:
        """Return the client of fsspec. It keeps no listing, which would hide a change."""
        missing = BUCKETS[self.scheme].missing(is_installed)
        if missing:
            raise Unavailable(
                f"The client for {self.scheme}:// addresses is not installed.",
                why=f"There is no module {missing[0]}.", do=f"pip install '{BUCKETS[self.scheme].install}'",
                code="E-PACKAGE-MISSING",
            )  # fmt: skip
        more = {"default_cache_type": "none"} if self.scheme == "s3" else {}
        return load_object("fsspec:filesystem")(self.scheme, use_listings_cache=False, skip_instance_cache=True, **more)


def is_installed(module: str) -> bool:
    return load_object("importlib.util:find_spec")(module) is not None


def is_hidden(name: str) -> bool:
    return any(part.startswith(".") or part == "" for part in name.split("/"))


def read_version(info: Any) -> str:
    """Return what changes with the bytes of a file."""
    version = next((info[key] for key in VERSION_KEYS if info.get(key) not in (None, "", "null")), "")
    return f"{info.get('size')}:{str(version).strip(chr(34))}"


@contextmanager
def asking(address: str) -> Iterator[None]:
    """Give the errors of fsspec and its clients their meaning."""
    try:
        yield
    except TrainyardError:
        raise
    except FileNotFoundError as error:
        raise NotFound(
            f"There is nothing at {address}.", do="Correct the address, or the credentials' rights.",
            code="E-DATA-NOT-FOUND",
        ) from error  # fmt: skip
    except NotImplementedError as error:
        raise InvalidInput(f"{address} cannot be read: {error}.", do="Correct the address.", code="E-URL") from error
    except Exception as error:  # each client has errors of its own: botocore's, azure's, aiohttp's
        raise Unavailable(
            f"{address} could not be read.",
            why=f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}".rstrip(": "),
            do="Check the bucket's name, the credentials of the environment and the network.",
            code="E-OBJECT-STORE",
        ) from error
