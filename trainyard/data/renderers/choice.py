"""From the setting `template` to a template: `auto`, a renderer's name, or a `.jinja` file. No transformers, no torch.

A template is recognised by the SHA-256 of its text, never by a model's name: two models of one name may carry different
templates, and a changed template is another template.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from trainyard.data.paths import resolve_inside
from trainyard.data.renderers.contract import RendererSpec
from trainyard.data.renderers.table import DEFAULT, PLAIN_TEMPLATE, RENDERERS, ROLE_COLON
from trainyard.errors import InvalidInput, NotFound

AUTO = "auto"
FILE_ENDING = ".jinja"
MAX_TEMPLATE_CHARS = 256 << 10
"""Most characters of a template file; the longest that is known has 20,000."""
START = re.compile(r'\{\{ (?:bos_token|"(?:[^"\\]|\\.)*") \}\}')
"""A first expression that writes the tokenizer's first tokens (`tokenizer.py`)."""


@dataclass(frozen=True)
class ChosenTemplate:
    """A chosen template."""

    spec: RendererSpec
    text: str
    note: str = ""
    """Note for the user; empty if the template is the requested one."""

    @property
    def sha256(self) -> str:
        return digest(self.text)


def choose_template(name: str, base_template: str | None = None, *, roots: Sequence[Path] = ()) -> ChosenTemplate:
    """Return the template for `name`: `auto` (`base_template`), a renderer's name, or a `.jinja` file in `roots`.

    Raises `NotFound` (`E-CHAT-TEMPLATE`, `E-DATA-NOT-FOUND`), `Refused` (`R-PATH-ROOT`) and `InvalidInput`
    (`E-CHAT-TEMPLATE`). A file's text is only read here; `serve.chat_templates.check_chat_template` tries it.
    """
    if name == AUTO:
        if base_template:
            return ChosenTemplate(recognise_template(base_template), base_template)
        note = "The tokenizer has no chat template; the renderer role_colon is used and saved with the result."
        return ChosenTemplate(ROLE_COLON, PLAIN_TEMPLATE, note)
    if name.endswith(FILE_ENDING):
        text = read(resolve_inside(name, roots or (Path.cwd(),), field="config.engine.template"))
        return ChosenTemplate(recognise_template(text), text)
    spec = find_renderer(name)
    return ChosenTemplate(spec, template_text(spec, next(iter(spec.templates))))


def find_renderer(name: str) -> RendererSpec:
    """Return a row of the table. Raises `NotFound` (`E-CHAT-TEMPLATE`)."""
    if name in RENDERERS:
        return RENDERERS[name]
    near = difflib.get_close_matches(name, RENDERERS, n=1)
    raise NotFound(
        f"There is no renderer {name!r}.",
        why=f"Renderers are {', '.join(RENDERERS)}.",
        do=f"Did you mean {near[0]!r}?" if near else "Write auto, one of these names, or a path that ends in .jinja.",
        code="E-CHAT-TEMPLATE",
    )


def read(path: Path) -> str:
    """Return the text of a template file. Raises `InvalidInput` (`E-CHAT-TEMPLATE`)."""
    if not path.is_file() or path.stat().st_size > 4 * MAX_TEMPLATE_CHARS:
        raise unreadable(path, "It is not a file, or far too long.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise unreadable(path, f"It is not UTF-8: {error.reason} at byte {error.start}.") from error
    if not text.strip() or len(text) > MAX_TEMPLATE_CHARS:
        raise unreadable(path, f"It has {len(text):,} characters; 1 to {MAX_TEMPLATE_CHARS:,} are allowed.")
    return text


def unreadable(path: Path, why: str) -> InvalidInput:
    return InvalidInput(
        f"{path.name} cannot be used as a chat template.", why=why, do="Give a Jinja text file.",
        code="E-CHAT-TEMPLATE",
    )  # fmt: skip


def recognise_template(text: str) -> RendererSpec:
    """Return the row of a template's text; the default renderer if no row knows it."""
    return map_by_digest().get(digest(text)) or map_by_digest().get(digest(strip_start(text)), DEFAULT)


def strip_start(text: str) -> str:
    """Return a template's text without the first expression that writes the tokenizer's first tokens."""
    match = START.match(text)
    return text[match.end() :] if match else text


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def map_by_digest() -> dict[str, RendererSpec]:
    """SHA-256 of a template's text -> its row of the table."""
    return {digest(template_text(spec, name)): spec for spec in RENDERERS.values() for name in spec.templates}


def template_text(spec: RendererSpec, name: str) -> str:
    """Return the text of one of a row's templates. Raises `NotFound` (`E-CHAT-TEMPLATE`) if TRL does not ship it."""
    if name in spec.own_templates:
        return spec.own_templates[name]
    path = list_shipped().get(name)
    if path is None:
        raise NotFound(
            f"The renderer {spec.name} needs the chat template {name}, which the installed TRL does not have.",
            do="Install the TRL release that constraints.txt names.",
            code="E-CHAT-TEMPLATE",
        )
    return path.read_text(encoding="utf-8")


@cache
def list_shipped() -> dict[str, Path]:
    """Name -> file of every chat template in the installed TRL. Its package is found, not imported (5 s)."""
    spec = find_spec("trl")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return {path.stem: path for folder in folders for path in sorted(Path(folder, "chat_templates").glob("*.jinja"))}
