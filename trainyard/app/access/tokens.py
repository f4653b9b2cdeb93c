"""Tokens of the API: make one, list them, revoke one."""

from __future__ import annotations

import time

from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.errors import Conflict
from trainyard.operations.access import CreateTokenInput, RevokeTokenInput
from trainyard.operations.base import Nothing
from trainyard.operations.table import Scope
from trainyard.stores.secret_files import TokenFile, TokenRecord


class Token(Response):
    """Permissions of a token, without the token itself."""

    name: str
    scope: Scope
    tenant: str
    """Empty: every tenant."""
    created: float
    expires: float
    valid: bool


class NewToken(Token):
    """A token that was made; this is the only time that it is shown."""

    token: str


class TokenList(Response):
    tokens: tuple[Token, ...]


def describe_token(record: TokenRecord) -> dict[str, object]:
    return {
        "name": record.name,
        "scope": Scope(record.scope),
        "tenant": record.tenant,
        "created": record.created,
        "expires": record.expires,
        "valid": record.is_valid(time.time()),
    }


def create_token(request: CreateTokenInput, context: Context) -> NewToken:
    """Make a token. Raises `Conflict` for a name that is taken."""
    tokens = TokenFile(context.settings.home)
    token = tokens.create(request.name, request.scope, request.tenant or "", request.days)
    entry = tokens.find(token)
    assert entry is not None
    return NewToken.model_validate({**describe_token(entry), "token": token})


def list_tokens(request: Nothing, context: Context) -> TokenList:
    entries = TokenFile(context.settings.home).list()
    return TokenList(tokens=tuple(Token.model_validate(describe_token(entry)) for entry in entries))


def revoke_token(request: RevokeTokenInput, context: Context) -> Token:
    """Revoke a token, at once, also in a running service. Raises `NotFound`, and `Conflict` for the caller's own."""
    if context.caller.remote and context.caller.name == request.name:
        raise Conflict(
            f"This request came with the token {request.name!r} itself.",
            do="Revoke it with another token, or on the machine.", code="E-CONFLICT",
        )  # fmt: skip
    entry = TokenFile(context.settings.home).revoke(request.name)
    return Token.model_validate({**describe_token(entry), "valid": False})
