"""Renderers for an operator: the table, tried on this machine. Imports transformers."""

from __future__ import annotations

from pathlib import Path

from trainyard.api.context import Context
from trainyard.api.requests.trainers import RenderersInput
from trainyard.api.responses import Response
from trainyard.data.renderers import verify
from trainyard.data.renderers.choice import FILE_ENDING, read
from trainyard.errors import TrainyardError
from trainyard.serve.chat_templates import check_chat_template


class RendererRow(Response):
    """One template: what was found when it was tried."""

    renderer: str
    template: str
    extension: bool
    """Whether each prompt begins with the prompt before it and what the model said, in every kind of conversation."""
    kinds: dict[str, str]
    """Kind of conversation -> yes, the relation that fails, or - where the template does not take it."""
    stops: tuple[str, ...]
    sha256: str
    problem: str


class RendererTable(Response):
    rows: tuple[RendererRow, ...]

    @property
    def exit_code(self) -> int:
        return TrainyardError.exit_code if any(row.problem for row in self.rows) else 0


def verify_renderers(given: RenderersInput, _context: Context) -> RendererTable:
    """Try every known template, or those that are named: of a renderer, one template, or a .jinja file."""
    files = [Path(name) for name in given.names if name.endswith(FILE_ENDING)]
    for path in files:
        check_chat_template(read(path))
    known = frozenset(name for name in given.names if not name.endswith(FILE_ENDING))
    found = verify.verify(known) if known or not files else []
    found += [verify.verify_file(path) for path in files]
    rows = (
        RendererRow(
            renderer=one.renderer, template=one.template, extension=one.extension, kinds=one.kinds, stops=one.stops,
            sha256=one.sha256, problem=one.problem,
        )
        for one in found
    )  # fmt: skip
    return RendererTable(rows=tuple(rows))
