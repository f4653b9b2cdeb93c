"""Adapter versions: `<tenant>/<role>/v<N>`, never reused, never overwritten, and a pointer to the one that is live.

    adapters/<tenant>/<role>/
        v1/                 the adapter's files, and manifest.json with their SHA-256, written last
        v2/                 no manifest yet: a registration that died; its number stays taken, it is never listed
        v1.sig              signature over the files of v1 (stores/signing/bundles.py)
        v3/                 a manifest that says when it was deleted, and no other file: never listed either
        live.json           {version, history: [{version, action, at}, …]}, replaced atomically

A number is reserved by `mkdir`, which succeeds for exactly one of any number of processes. Files are hard-linked where
the file system allows it, so that a registration costs no space, and copied elsewhere.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from trainyard.errors import Conflict, Corrupt, InvalidInput, LimitExceeded, NotFound
from trainyard.json_types import JsonObject
from trainyard.spec.chain import digest
from trainyard.spec.load.parse import suggest
from trainyard.stores.files import DISK, NO_SPACE, Files, RealFiles, make_folders, require_inside
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import MANIFEST, describe, list_files, remove_folder, write_whole

LIVE_FILE = "live.json"
LOCK_FILE = ".lock"
SIGNED = "signed_by"
"""Fact of a version: the id of the key whose signature it was registered with."""
CARD_FILE = "README.md"
"""The card of a version, next to its manifest; not one of the files that the manifest describes."""
RUN, RUN_BECAUSE = "adapter_run", "adapter_run_because"
"""Facts of a version: whether it was loaded and run once on its base here, and why not."""
GOING_BACK = frozenset({"rollback", "undo"})
MOST_HISTORY = 1000
"""Entries of live.json that are kept; older ones are dropped from the front."""
PICKLED = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"})
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_VERSION = re.compile(r"v([1-9][0-9]{0,8})")
_FULL_NAME = re.compile(rf"(?P<tenant>{_NAME.pattern})/(?P<role>{_NAME.pattern})(?:/v(?P<version>[1-9][0-9]{{0,8}}))?")
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES})


class AdapterVersion(BaseModel):
    """A registered version, as its manifest says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant: str
    role: str
    version: int
    sha256: str
    """Digest over the names and digests of the files: the same as the adapter reference's."""
    kind: str = "adapter"
    """`adapter`, or `model` for whole weights."""
    run_key: str = ""
    """Key of the request: a second registration with the same key returns this version."""
    created: float = 0.0
    """Unix seconds."""
    facts: JsonObject = {}
    """Base model, digests, gate verdict: what a list shows and a deployer checks."""
    files: dict[str, JsonObject] = {}
    deleted: float = 0.0
    """Unix seconds at which its files were removed; 0 for a version that is there."""

    @property
    def name(self) -> str:
        return f"{self.tenant}/{self.role}/v{self.version}"

    @property
    def alias(self) -> str:
        """Return the name under which whatever version is live answers."""
        return f"{self.tenant}/{self.role}"


@dataclass(frozen=True)
class Live:
    """Live version (None: none) and its history, oldest first."""

    version: int | None
    history: tuple[JsonObject, ...]

    def has_been(self, number: int) -> bool:
        """Whether a version has been live before."""
        return any(entry["version"] == number for entry in self.history)

    def replaced(self) -> list[int]:
        """Return the versions below the live one, oldest first, without those that were rolled back or undone."""
        stack: list[int | None] = []
        for entry in self.history:
            number = entry["version"]
            if entry["action"] in GOING_BACK and number in stack:
                del stack[stack.index(number) + 1 :]
            elif entry["action"] in GOING_BACK:
                stack = [number]
            else:
                stack = [*(other for other in stack if other != number), number]
        return [number for number in stack[:-1] if number is not None]


class AdapterRegistry:
    """The registry below one folder. Safe for concurrent processes."""

    def __init__(self, root: Path, files: Files = DISK, now: Callable[[], float] = time.time) -> None:
        self.root, self.files, self.now = root, files, now

    def register(
        self,
        tenant: str,
        role: str,
        source: Path,
        *,
        kind: str = "adapter",
        facts: Mapping[str, object] | None = None,
        run_key: str = "",
        number: int | None = None,
    ) -> AdapterVersion:
        """Store the files of `source` under the next free number of `<tenant>/<role>`.

        With a `run_key`, a version that was registered with the same key and the same files is returned instead. A
        `number` is one that was reserved for this key elsewhere; what a crash left under it is overwritten.
        Raises `InvalidInput` (`E-NAME`, `E-ADAPTER-INVALID`, `E-MODEL-UNSAFE`), `LimitExceeded`
        (`E-DISK-FULL`), `Conflict` (`E-PUBLISH`); after a failure the number stays taken and nothing is listed.
        """
        folder = self._folder(tenant, role)
        check_source(source, self.files)
        make_folders(self.files, folder)
        with self.files.locked(folder / LOCK_FILE) if run_key else nullcontext():
            existing = self._with_key(tenant, role, source, run_key)
            if existing is not None:
                return self.flushed(existing)
            number = reserve(self.files, folder) if number is None else self._take_number(tenant, role, number)
            version = AdapterVersion(
                tenant=tenant,
                role=role,
                version=number,
                sha256="",
                kind=kind,
                run_key=run_key,
                created=self.now(),
                facts=facts or {},
            )
            return self._fill(version, folder / f"v{number}", source)

    def list(self, tenant: str | None = None, role: str | None = None) -> list[AdapterVersion]:
        """Every complete version, by tenant, role and number: no unfinished registrations, and no deleted versions."""
        tenants = [check_name(tenant)] if tenant else list_folders(self.files, self.root)
        folders = [
            self.root / tenant_name / name
            for tenant_name in tenants
            for name in ([check_name(role)] if role else list_folders(self.files, self.root / tenant_name))
        ]
        manifests = [folder / name / MANIFEST for folder in folders for name in list_folders(self.files, folder)]
        paths = [path for path in manifests if _VERSION.fullmatch(path.parent.name) and self.files.exists(path)]
        versions = [read_manifest(path, self.files) for path in paths]
        return sorted(
            (version for version in versions if not version.deleted),
            key=lambda version: (version.tenant, version.role, version.version),
        )

    def highest(self, tenant: str, role: str) -> int:
        """Return the highest number that was ever taken here, also by a registration that died; 0 if none was."""
        return max(list_numbers(self.files, self._folder(tenant, role)), default=0)

    def show(self, name: str) -> AdapterVersion:
        """Return the version of `<tenant>/<role>/v<N>`, or the live one of `<tenant>/<role>`.

        Raises `NotFound` (`E-ADAPTER-NOT-FOUND`, also for a version that was deleted), `InvalidInput` (`E-NAME`).
        """
        version = self.find(name)
        if version.deleted:
            when = datetime.fromtimestamp(version.deleted, UTC).isoformat(timespec="seconds")
            raise NotFound(
                f"The adapter version {version.name} was deleted at {when}.",
                why="Its files are gone; its number is never used again.",
                do="List the versions that are there with `trainyard adapters list`.",
                code="E-ADAPTER-NOT-FOUND",
            )
        return version

    def find(self, name: str) -> AdapterVersion:
        """Return the same, also of a version that was deleted."""
        tenant, role, number = parse_name(name)
        if number is None:
            number = self.live(tenant, role).version
            if number is None:
                otherwise = f"List the versions with `trainyard adapters list`, or name one: {name}/v1."
                roles = list_folders(self.files, self.root / tenant)
                raise NotFound(
                    f"No version of {name!r} is live.",
                    do=otherwise if role in roles else suggest(role, roles, otherwise),
                    code="E-ADAPTER-NOT-FOUND",
                )
        manifest = self._folder(tenant, role) / f"v{number}" / MANIFEST
        if not self.files.exists(manifest):
            raise NotFound(
                f"There is no adapter version {tenant}/{role}/v{number}.",
                do="List the versions with `trainyard adapters list`.",
                code="E-ADAPTER-NOT-FOUND",
            )
        return read_manifest(manifest, self.files)

    def record_run(self, version: AdapterVersion, run: Mapping[str, object]) -> AdapterVersion:
        """Keep in a version's facts whether it was run (`RUN`, `RUN_BECAUSE`); returns the version with them."""
        return self.record_facts(version, run, without=(RUN, RUN_BECAUSE))

    def record_facts(
        self, version: AdapterVersion, added: Mapping[str, object], without: Sequence[str] = ()
    ) -> AdapterVersion:
        """Keep more facts of a version, and those named `without` no longer; returns the version with them."""
        with self.files.locked(self._folder(version.tenant, version.role) / LOCK_FILE):
            version = self.find(version.name)
            facts = {**{key: value for key, value in version.facts.items() if key not in without}, **added}
            if facts != version.facts and not version.deleted:
                version = version.model_copy(update={"facts": facts})
                write_whole(self.files, self.path(version) / MANIFEST, to_json(read_version_manifest(version)))
        return version

    def signature_path(self, version: AdapterVersion) -> Path:
        """Return where the signature of a version is: next to its folder, which has its files alone."""
        return self._folder(version.tenant, version.role) / f"v{version.version}.sig"

    def read_signature(self, version: AdapterVersion) -> bytes | None:
        """Return the signature of a version; None without one."""
        path = self.signature_path(version)
        return self.files.read(path) if self.files.exists(path) else None

    def keep_signature(self, version: AdapterVersion, bundle: bytes, key_id: str) -> AdapterVersion:
        """Store the signature of a version, and in its facts whose it is."""
        write_whole(self.files, self.signature_path(version), bundle)
        return self.record_facts(version, {SIGNED: key_id})

    def delete(self, name: str) -> AdapterVersion:
        """Remove a version's files for good; its manifest stays, with the time. A second call finishes the first.

        The manifest comes first: a version whose files are only partly there is never listed. Raises `NotFound`
        (`E-ADAPTER-NOT-FOUND`), `Conflict` (`E-CONFLICT`) for the live version.
        """
        version = self.find(name)
        folder = self._folder(version.tenant, version.role)
        with self.files.locked(folder / LOCK_FILE):
            if self.live(version.tenant, version.role).version == version.version:
                raise Conflict(
                    f"The version {version.name} is live.",
                    do=f"Promote another version of {version.alias} first.",
                    code="E-CONFLICT",
                )
            if not version.deleted:
                version = version.model_copy(update={"deleted": self.now()})
                write_whole(self.files, self.path(version) / MANIFEST, to_json(read_version_manifest(version)))
            for path in (
                self.path(version) / name for name in self.files.listdir(self.path(version)) if name != MANIFEST
            ):
                if self.files.is_folder(path):
                    remove_folder(self.files, path)
                else:
                    self.files.unlink(path)
            if self.files.exists(self.signature_path(version)):
                self.files.unlink(self.signature_path(version))
            self.files.fsync_folder(self.path(version))
        return version

    def path(self, version: AdapterVersion) -> Path:
        return self._folder(version.tenant, version.role) / f"v{version.version}"

    def find_folder(self, folder: Path) -> AdapterVersion | None:
        """Return the version whose folder this is; None for every other folder.

        Not found by its files: its card may have been written among them since.
        """
        resolved, root = folder.resolve(), self.root.resolve()
        if not resolved.is_relative_to(root) or not self.files.exists(folder / MANIFEST):
            return None
        version = read_manifest(folder / MANIFEST, self.files)
        return version if self.path(version).resolve() == resolved and not version.deleted else None

    def verify(self, version: AdapterVersion) -> AdapterVersion:
        """Return the version after a check of every byte against the manifest. Raises `Corrupt`."""
        files = describe(self.files, self.path(version))
        if CARD_FILE not in version.files:
            files.pop(CARD_FILE, None)
        if files != version.files:
            raise Corrupt(
                f"The files of {version.name} are not what its manifest says.",
                why="A file was changed, added or removed after registration.",
                do="Promote another version, and move this one away.",
                code="E-CORRUPT",
            )
        return version

    def live(self, tenant: str, role: str) -> Live:
        """Which version is live now."""
        path = self._folder(tenant, role) / LIVE_FILE
        if not self.files.exists(path):
            return Live(None, ())
        value = read_versioned("live", self.files.read(path), path)
        return Live(value["version"], tuple(value["history"]))

    def promote(self, name: str) -> AdapterVersion:
        """Make a verified version the live one."""
        version = self.verify(self.show(name))
        self.point(version.tenant, version.role, version.version, "promote")
        return version

    def rollback(self, tenant: str, role: str) -> AdapterVersion:
        """Go back to the version that the present one replaced; a second call goes one further.

        Raises `Conflict` (`E-ADAPTER-NOT-FOUND`) when there was none.
        """
        version = self.verify(self.previous(tenant, role))
        self.point(tenant, role, version.version, "rollback")
        return version

    def previous(self, tenant: str, role: str) -> AdapterVersion:
        """What a rollback makes live: the version that was replaced last and is still there. Raises `Conflict`."""
        earlier = self.earlier(tenant, role)
        if not earlier:
            raise Conflict(
                f"{tenant}/{role} has no earlier live version to go back to.",
                do="Promote a version by its name.",
                code="E-ADAPTER-NOT-FOUND",
            )
        return earlier[-1]

    def earlier(self, tenant: str, role: str) -> Sequence[AdapterVersion]:
        """Return the versions that rollbacks can go to, the nearest one last."""
        there = {version.version: version for version in self.list(tenant, role)}
        return [there[number] for number in self.live(tenant, role).replaced() if number in there]

    def point(self, tenant: str, role: str, number: int | None, action: str) -> None:
        """Switch the live pointer in one rename; None means that nothing is live."""
        folder = self._folder(tenant, role)
        make_folders(self.files, folder)
        with self.files.locked(folder / LOCK_FILE):
            history = [*self.live(tenant, role).history, {"version": number, "action": action, "at": self.now()}]
            value = {"version": number, "history": history[-MOST_HISTORY:]}
            write_whole(self.files, folder / LIVE_FILE, to_json(add_version("live", value)))

    @contextmanager
    def deploying(self, tenant: str, role: str) -> Iterator[None]:
        """One deployment of a role at a time: the second waits until the first has switched or undone everything."""
        folder = self._folder(tenant, role)
        make_folders(self.files, folder)
        with self.files.locked(folder / ".deploying"):
            yield

    def _folder(self, tenant: str, role: str) -> Path:
        """Return the role's folder, after a check that neither a name nor a link leads out of the root."""
        folder = self.root / check_name(tenant) / check_name(role)
        return require_inside(self.root, folder, f"The folder of {tenant}/{role}", "the registry")

    def _with_key(self, tenant: str, role: str, source: Path, run_key: str) -> AdapterVersion | None:
        if not run_key:
            return None
        same = [version for version in self.list(tenant, role) if version.run_key == run_key]
        if (here := self.find_folder(source)) is not None and here.run_key == run_key:
            return here
        return next((version for version in same if version.sha256 == files_digest(describe(self.files, source))), None)

    def flushed(self, version: AdapterVersion) -> AdapterVersion:
        """A version that is there, on the disk: the process that wrote it may have died before its last flush."""
        self.files.fsync_folder(self.path(version))
        self.files.fsync_folder(self.path(version).parent)
        return version

    def _take_number(self, tenant: str, role: str, number: int) -> int:
        """Return a number that is ours already: new here, or left by a registration that died."""
        target = self._folder(tenant, role) / f"v{number}"
        if self.files.mkdir(target):
            return number
        if self.files.exists(target / MANIFEST):
            raise Conflict(
                f"The version {tenant}/{role}/v{number} is there already.",
                why="It was registered for something else, before numbers were reserved in the object store.",
                do="Try again: the next number is taken.",
                code="E-PUBLISH",
            )
        empty(self.files, target)
        return number

    def _fill(self, version: AdapterVersion, target: Path, source: Path) -> AdapterVersion:
        """Bring the files in, then the manifest. What a failure leaves is an empty folder that keeps the number."""
        try:
            for path in list_files(self.files, source):
                if path != source / MANIFEST:
                    take(self.files, path, target / path.relative_to(source))
            files = describe(self.files, target)
            complete = version.model_copy(update={"files": files, "sha256": files_digest(files)})
            write_whole(self.files, target / MANIFEST, to_json(read_version_manifest(complete)))
        except OSError as error:
            empty(self.files, target)
            if error.errno not in NO_SPACE:
                raise
            raise LimitExceeded(
                f"The disk is full; {version.name} was not registered.",
                why=str(error.strerror),
                do="Free some space below TRAINYARD_HOME and run the deployment again.",
                code="E-DISK-FULL",
            ) from error
        self.files.fsync_folder(target.parent)
        return complete


def parse_name(name: str) -> tuple[str, str, int | None]:
    """(tenant, role, number) of `<tenant>/<role>/v<N>`; the number is None for `<tenant>/<role>`.

    Raises `InvalidInput` (`E-NAME`).
    """
    match = _FULL_NAME.fullmatch(name)
    if not match:
        raise InvalidInput(
            f"{name!r} is not a valid adapter name.",
            why="It has to be <tenant>/<role>, with /v<N> for one version, in small letters, digits and hyphens.",
            do="Write it like default/assistant/v3.",
            code="E-NAME",
        )
    return match["tenant"], match["role"], int(match["version"]) if match["version"] else None


def check_name(name: str) -> str:
    """Return a tenant or role name; raises `InvalidInput` (`E-NAME`) for anything that could leave the root."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} is not a valid tenant or role name.",
            why="It has to be 1 to 63 small letters, digits and hyphens, and start with a letter or digit.",
            do="Rename it, such as `support-bot`.",
            code="E-NAME",
        )
    return name


def check_source(source: Path, files: Files) -> None:
    """Refuse what must not be served: no folder, no safetensors, pickled weights, links to files elsewhere."""
    if not files.is_folder(source):
        raise NotFound(f"There is no adapter folder {source}.", do="Run the trainer again.", code="E-ADAPTER-INVALID")
    links = [path for path in sorted(source.rglob("*")) if path.is_symlink()] if isinstance(files, RealFiles) else []
    if links:
        raise InvalidInput(
            f"The adapter folder contains a symbolic link: {links[0].relative_to(source)}.",
            why="A link could bring in a file from elsewhere, and its target can change after registration.",
            do="Replace the link by the file.",
            code="E-ADAPTER-INVALID",
        )
    paths = list_files(files, source)
    pickled = [path for path in paths if path.suffix in PICKLED]
    if pickled:
        raise InvalidInput(
            f"The adapter folder contains pickled weights: {pickled[0].relative_to(source)}.",
            why="Loading a pickle runs whatever code it contains.",
            do="Save the weights as safetensors.",
            code="E-MODEL-UNSAFE",
        )
    if not any(path.suffix == ".safetensors" for path in paths):
        raise InvalidInput(
            f"The adapter folder {source.name} contains no safetensors file.",
            do="Register the folder that a trainer wrote.",
            code="E-ADAPTER-INVALID",
        )


def list_folders(files: Files, folder: Path) -> list[str]:
    """Names of the folders in a folder that may not be there."""
    names = files.listdir(folder) if files.is_folder(folder) else []
    return [name for name in names if files.is_folder(folder / name)]


def list_numbers(files: Files, folder: Path) -> list[int]:
    names = files.listdir(folder) if files.is_folder(folder) else []
    return [int(match.group(1)) for name in names if (match := _VERSION.fullmatch(name))]


def reserve(files: Files, folder: Path) -> int:
    """Return the next number, made ours by `mkdir`. Numbers of unfinished registrations count as taken."""
    number = max(list_numbers(files, folder), default=0) + 1
    while not files.mkdir(folder / f"v{number}"):
        number += 1
    return number


def take(files: Files, source: Path, target: Path) -> None:
    """Hard-link a file, or copy it where links are not possible, and flush it to the disk."""
    make_folders(files, target.parent)
    if isinstance(files, RealFiles):
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            shutil.copyfile(source, target)
    else:
        files.write(target, files.read(source))
    files.fsync(target)  # a linked file may be read-only, and is flushed all the same
    files.fsync_folder(target.parent)


def empty(files: Files, folder: Path) -> None:
    """Remove what a failed registration left, but keep the folder, which keeps the number taken."""
    if files.exists(folder / MANIFEST):  # first of all, and for certain: what has a manifest counts as whole
        files.unlink(folder / MANIFEST)
        files.fsync_folder(folder)
    for path in list_files(files, folder):
        files.unlink(path)


def to_json(value: object) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode()


def read_version_manifest(version: AdapterVersion) -> JsonObject:
    """Return what a version's manifest says; of a version that is there, nothing about a deletion."""
    return add_version("adapter", version.model_dump(mode="json", exclude=set() if version.deleted else {"deleted"}))


def read_manifest(path: Path, files: Files) -> AdapterVersion:
    try:
        return AdapterVersion.model_validate(read_versioned("adapter", files.read(path), path))
    except ValueError as error:
        raise Corrupt(
            f"The manifest of {'/'.join(path.parts[-4:-1])} cannot be read.",
            why=str(error).splitlines()[0],
            do="Move this version away; the others are not affected.",
            code="E-CORRUPT",
        ) from error


def files_digest(files: dict[str, JsonObject]) -> str:
    return digest({name: entry["sha256"] for name, entry in files.items()})
