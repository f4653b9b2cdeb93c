"""The manual is what the product does: links, commands, codes and examples in it exist."""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.architecture.test_budgets import REPOSITORY, sources
from tools.docs.agents import AGENTS, LLMS, SKILL
from tools.docs.mermaid import SCRIPT, VERSION
from tools.docs.offline import loads_from_elsewhere
from tools.docs.pages import FOLDER, pages
from trainyard.operations.table import OPERATIONS
from trainyard.spec.compat.table import ROWS
from trainyard.surfaces.cli.main import OperationCommand, Place, app, build_parameters

DOCS = REPOSITORY / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
PAGES = [*sorted(DOCS.glob("*.md")), *GUIDES]
REFERENCE = sorted(FOLDER / name for name in pages())
"""Built by `make reference`, not committed."""
FOR_AGENTS = [AGENTS, SKILL, LLMS]
READER_PAGES = [*PAGES, REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *FOR_AGENTS]
LOOSE_PAGES = {"glossary"}
"""A page without a command: a table of words."""
CODE = re.compile(r"\b([RE]-[A-Z][A-Z0-9]*(?:-[A-Z0-9]+)*)\b")
COMMAND = re.compile(r"(?:^ *|`)trainyard ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", re.MULTILINE)
MESSAGE_COMMAND = re.compile(r"`trainyard ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?(?=[` .:,])")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
RESERVED_NODE = re.compile(r"\b(?:graph|flowchart|subgraph|end|style|class|click|default)(?=[\[({>])", re.IGNORECASE)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)]*))?\)")
FILE = re.compile(
    r"(?<![\w/.:$}-])(?:trainyard|flows|nodes|tests|deployments|examples|benchmarks|docs)/[\w.-]+(?:/[\w.-]+)*"
)
MODULE = re.compile(
    r"(?:python -m |^(?:from|import) |`)((?:trainyard|tests|docs)(?:\.[a-z_]+)+)(?= |`|$)", re.MULTILINE
)
NOT_MODULES = {"trainyard.toml", "trainyard.night.missing"}
"""A file and an event."""
MAX_SECTIONS = 10

GROUPS = {name.split()[0] for name in OPERATIONS if " " in name}


def product_codes() -> set[str]:
    """Every code in the package's source and in its table of refusals, where some are put together."""
    written = {code for path in sources("trainyard", "nodes", "flows") for code in CODE.findall(path.read_text())}
    return written | {row.code for row in ROWS}


def read_page(page: Path) -> str:
    """Return the text of a page; those of docs/reference are built."""
    return pages()[page.name] if page.parent == FOLDER else page.read_text(encoding="utf-8")


def page_exists(page: Path) -> bool:
    return page.name in pages() if page.parent == FOLDER else page.exists()


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return BLOCK.sub("", read_page(page))


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as the site and GitHub make them."""
    headings = re.findall(r"^#{1,4} (.+)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"\s", "-", heading) for heading in plain}


def site() -> dict[str, Any]:
    project = tomllib.loads((REPOSITORY / "zensical.toml").read_text(encoding="utf-8"))["project"]
    assert isinstance(project, dict)
    return project


def leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from leaves(entry)


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(leaves(site()["nav"])) == sorted(str(page.relative_to(DOCS)) for page in (*PAGES, *REFERENCE))


def test_the_site_has_its_own_fonts_and_diagrams() -> None:
    assert site()["theme"]["font"] is False
    assert site()["extra_javascript"] == [str(SCRIPT.relative_to(DOCS))]
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)


def test_a_site_that_loads_from_another_server_is_found(tmp_path: Path) -> None:
    page = '<link href="a.css"><script src="//unpkg.com/x.js"></script><a href="https://example.com">read</a>'
    (tmp_path / "index.html").write_text(page)
    (tmp_path / "a.css").write_text("@font-face { src: url(https://fonts.example/x.woff) }")
    assert [*loads_from_elsewhere(tmp_path)] == ["index.html: <script> //unpkg.com/x.js", "a.css: url(http"]


@pytest.mark.parametrize("page", READER_PAGES, ids=lambda page: page.stem)
def test_files_and_modules_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = {file.rstrip(".") for file in FILE.findall(text)} - {"trainyard/shipped"}  # only in a wheel
    modules = {module.replace(".", "/") for module in {*MODULE.findall(text)} - NOT_MODULES}
    assert not [file for file in files if not (REPOSITORY / file).exists()]
    assert not [
        module
        for module in modules
        if not (REPOSITORY / f"{module}.py").exists() and not (REPOSITORY / module).is_dir()
    ]


@pytest.mark.parametrize("page", [*READER_PAGES, *REFERENCE], ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_links_lead_somewhere(page: Path) -> None:
    missing = []
    for target, fragment in LINK.findall(prose(page)):
        if "://" in target:
            continue
        linked_page = (page.parent / target).resolve() if target else page
        if not page_exists(linked_page) or (
            fragment and linked_page.suffix == ".md" and fragment not in anchors(linked_page)
        ):
            missing.append(f"{target}#{fragment}" if fragment else target)
    assert not missing


@pytest.mark.parametrize("page", READER_PAGES, ids=lambda page: page.stem)
def test_codes_exist(page: Path) -> None:
    assert not sorted(set(CODE.findall(page.read_text())) - product_codes())


@pytest.mark.parametrize("page", READER_PAGES, ids=lambda page: page.stem)
def test_commands_exist(page: Path) -> None:
    assert not unknown_commands(COMMAND.findall(page.read_text()))


def test_commands_that_messages_name_exist() -> None:
    texts = {path: path.read_text() for path in sources("trainyard", "nodes", "flows", "tasks")}
    named = {path.stem: unknown_commands(MESSAGE_COMMAND.findall(text)) for path, text in texts.items()}
    assert not {name: commands for name, commands in named.items() if commands}


def unknown_commands(named: list[tuple[str, str]]) -> list[str]:
    commands = GROUPS | set(OPERATIONS) | set(app.commands)
    return [
        f"{first} {second}".strip()
        for first, second in named
        if first not in commands
        or (first in GROUPS and second and not takes_argument(first) and f"{first} {second}" not in commands)
    ]


def takes_argument(word: str) -> bool:
    """Whether a first word is a command itself that takes an argument, such as `sweep FILE`."""
    return word in OPERATIONS and any(isinstance(parameter, Place) for parameter in build_parameters(word))


def command_lines(page: Path) -> Iterator[list[str]]:
    text = page.read_text(encoding="utf-8")
    blocks = (block.replace("\\\n", " ") for kind, block in BLOCK.findall(text) if kind == "sh")
    lines = [line for block in blocks for line in block.splitlines()]
    lines += [line.strip() for line in text.splitlines() if line.startswith("    ")]
    yield from (shlex.split(line, comments=True) for line in lines if line.startswith("trainyard "))


@pytest.mark.parametrize("page", READER_PAGES, ids=lambda page: page.stem)
def test_commands_take_their_options(page: Path) -> None:
    for _, *args in command_lines(page):
        if args[0].startswith("-") or args[0] in app.commands:
            continue
        names = [" ".join(args[:count]) for count in (2, 1)]
        name = next(candidate for candidate in names if candidate in OPERATIONS)
        OperationCommand(name).make_context(name, args[len(name.split()) :])


def parse_block(kind: str, text: str) -> object:
    """What a block of code contains, read by the language that it names."""
    if kind == "yaml":
        return [
            document for document in yaml.safe_load_all(re.sub(r"(?m)^config: ", "---\nconfig: ", text)) if document
        ]
    if kind == "toml":
        return tomllib.loads(text)
    if kind == "json":
        return [json.loads(line) for line in ([text] if text.startswith("{\n") else text.splitlines())]
    return ast.parse(text) if kind == "python" else text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_can_be_read(page: Path) -> None:
    assert all(parse_block(kind, text) for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", READER_PAGES, ids=lambda page: page.stem)
def test_no_node_of_a_diagram_has_a_word_of_its_language(page: Path) -> None:
    """Mermaid draws nothing then; the slow tests of the site draw every diagram."""
    diagrams = "\n".join(text for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == "mermaid")
    assert not RESERVED_NODE.findall(diagrams)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_what_to_write_and_has_few_sections(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"^## ", prose(page), re.MULTILINE)) <= MAX_SECTIONS
    if page.stem not in LOOSE_PAGES:
        assert "```" in text.split("\n## ")[0] or "```" in text.split("\n## ")[1]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_shows_what_its_commands_print(page: Path) -> None:
    kinds = [kind for kind, _ in BLOCK.findall(page.read_text(encoding="utf-8"))]
    assert {"sh", "yaml", "text", "mermaid"} <= {*kinds}
    assert len(re.findall(r"^## ", prose(page), re.MULTILINE)) in range(5, 9)
    for start in (DOCS / "index.md", REPOSITORY / "README.md"):
        assert f"guides/{page.name}" in start.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_heading_asks_a_question(page: Path) -> None:
    assert not re.findall(r"^#+ .*\?$", prose(page), re.MULTILINE)
