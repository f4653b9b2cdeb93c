"""Engineering tuples out of a repository's commits: diff, message, and the review brief where there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.data.limited.requests import MOST_CHARS
from trainyard.data.readers.repositories import Repository, commit_documents


def tuples_of_commits(repository: Repository, briefs: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
    """Engineering tuples of a repository's commits: diff, message, and the review brief where there is one.

    `briefs` maps a commit's id (or its first twelve digits) to the brief of its review. Commits that give no tuple are
    counted by reason in `repository.skipped`.
    """
    known = {name[:12]: brief for name, brief in (briefs or {}).items()}
    for document in commit_documents(repository):
        # The text is the message, an empty line and the diff, which begins with its first "diff --git".
        message, sign, diff = document.text.partition("\n\ndiff --git ")
        brief = known.get(document.source.rpartition("@")[2])
        value = {"diff": f"diff --git {diff}", "message": message}
        if not sign or not message.strip():
            repository.skipped["no_text_change"] += 1
        elif len(value["diff"]) > MOST_CHARS or len(message) > MOST_CHARS:
            repository.skipped["large_diff"] += 1
        else:
            yield {**value, "brief": brief} if brief else value
