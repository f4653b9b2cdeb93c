"""A git repository as documents: each commit's message with its diff, and the text files of its newest commit.

Objects are read, never the working tree, and git runs with everything switched off that a repository can use to start
a program: hooks, pagers, external diffs, text conversion, file monitors, signature checks, remote helpers.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from trainyard.data.paths import is_inside, refuse_path
from trainyard.data.quarantine import BadRow
from trainyard.data.readers.documents import TYPES
from trainyard.data.readers.streams import Limits
from trainyard.data.rows import DocumentRow
from trainyard.errors import InvalidInput

NameFilter = Callable[[str], bool]
"""Whether a path below the repository is wanted."""
DIFF_HEADER = b"diff --git "
MAX_COMMITS = 20_000
MAX_DIFF_BYTES = 100_000
MOST_OUTPUT_BYTES = 256 << 20
"""Most bytes of a list, such as that of all files; trees can name each other to give 10**10 of them."""
GIT_FILES = (
    *("HEAD", "config", "config.worktree", "commondir", "index", "packed-refs", "refs"),
    *("objects", "info", "shallow"),
)
"""What git reads in a repository's folder for the commands below; hooks and logs are never read."""
SAFE = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.attributesFile": os.devnull,
    "core.pager": "cat",
    "core.quotePath": "false",
    "diff.external": "",
    "log.showSignature": "false",
    "protocol.allow": "never",
    "gc.auto": "0",
    # A reading process has a limit of address space, and git maps whole packs if nothing says otherwise.
    "core.packedGitLimit": "512m",
    "core.packedGitWindowSize": "32m",
    "core.bigFileThreshold": "64m",
}
ENVIRONMENT = {
    "PATH": os.environ.get("PATH", os.defpath),
    "LC_ALL": "C.UTF-8",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_CEILING_DIRECTORIES": "/",
}


@dataclass
class Repository:
    """A repository whose objects lie inside the data roots."""

    path: Path
    limits: Limits = field(default_factory=Limits)
    skipped: Counter[str] = field(default_factory=Counter)
    """Left-out items with their reasons: merges, commits without text, too large diffs, other file types."""
    name_filter: NameFilter | None = None
    """The files that are read, in commits as well; None for all."""
    any_type: bool = False
    """Whether files of types that are not known are read too, because they were requested by name."""

    def command(self, *arguments: str) -> list[str]:
        safe = [part for name, value in SAFE.items() for part in ("-c", f"{name}={value}")]
        trusted = ["-c", f"safe.directory={self.path}"]
        return ["git", "--no-pager", "--no-optional-locks", *safe, *trusted, "-C", str(self.path), *arguments]

    def run(self, *arguments: str) -> bytes:
        """Output of one git command. Raises `InvalidInput` (`E-REPOSITORY`)."""
        with tempfile.TemporaryFile() as errors:
            try:
                with subprocess.Popen(
                    self.command(*arguments), env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=errors,
                ) as process:  # fmt: skip
                    assert process.stdout is not None
                    output = process.stdout.read(MOST_OUTPUT_BYTES + 1)
                    if len(output) > MOST_OUTPUT_BYTES:
                        process.kill()
                        raise self.unusable(f"its list of {arguments[0]} is over {MOST_OUTPUT_BYTES:,} bytes")
            except FileNotFoundError as error:
                raise self.unusable(str(error)) from error
            if process.returncode:
                errors.seek(0)
                lines = errors.read(4096).decode("utf-8", "replace").strip().splitlines()
                raise self.unusable(lines[0] if lines else f"git ended with code {process.returncode}")
            return output

    def unusable(self, why: str) -> InvalidInput:
        return InvalidInput(
            f"{self.path.name} cannot be read as a git repository.", why=f"{why.rstrip('.')}.",
            do="Give the folder that contains .git, with at least one commit.", code="E-REPOSITORY",
        )  # fmt: skip

    def commits(self) -> list[str]:
        """Ids of the commits of the current branch, newest first, at most 20,000."""
        listed = self.run("rev-list", f"--max-count={MAX_COMMITS}", "--end-of-options", "HEAD")
        return listed.decode("ascii").split()


def open_repository(path: Path, roots: Sequence[Path], limits: Limits) -> Repository:
    """Check that the repository, every object store that it borrows from and every link in them stay inside the roots.

    Raises `Refused` (`R-PATH-ROOT`) and `InvalidInput` (`E-REPOSITORY`).
    """
    repository = Repository(path, limits)
    # One call for each, because a path may contain a line end.
    stores = [
        Path(os.fsdecode(repository.run("rev-parse", "--path-format=absolute", option).removesuffix(b"\n")))
        for option in ("--git-dir", "--git-common-dir")
    ]
    if stores[0] != path and not (path / ".git").exists():
        raise repository.unusable("The folder itself is not a repository")
    seen: set[Path] = set()
    waiting = [store.resolve() for store in stores]
    while waiting:
        store = waiting.pop()
        if store in seen:
            continue
        if not is_inside(store, roots):
            raise refuse_path(
                str(path), roots, "config.repository", f"keeps its objects in {store}, outside of the roots"
            )
        seen.add(store)
        waiting += find_linked_paths(store)
        for base in (store / "objects", store):
            waiting += find_borrowed_stores(repository, base)
    return repository


def find_linked_paths(store: Path) -> Iterator[Path]:
    """Where the links lead that git would follow in a repository's folder, or in a folder of objects."""
    is_repository = (store / "HEAD").is_file() or (store / "commondir").is_file()
    for top in [store / name for name in GIT_FILES] if is_repository else [store]:
        if top.is_symlink():
            yield top.resolve()
        elif top.is_dir():
            for where, folders, files in os.walk(top):
                yield from (link.resolve() for name in (*folders, *files) if (link := Path(where, name)).is_symlink())


def find_borrowed_stores(repository: Repository, objects: Path) -> Iterator[Path]:
    """Yield the folders of objects that a folder of objects names in `info/alternates`, read as git reads the file."""
    borrowed = objects / "info" / "alternates"
    if not borrowed.is_file():
        return
    for line in borrowed.read_bytes().split(b"\n"):
        if line.startswith(b'"'):
            raise repository.unusable("A path in objects/info/alternates is in quotes")
        if line and not line.startswith(b"#"):
            yield (objects / os.fsdecode(line)).resolve()


@contextlib.contextmanager
def git_output(repository: Repository, ids: Sequence[str], *arguments: str) -> Iterator[IO[bytes]]:
    """The output of a git command that reads ids. Refuses a part of a repository that would pass for the whole."""
    with tempfile.TemporaryFile() as names_file:
        names_file.write("".join(f"{name}\n" for name in ids).encode("ascii"))
        names_file.seek(0)
        with subprocess.Popen(
            repository.command(*arguments), env=ENVIRONMENT, stdin=names_file, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            yield process.stdout
        if process.returncode:
            how = signal.Signals(-process.returncode).name if process.returncode < 0 else f"code {process.returncode}"
            raise repository.unusable(f"git ended with {how} before it had given everything")


def batch(repository: Repository, ids: Sequence[str]) -> Iterator[bytes | None]:
    """Contents of objects by id, in order; None for one that is over the document cap or missing."""
    most = repository.limits.document
    with git_output(repository, ids, "cat-file", "--batch") as output:
        for _ in ids:
            header = output.readline().split()
            if len(header) != 3 or not header[2].isdigit():
                yield None
                continue
            size = int(header[2])
            content = output.read(min(size, most))
            left = size - len(content)
            while left > 0 and (piece := output.read(min(left, 1 << 20))):
                left -= len(piece)
            output.read(1)
            yield content if size <= most else None
        output.read()


def diffs(repository: Repository, commits: Sequence[str]) -> Iterator[bytes | None]:
    """Yield the patch of each commit against its first parent, in order; empty for merges, None over the cap."""
    with git_output(
        repository, commits, "diff-tree", "--stdin", "--root", "--patch", "--always", "--no-ext-diff", "--no-textconv",
        "--no-color", "--no-renames", "--submodule=short", "--unified=3",
    ) as output:  # fmt: skip
        yield from patches(output, commits, repository.name_filter)


def patches(output: IO[bytes], commits: Sequence[str], name_filter: NameFilter | None = None) -> Iterator[bytes | None]:
    """Cut the output at the lines that are the id of a coming commit, and leave out the files that are not wanted.

    A patch never has such a line: its lines begin with a space, a sign or a word. Long lines arrive in pieces, so only
    a piece that begins a line counts.
    """
    positions = {f"{name}\n".encode("ascii"): index for index, name in enumerate(commits)}
    parts: list[bytes] = []
    size, at, begins, include = 0, -1, True, True
    while piece := output.readline(MAX_DIFF_BYTES):
        index = positions.get(piece, -1) if begins else -1
        if begins and name_filter is not None and piece.startswith(DIFF_HEADER):
            include = name_filter(parse_changed_file(piece))
        begins = piece.endswith(b"\n")
        if index <= at:
            size += len(piece) if include else 0
            if include and size <= MAX_DIFF_BYTES:
                parts.append(piece)
            continue
        if at >= 0:
            yield b"".join(parts) if size <= MAX_DIFF_BYTES else None
        yield from itertools.repeat(b"", index - at - 1)
        parts, size, at = [], 0, index
    if at >= 0:
        yield b"".join(parts) if size <= MAX_DIFF_BYTES else None
    yield from itertools.repeat(b"", len(commits) - at - 1)


def parse_changed_file(header: bytes) -> str:
    """Return the path in `diff --git a/PATH b/PATH`, which has the same length twice: renames are switched off.

    Git puts a path with control characters or quotes between quotes, with C's escapes.
    """
    names = header.removeprefix(DIFF_HEADER).rstrip(b"\n")
    first = names[: (len(names) - 1) // 2]
    if first.startswith(b'"'):
        first = first.strip(b'"').decode("unicode_escape").encode("latin-1")
    return first.removeprefix(b"a/").decode("utf-8", "replace")


def commit_documents(repository: Repository) -> Iterator[DocumentRow]:
    """Yield one document per commit that changes text: title = subject, text = message, an empty line, diff."""
    ids = repository.commits()
    for name, raw, diff in zip(ids, batch(repository, ids), diffs(repository, ids), strict=False):
        if raw is None or diff is None:
            repository.skipped["large_diff"] += 1
            continue
        header, _, message = raw.decode("utf-8", "replace").partition("\n\n")
        message = message.strip()
        changed = diff.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}").strip("\n")
        if header.count("\nparent ") > 1:
            repository.skipped["merge"] += 1
        elif repository.name_filter is not None and not changed:
            repository.skipped["no_wanted_file"] += 1
        elif not message or "\n@@" not in changed or "\0" in message:
            repository.skipped["no_text_change"] += 1
        else:
            text = f"{message}\n\n{changed}\n"
            doc_id = hashlib.sha256(text.encode()).hexdigest()[:16]
            source = f"{repository.path.name}@{name[:12]}"
            yield DocumentRow(doc_id, source, "commit", message.splitlines()[0][:200], text)


def file_contents(repository: Repository) -> Iterator[tuple[str, bytes | BadRow]]:
    """(path, bytes) of the files of the newest commit that are wanted, or whose type is known."""
    listed = repository.run("ls-tree", "-r", "-z", "--full-tree", "HEAD").split(b"\0")
    object_ids: dict[str, str] = {}
    for entry in filter(None, listed):
        about, _, raw_name = entry.partition(b"\t")
        mode, _, object_id = about.decode("ascii").split()[:3]
        name = raw_name.decode("utf-8", "replace")
        if repository.name_filter is not None and not repository.name_filter(name):
            continue
        is_readable = repository.any_type or PurePosixPath(name).suffix.lower() in TYPES
        if mode in ("100644", "100755") and is_readable:
            object_ids[name] = object_id
        else:
            repository.skipped[PurePosixPath(name).suffix.lower()[:20] or "(no extension)"] += 1
    for name, data in zip(object_ids, batch(repository, list(object_ids.values())), strict=False):
        if data is None:
            yield name, BadRow("too_large", f"the file is over {repository.limits.document:,} bytes")
        elif not data.strip():
            repository.skipped["empty_file"] += 1
        else:
            yield name, data
