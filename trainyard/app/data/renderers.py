"""Renderers for an operator: the table, tried on this machine. Imports transformers."""

from __future__ import annotations

from pathlib import Path

from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.data.renderers.choice import FILE_ENDING, read
from trainyard.data.renderers.verify import Verified, verify, verify_file
from trainyard.errors import TrainyardError
from trainyard.operations.backends import RenderersInput
from trainyard.serve.prompt_fields import check_chat_template


class RendererTable(Response):
    rows: tuple[Verified, ...]

    @property
    def exit_code(self) -> int:
        return TrainyardError.exit_code if any(row.problem for row in self.rows) else 0


def verify_renderers(request: RenderersInput, _context: Context) -> RendererTable:
    """Try every known template, or those that are named: of a renderer, one template, or a .jinja file."""
    files = [Path(name) for name in request.names if name.endswith(FILE_ENDING)]
    for path in files:
        check_chat_template(read(path))
    names = frozenset(name for name in request.names if not name.endswith(FILE_ENDING))
    rows = verify(names) if names or not files else []
    rows += [verify_file(path) for path in files]
    return RendererTable(rows=tuple(rows))
