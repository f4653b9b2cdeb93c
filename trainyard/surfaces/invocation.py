"""The request and the implementation of an operation by its name: what every surface begins with.

`carry_out` is the one way in of every surface. It compares the operation with what the caller may do, and puts what
changes something into the audit log.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from pydantic import BaseModel, ValidationError

from trainyard.app.context import Context
from trainyard.cancellation import bind_departure
from trainyard.errors import Denied, InvalidInput, NotFound
from trainyard.loading import load_object
from trainyard.operations.fields import Argument, FieldError, Option
from trainyard.operations.table import OPERATIONS, Scope, find_route

SCOPES = tuple(Scope)
"""Each allows what those before it allow."""
TYPED = frozenset({"check", "plan", "run", "jobs create", "chains create", "chains update", "sessions create"})
"""Operations that read a new spec: over a network it is JSON, in which `"3"` and true are not read as numbers."""


def build_request(name: str, fields: Mapping[str, object]) -> Any:
    """Return the request of an operation. Raises `FieldError` for a value that it does not take."""
    try:
        return OPERATIONS[name].request(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise FieldError(str(first["loc"][0]), first["msg"]) from error


def check_request(name: str, fields: Mapping[str, object], called: str) -> Any:
    """Return the request of an operation that a program gives by name; `called` is its name there.

    Raises `InvalidInput` (`E-PARAMETER`) for a field that it does not have, or a value that it does not take.
    """
    allowed = OPERATIONS[name].request.model_fields
    takes = f"It takes {', '.join(allowed) or 'nothing'}."
    try:
        return build_request(name, fields)
    except FieldError as error:
        if error.field not in allowed:
            from trainyard.spec.load.parse import suggest  # only an error needs it

            raise InvalidInput(
                f"{called} has no field {error.field!r}.", why=takes,
                do=suggest(error.field, allowed, "Leave it out."), code="E-PARAMETER",
            ) from error  # fmt: skip
        raise InvalidInput(
            f"{called} does not take this value of {error.field!r}: {error.message}.", why=takes,
            do="Correct the field.", code="E-PARAMETER",
        ) from error  # fmt: skip


def load_implementation(name: str) -> Any:
    """Return the function that carries an operation out: (request, context) -> response."""
    return load_object(f"trainyard.{OPERATIONS[name].run}")


def execute_operation(name: str, request: Any, context: Context) -> Any:
    """Carry an operation out for a caller, if the caller may ask for it. What changes something is in the audit log.

    Raises `Denied` (`E-SCOPE`, `E-LOCAL`), and what the operation raises; over a network also `InvalidInput`
    (`E-PARAMETER`) for a request with a secret in it, and what the audit log raises when its disk is full.
    """
    if context.surface == "cli" and context.settings.rentals.is_dir():
        from trainyard.app.gpus import release_due  # only homes with rented machines need it

        release_due(context.settings, context.say)
    if not changes_something(name):
        require_allowed(name, request, context)
        return work(name, request, context)
    from trainyard.app.access.audit import AuditEntry  # imported by the first audited call

    entry = AuditEntry(name, request, context)
    entry.begin()
    try:
        require_allowed(name, request, context)
        response = work(name, request, context)
    except BaseException as error:
        entry.end(error=error)
        raise
    context.afterwards(partial(entry.end, response, ended=time.time()))
    return response


def work(name: str, request: Any, context: Context) -> Any:
    """Return the response of an operation.

    Raises `LimitExceeded` (`E-RATE`) while too many heavy ones are running, and `CallerLeft` where only an answer is
    lost by that.
    """
    with bind_departure(context.departure if ends_with_caller(name) else None):
        if context.caller.remote and name in TYPED:
            from trainyard.spec.load.parse import require_typed_numbers  # only the command line needs it

            with require_typed_numbers():
                return work_within_limits(name, request, context)
        return work_within_limits(name, request, context)


def work_within_limits(name: str, request: object, context: Context) -> object:
    """Return the response of an operation, in a child or in one of the places for heavy ones. Raises as `work` does."""
    if context.caller.remote and OPERATIONS[name].confined and context.confined is not None:
        return context.confined.run_operation(name, request, context)
    if not (context.caller.remote and OPERATIONS[name].heavy):
        return find_or_suggest(name, request, context)
    from trainyard.app.access.limits import reserve_heavy_slot  # only services limit heavy calls

    with reserve_heavy_slot(context.settings.api_heavy_calls):
        return find_or_suggest(name, request, context)


def find_or_suggest(name: str, request: Any, context: Context) -> Any:
    """Return the response of an operation; what it does not find by its name is answered with the names that are like
    it.
    """
    try:
        return load_implementation(name)(request, context)
    except (NotFound, InvalidInput) as error:
        from trainyard.app.suggestions import with_nearest  # only an error needs it

        raise with_nearest(error, request, context) from error.__cause__


def refuse_early(name: str, model: type[BaseModel], context: Context) -> None:
    """Refuse operations that the caller may not run with any values, before these are read. Raises `Denied`."""
    nothing = empty_request(model)
    try:
        require_allowed(name, nothing, context)
    except Denied as error:
        if changes_something(name):
            from trainyard.app.access.audit import AuditEntry  # imported by the first audited call

            AuditEntry(name, nothing, context).end(error=error)
        raise


@cache
def empty_request(model: type[BaseModel]) -> BaseModel:
    """Return a request in which nothing is set."""
    return model.model_construct(_fields_set=set())


@cache
def changes_something(name: str) -> bool:
    """Return whether an operation is in the audit log: what needs more than the scope read, and more than to be looked
    at.
    """
    return OPERATIONS[name].scope is not Scope.READ and find_route(name)[0] != "GET"


@cache
def ends_with_caller(name: str) -> bool:
    """Return whether an operation ends when its caller leaves: what makes nothing but an answer. Others finish what
    they
    have begun: a write that is cut in half helps nobody."""
    return OPERATIONS[name].only_answers or not changes_something(name)


def require_allowed(name: str, request: Any, context: Context) -> None:
    """Compare an operation with what its caller may do. Raises `Denied` (`E-SCOPE`, `E-LOCAL`)."""
    operation, caller = OPERATIONS[name], context.caller
    if SCOPES.index(operation.scope) > SCOPES.index(caller.scope):
        raise Denied(
            f"{name} needs a token with the scope {operation.scope.value}; {caller.name} has {caller.scope.value}.",
            do="Use another token; `trainyard tokens create` makes one.", code="E-SCOPE",
        )  # fmt: skip
    if caller.tenant and not operation.tenants:
        raise Denied(
            f"{name} concerns every tenant of this machine; the token of {caller.name} is for {caller.tenant} only.",
            do="Use a token that is for all tenants.", code="E-SCOPE",
        )  # fmt: skip
    if caller.remote and operation.local:
        raise Denied(
            f"{name} can only be asked for on the machine itself.", why=operation.local,
            do=f"Run `trainyard {name}` there.", code="E-LOCAL",
        )  # fmt: skip
    kind: type[BaseModel] = type(request)
    if caller.remote and (named := sorted(request.model_fields_set & local_fields(kind))):
        raise Denied(
            f"{named[0]} of {name} can only be given on the machine itself.",
            why="It names an address or a file that only the machine's user may choose, or prints in a terminal.",
            do="Leave it out.", code="E-LOCAL",
        )  # fmt: skip
    if caller.remote and request.model_fields_set:
        # Imported here: only services check texts.
        from trainyard.app.reach import require_reachable  # only services check texts
        from trainyard.app.secrets import refuse_secrets, texts_of_request  # only services check texts

        texts = texts_of_request(request)
        refuse_secrets(texts)
        require_reachable(texts, context.settings, caller.tenant)


@cache
def local_fields(request: type[BaseModel]) -> frozenset[str]:
    """Return the fields of a request that only a caller on this machine may set."""
    return frozenset(
        name for name, field in request.model_fields.items()
        if any(isinstance(marker, Argument | Option) and marker.local for marker in field.metadata)
    )  # fmt: skip
