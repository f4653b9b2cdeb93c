"""The one error tree. Every error of a user names the given value, the allowed ones and the next step.

    TrainyardError                 exit 1   something a run did failed
    ├── NotDeployed                     9   the gate said no; the run is completed            E-GATE
    ├── InvalidInput  (ValueError)      5   a value, a file or a spec is not valid           E-…
    │   └── Refused                     5   one or more combinations are refused             R-…
    ├── Corrupt       (ValueError)      5   something we wrote no longer matches its digest  E-…
    ├── NotFound      (LookupError)     3   a name that does not exist                       E-…
    ├── Conflict      (RuntimeError)    4   locked, already taken, changed meanwhile         E-…
    ├── Denied        (PermissionError) 8   the caller may not ask for this                  E-…
    ├── LimitExceeded (RuntimeError)    6   a cap or quota is reached                        E-…
    └── Unavailable   (RuntimeError)    7   a backend, server or package is not here         E-… R-…

Errors are picklable, because they cross process boundaries (Prefect, supervised children), and carry `code`, `what`,
`why` and `do`, which the command line, REST and `error.json` of a child print the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from trainyard.json_types import JsonMapping


@dataclass(frozen=True)
class Reason:
    """A reason why a spec is not accepted: the row that the CLI, the REST 422 and the editor all print."""

    code: str
    """`R-…` for a refused combination, `E-…` for an invalid input."""
    node: str | None
    """Id of the node it concerns; None for the chain itself."""
    field: str
    """Dotted path of the field, such as `config.method.rank`; empty when the whole node is meant."""
    because: str
    """The input and the reason why it cannot work."""
    instead: str
    """What to write instead."""
    row: str = ""
    """Name of the row of `spec/compat` that refuses it; empty for other reasons."""

    def line(self) -> str:
        where = ".".join(part for part in (self.node, self.field) if part) or "chain"
        return f"{self.code} {where}: {self.because} Instead: {self.instead}"

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class TrainyardError(Exception):
    """Root of everything this package raises on purpose."""

    exit_code = 1
    default_code = "E-FAILED"

    def __init__(self, what: str, *, why: str = "", do: str = "", code: str | None = None) -> None:
        super().__init__(what, why, do, code)
        self.code = code or self.default_code
        self.what, self.why, self.do = what, why, do

    def __str__(self) -> str:
        text = f"{self.code}: {self.what}"
        if self.why:
            text += f" Why: {self.why}"
        if self.do:
            text += f" Do: {self.do}"
        return text

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.why, self.do, self.code)

    def as_dict(self) -> dict[str, object]:
        return {"code": self.code, "what": self.what, "why": self.why, "do": self.do}


def _rebuild(kind: type[TrainyardError], what: str, why: str, do: str, code: str) -> TrainyardError:
    return kind(what, why=why, do=do, code=code)


def from_fields(fields: JsonMapping) -> TrainyardError:
    """The error that a child left as {kind, code, what, why, do} or {reasons}, as an exception of its own class."""
    if fields.get("reasons"):
        return Refused([Reason(**reason) for reason in fields["reasons"]])
    kind = globals().get(str(fields.get("kind")), TrainyardError)
    if not (isinstance(kind, type) and issubclass(kind, TrainyardError)) or kind in (Refused, NotDeployed):
        kind = TrainyardError  # the fields contain no reasons
    text = {name: str(fields.get(name) or "") for name in ("why", "do")}
    return kind(str(fields.get("what")), **text, code=fields.get("code"))


NOT_BETTER = "not better than its baseline"
"""Verdict of a gate whose checks failed."""


class NotDeployed(TrainyardError):
    """The gate said no: the run is completed, its adapter is kept, and nothing was deployed.

    `verdict` is the outcome in a few words; `reasons` lists the checks that failed and `passed` the others.
    """

    exit_code = 9
    default_code = "E-GATE"

    def __init__(
        self,
        what: str,
        *,
        reasons: Sequence[str],
        passed: Sequence[str] = (),
        do: str = "",
        verdict: str = NOT_BETTER,
    ) -> None:
        self.verdict, self.reasons, self.passed = verdict, tuple(reasons), tuple(passed)
        super().__init__(what, why="\n".join(self.reasons), do=do)

    def __reduce__(self) -> tuple[object, ...]:
        return rebuild_not_deployed, (self.what, self.reasons, self.passed, self.do, self.verdict)


def rebuild_not_deployed(
    what: str, reasons: Sequence[str], passed: Sequence[str], do: str, verdict: str
) -> NotDeployed:
    """Return the error of another process."""
    return NotDeployed(what, reasons=reasons, passed=passed, do=do, verdict=verdict)


class InvalidInput(TrainyardError, ValueError):
    """A value, a file or a spec is not valid; nothing was started."""

    exit_code = 5
    default_code = "E-INVALID"


class Refused(InvalidInput):
    """A spec was refused; `reasons` lists all of them, not only the first."""

    def __init__(self, reasons: Sequence[Reason], what: str = "") -> None:
        self.reasons = tuple(reasons)
        first = self.reasons[0]
        count = f"{len(self.reasons)} reason{'s' if len(self.reasons) > 1 else ''}"
        super().__init__(
            what or f"The spec was refused for {count}.",
            why="\n".join(reason.line() for reason in self.reasons),
            do=first.instead,
            code=first.code,
        )

    def __reduce__(self) -> tuple[object, ...]:
        return Refused, (self.reasons, self.what)

    def as_dict(self) -> dict[str, object]:
        return {**super().as_dict(), "reasons": [reason.as_dict() for reason in self.reasons]}


class Corrupt(TrainyardError, ValueError):
    """Stored bytes no longer match their recorded digest."""

    exit_code = 5
    default_code = "E-CORRUPT"


class NotFound(TrainyardError, LookupError):
    """A requested name does not exist."""

    exit_code = 3
    default_code = "E-NOT-FOUND"


class Conflict(TrainyardError, RuntimeError):
    """Locked by another process, already taken, or changed in the meantime."""

    exit_code = 4
    default_code = "E-CONFLICT"


class Denied(TrainyardError, PermissionError):
    """The caller is unknown, or may not ask for this."""

    exit_code = 8
    default_code = "E-AUTH"


class LimitExceeded(TrainyardError, RuntimeError):
    """A cap (size, depth, count, quota) was reached."""

    exit_code = 6
    default_code = "E-LIMIT"


class Unavailable(TrainyardError, RuntimeError):
    """A backend, a server, a device or an optional package is not here."""

    exit_code = 7
    default_code = "E-UNAVAILABLE"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, at most 300 characters; the name of its class where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def to_reason(error: TrainyardError, node: str | None, field: str) -> Reason:
    """An error as a reason of a node."""
    return Reason(error.code, node, field, f"{error.what} {error.why}".strip(), error.do)
