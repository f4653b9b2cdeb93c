"""Anchor in a git repository: each checkpoint is a commit on a branch of its own, of which a remote may get a copy.

No working tree is touched: the commit is made from objects. Who clones or fetches the branch keeps its history.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trainyard.anchor_settings import GitAnchor
from trainyard.errors import Corrupt
from trainyard.stores.ledger.anchors.contract import (
    AnchorRecord,
    PlacedCheckpoint,
    SeenCheckpoint,
    build_unreachable,
)
from trainyard.stores.ledger.anchors.folders import read_seen
from trainyard.stores.ledger.log import CHECKPOINT, Head
from trainyard.stores.ledger.notes import hash_origin

GIT_S = 60.0
AUTHOR = "Trainyard ledger"
PASSED = ("PATH", "HOME", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "LANG")
"""Variables that git gets: its credentials are those of the user."""


def run_git(setting: GitAnchor, *arguments: str, data: bytes = b"", index: str = "") -> bytes:
    """Return the output of a git command. Raises `Unavailable`."""
    environment = {name: os.environ[name] for name in PASSED if name in os.environ}
    environment |= {"GIT_TERMINAL_PROMPT": "0", **({"GIT_INDEX_FILE": index} if index else {})}
    for role in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{role}_NAME": AUTHOR, f"GIT_{role}_EMAIL": "ledger@trainyard.local"}
    command = ["git", "-c", f"safe.directory={setting.repository}", "-C", str(setting.repository), *arguments]
    what = f"git {arguments[0]} failed in {setting.repository}."
    try:
        done = subprocess.run(command, env=environment, input=data, capture_output=True, timeout=GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise build_unreachable(what, type(error).__name__) from error
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        # What git says about a remote may contain its address with a password.
        raise build_unreachable(what, "The remote refused, or is away." if setting.push else (lines or [""])[0])
    return done.stdout


def find_commit(setting: GitAnchor, name: str) -> str:
    """Return the commit of a ref; empty without one."""
    listed = run_git(setting, "for-each-ref", "--format=%(objectname)", name).decode().split()
    return listed[0] if listed else ""


def name_branch(setting: GitAnchor) -> str:
    return f"refs/heads/{setting.branch}"


def name_copy(setting: GitAnchor) -> str:
    """Return the ref of the remote's branch as it was fetched last."""
    return f"refs/trainyard/{setting.push}/{setting.branch}"


def place_in_git(setting: GitAnchor, head: Head, _records: Sequence[AnchorRecord]) -> PlacedCheckpoint:
    """Commit the checkpoint, and push the branch where a remote is named."""
    assert head.note is not None
    branch, path = name_branch(setting), f"{hash_origin(head.checkpoint.origin)}/{CHECKPOINT}"
    parent = find_commit(setting, branch)
    with tempfile.TemporaryDirectory() as folder:
        index = str(Path(folder) / "index")
        if parent:
            run_git(setting, "read-tree", parent, index=index)
        blob = run_git(setting, "hash-object", "-w", "--stdin", data=head.note.data).decode().strip()
        run_git(setting, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}", index=index)
        tree = run_git(setting, "write-tree", index=index).decode().strip()
    commit = parent
    if not parent or run_git(setting, "rev-parse", f"{parent}^{{tree}}").decode().strip() != tree:
        message = f"Checkpoint of {head.checkpoint.origin}: {head.size} entries".encode()
        parents = ("-p", parent) if parent else ()
        commit = run_git(setting, "commit-tree", *parents, tree, data=message).decode().strip()
        run_git(setting, "update-ref", branch, commit, parent or "0" * len(commit))
    if setting.push:
        run_git(setting, "push", "--quiet", setting.push, f"{branch}:{branch}")
    return PlacedCheckpoint(f"commit {commit[:12]} of {setting.branch}", {"commit": commit})


def fetch_copy(setting: GitAnchor) -> None:
    """Fetch the branch of the remote, unless it has none yet."""
    if run_git(setting, "ls-remote", "--heads", setting.push, name_branch(setting)):
        run_git(setting, "fetch", "--quiet", "--no-tags", setting.push, f"+{name_branch(setting)}:{name_copy(setting)}")


def look_in_git(setting: GitAnchor, origin: str, records: Sequence[AnchorRecord]) -> list[SeenCheckpoint]:
    """Return the checkpoint of every commit of the branch that has one, here and at the remote.

    Raises `Corrupt` where a commit that was made is in neither: the branch was rewritten.
    """
    if setting.push:
        fetch_copy(setting)
    tips = [tip for name in (name_branch(setting), name_copy(setting)) if (tip := find_commit(setting, name))]
    path = f"{hash_origin(origin)}/{CHECKPOINT}"
    listed = run_git(setting, "log", "--format=%H %ct", *tips, "--", path).decode().splitlines() if tips else []
    times = {commit: float(time) for commit, time in (line.split() for line in listed)}
    for record in records:
        if record.facts.get("commit") not in times:
            raise Corrupt(
                f"The commit {str(record.facts.get('commit'))[:12]} is not in {setting.branch} any more.",
                why="Its history was rewritten, or the repository is another one.",
            )
    requests = "".join(f"{commit}:{path}\n" for commit in times).encode()
    output, seen = run_git(setting, "cat-file", "--batch", data=requests), []
    for commit, time in times.items():
        header, _, output = output.partition(b"\n")
        if header.endswith(b" missing"):  # a commit that takes the file away; those before it are in the branch
            continue
        length = int(header.split()[-1])
        seen.append(read_seen(output[:length], origin, f"commit {commit[:12]}", time))
        output = output[length + 1 :]
    return seen
