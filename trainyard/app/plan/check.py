"""Whether chain files would run on this machine, with all reasons at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from trainyard.app.context import Context
from trainyard.app.plan.parse import parse_request
from trainyard.app.plan.plan import list_advice, list_confinement_notes
from trainyard.app.plan.refusals import check_chain
from trainyard.app.plan.resolve import resolve_with_decisions
from trainyard.app.plan.tenancy import keep_to_tenant
from trainyard.app.reach import require_template
from trainyard.app.responses import Response
from trainyard.app.tenant_view import hide_error, hide_reasons
from trainyard.errors import InvalidInput, Reason, Refused, to_reason
from trainyard.json_types import JsonObject
from trainyard.operations.chains import ChainText, CheckInput


class FileCheck(Response):
    file: str
    """Its path; of a chain that was given itself, its name."""
    ok: bool
    digest: str | None = None
    nodes: int = 0
    notes: tuple[str, ...] = ()
    """Choices of the machine that runs the chain, and their values here; settings that are allowed and
    rarely intended."""
    reasons: tuple[JsonObject, ...] = ()
    """As `trainyard.errors.Reason`, with its line."""
    questions: tuple[JsonObject, ...] = ()
    """Reasons, in the same form, for which a run is refused unless it is started with `yes`."""


class CheckOutput(Response):
    files: tuple[FileCheck, ...]

    @property
    def exit_code(self) -> int:
        return 0 if all(file.ok for file in self.files) else Refused.exit_code

    def _repr_markdown_(self) -> str:
        from trainyard.app.notebook_views import check_markdown  # draws curves; only notebooks need it

        return check_markdown(self)


def check(request: CheckInput, context: Context) -> CheckOutput:
    for file in request.files if context.caller.remote else ():
        require_template(file if isinstance(file, Mapping) else str(file), ())
    return CheckOutput(files=tuple(check_file(file, context) for file in request.files))


def check_file(target: Path | ChainText, context: Context) -> FileCheck:
    settings = context.settings
    path = target if isinstance(target, Path) else str(target.get("name") or "chain")
    try:
        request = keep_to_tenant(parse_request(str(target) if isinstance(target, Path) else target), context.caller)
        for note in request.notes:
            context.say(f"{path}: {note}")
        chain, decisions = resolve_with_decisions(request.spec, settings)
        examined = check_chain(chain, settings)
        if examined.reasons:
            raise Refused(examined.reasons)
    except Refused as refused:
        reasons = hide_reasons(context.caller, refused.reasons, settings)
        return FileCheck(file=str(path), ok=False, reasons=rows_of(reasons))
    except InvalidInput as error:
        visible_error = hide_error(context.caller, error, settings)
        row = {**to_reason(visible_error, None, "").as_dict(), "line": str(visible_error)}
        return FileCheck(file=str(path), ok=False, reasons=(row,))
    notes = [f"{decision.node}: {decision.lines()[0]}; the machine that runs it decides" for decision in decisions]
    notes += [f"{node.id}: {text}" for node in chain.nodes for text in list_advice(node.config, settings)]
    notes += list_confinement_notes(chain)
    notes += [f"{text}: a run may still refuse what follows" for text in examined.unread]
    questions = rows_of(hide_reasons(context.caller, examined.shortages, settings))
    return FileCheck(
        file=str(path), ok=True, digest=chain.digest, nodes=len(chain.nodes), notes=tuple(notes), questions=questions
    )


def rows_of(reasons: Iterable[Reason]) -> tuple[JsonObject, ...]:
    """Return reasons as JSON values, each with its line."""
    return tuple({**reason.as_dict(), "line": reason.line()} for reason in reasons)
