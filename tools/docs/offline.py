"""`python -m tools.docs.offline FOLDER`: fail if a page of a built site loads anything from another server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

LOADING = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}
"""Element -> the attribute that a browser loads; `a` is only followed by a reader."""


class Loads(HTMLParser):
    """The addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        address = attributes.get(LOADING.get(tag, "")) or ""
        if "//" in address.split("?", 1)[0] and attributes.get("rel") != "canonical":
            self.addresses.append(f"<{tag}> {address}")


def loads_from_elsewhere(site: Path) -> Iterator[str]:
    for path in sorted(site.rglob("*.html")):
        page = Loads()
        page.feed(path.read_text(encoding="utf-8"))
        yield from (f"{path.relative_to(site)}: {address}" for address in page.addresses)
    for path in sorted(site.rglob("*.css")):
        text = path.read_text(encoding="utf-8")
        yield from (
            f"{path.relative_to(site)}: {word}" for word in ("url(http", 'url("http', "@import") if word in text
        )


if __name__ == "__main__":
    if loads := [*loads_from_elsewhere(Path(sys.argv[1]))]:
        raise SystemExit("\n".join(["The site loads from other servers:", *loads]))
    print(f"{len([*Path(sys.argv[1]).rglob('*.html')])} pages load nothing from other servers")
