"""Pages that programs read first: parts of AGENTS.md and of the skill, and llms.txt as a whole, from the tables."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from tools.docs.markdown import listed, table
from trainyard.operations.table import OPERATIONS
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.stages import Stage
from trainyard.spec.nodes import NODE_MODELS
from trainyard.spec.templates import TEMPLATES

REPOSITORY = Path(__file__).parents[2]
AGENTS, SKILL, LLMS = (
    REPOSITORY / "AGENTS.md",
    REPOSITORY / "skills" / "trainyard" / "SKILL.md",
    REPOSITORY / "llms.txt",
)
PART = re.compile(r"(?P<open><!-- generated: (?P<name>\w+) -->\n).*?(?P<close><!-- end -->)", re.DOTALL)
SENTENCE = re.compile(r".+?(?:[.:](?=\s|$)|$)")
MOST_CHARS = 200
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def files(reference: Mapping[str, str]) -> dict[Path, str]:
    """Return each file with its generated parts as they should be, by the text of each page of docs/reference."""
    return {**{path: fill(path.read_text(encoding="utf-8")) for path in (AGENTS, SKILL)}, LLMS: llms_text(reference)}


def fill(text: str) -> str:
    """Return a page with the parts between its marks made again."""
    return PART.sub(lambda part: f"{part['open']}{PARTS[part['name']]()}\n{part['close']}", text)


def arrows_text() -> str:
    """The layers of the package, as import-linter has them."""
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    rooms = next(contract for contract in contracts["contracts"] if contract["name"] == "the rooms of trainyard")
    return "```text\n" + "\n".join(rooms["layers"]) + "\n```"


def targets_text() -> str:
    """The targets of the Makefile that a maintainer uses, with their help."""
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    rows = re.findall(r"^([a-z-]+):[^\n]*## (.+)$", makefile, re.MULTILINE)
    targets = (
        "setup",
        "check",
        "test",
        "test-fast",
        "test-integration",
        "test-all",
        "test-browser",
        "demo",
        "reference",
        "web",
    )
    return table(["target", "what it does"], [[f"`make {name}`", text] for name, text in rows if name in targets])


def words_text() -> str:
    """The values of the axes that a chain is made of."""
    axes: dict[str, Iterable[object]] = {
        "node types": NODE_MODELS, "stages": Stage, "methods": Method, "backends": BackendName, "templates": TEMPLATES,
    }  # fmt: skip
    names = {axis: [str(getattr(value, "value", value)) for value in values] for axis, values in axes.items()}
    return table(["axis", "values"], [[axis, listed(values)] for axis, values in names.items()])


def commands_text() -> str:
    """One line for each command, by its first word."""
    lines = []
    for word, names in groupby(OPERATIONS, key=lambda name: name.split()[0]):
        group = list(names)
        if len(group) == 1:
            lines.append(f"- `trainyard {group[0]}`: {OPERATIONS[group[0]].summary}")
        else:
            lines.append(f"- `trainyard {word}`: {listed(name.partition(' ')[2] or word for name in group)}")
    return "\n".join(lines)


PARTS = {"arrows": arrows_text, "targets": targets_text, "words": words_text, "commands": commands_text}


def llms_text(reference: Mapping[str, str]) -> str:
    """Return the index of the manual for language models (llmstxt.org): sections of links with one sentence each."""
    project = tomllib.loads((REPOSITORY / "zensical.toml").read_text(encoding="utf-8"))["project"]
    promise = (
        "a chain is checked before it runs, a training that was stopped continues to the same bits, an adapter goes "
        "live only when it is better."
    )
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}: {promise}"]
    for section in project["nav"]:
        for name, pages in section.items():
            lines += ["", f"## {name}", "", *links_of(pages, reference)]
    return "\n".join([*lines, "", "## Optional", "", *outside_links()]) + "\n"


def links_of(pages: list[dict[str, Any]], reference: Mapping[str, str]) -> Iterator[str]:
    for page in pages:
        for title, name in page.items():
            text = reference.get(name.removeprefix("reference/")) or (REPOSITORY / "docs" / name).read_text("utf-8")
            yield f"- [{title}](docs/{name}): {first_sentence(text)}"


def outside_links() -> Iterator[str]:
    for title, name in (("How to work on the code", "AGENTS.md"), ("A skill for agents", "skills/trainyard/SKILL.md"),
                        ("Changes", "CHANGELOG.md")):  # fmt: skip
        yield f"- [{title}]({name})"


def first_sentence(page: str) -> str:
    """Return the first sentence of a page's prose, without Markdown."""
    text = re.sub(r"<!--.*?-->", "", BLOCK.sub("", page), flags=re.DOTALL)
    prose = (line for line in text.split("\n\n") if line.strip() and not line.lstrip().startswith(("#", "|", "!", "-")))
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(next(prose, "").split())).replace("*", "")
    sentence = SENTENCE.match(plain)
    line = (sentence.group() if sentence else plain).rstrip(":.") + "."
    return line if len(line) <= MOST_CHARS else line[: MOST_CHARS - 1].rsplit(" ", 1)[0] + " …"
