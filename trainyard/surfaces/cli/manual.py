"""Pages of the manual in the terminal. A checkout contains them; a wheel does not."""

from __future__ import annotations

from pathlib import Path

from trainyard.errors import NotFound
from trainyard.locations import project_folder
from trainyard.operations.words import WORDS
from trainyard.spec.load.spellings import did_you_mean, nearest


def manual_pages() -> dict[str, Path]:
    """Return name -> file of every page of the manual that is on this machine."""
    folder = project_folder() / "docs"
    files = [*folder.glob("*.md"), *folder.glob("guides/*.md"), *folder.glob("reference/*.md")]
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(files)}


def page_place(guide: str) -> str:
    """Return the file of a page, or where it is in the repository."""
    return str(manual_pages().get(guide, f"docs/{guide}.md of the repository"))


def page_text(topic: str) -> str:
    """Return a page of the manual. Raises `NotFound` (`E-NOT-FOUND`) for a topic without a page."""
    pages = manual_pages()
    names = {name.rpartition("/")[2]: name for name in pages} | {name: name for name in pages}
    if topic in names:
        return pages[names[topic]].read_text(encoding="utf-8").rstrip()
    near = nearest(topic, [*WORDS, *names])
    raise NotFound(
        f"There is no command and no page {topic!r}.",
        do=did_you_mean(near, "Look at `trainyard --help`."),
        code="E-NOT-FOUND",
    )
