"""Whether chain files would run on this machine, with all reasons at once."""

from __future__ import annotations

from pathlib import Path

from trainyard.api import planning
from trainyard.api.context import Context
from trainyard.api.requests.chains import CheckInput
from trainyard.api.responses import Response
from trainyard.errors import InvalidInput, Refused


class ReasonRow(Response):
    """One reason, as `trainyard.errors.Reason`."""

    code: str
    node: str | None
    field: str
    because: str
    instead: str
    row: str = ""
    line: str


class FileCheck(Response):
    file: str
    ok: bool
    digest: str | None = None
    nodes: int = 0
    reasons: tuple[ReasonRow, ...] = ()


class CheckOutput(Response):
    files: tuple[FileCheck, ...]

    @property
    def exit_code(self) -> int:
        return 0 if all(one.ok for one in self.files) else Refused.exit_code


def check(given: CheckInput, context: Context) -> CheckOutput:
    return CheckOutput(files=tuple(check_file(path, context) for path in given.files))


def check_file(path: Path, context: Context) -> FileCheck:
    settings = context.settings
    try:
        wanted = planning.asked(str(path))
        for note in wanted.notes:
            context.say(f"{path}: {note}")
        chain = planning.resolved(wanted.spec, settings)
        if reasons := planning.examine(chain, settings):
            raise Refused(reasons)
    except Refused as refused:
        rows = tuple(ReasonRow(**reason.as_dict(), line=reason.line()) for reason in refused.reasons)
        return FileCheck(file=str(path), ok=False, reasons=rows)
    except InvalidInput as error:
        row = ReasonRow(
            code=error.code, node=None, field="", because=f"{error.what} {error.why}".strip(), instead=error.do,
            line=str(error),
        )  # fmt: skip
        return FileCheck(file=str(path), ok=False, reasons=(row,))
    return FileCheck(file=str(path), ok=True, digest=chain.digest, nodes=len(chain.nodes))
