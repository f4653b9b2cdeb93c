"""Who a request comes from: the caller of its token. Raises `Denied` (`E-AUTH`) for one that nobody knows."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable
from dataclasses import replace

from starlette.requests import Request

from trainyard.api.context import OWNER, Caller
from trainyard.errors import Denied
from trainyard.settings import Settings
from trainyard.stores.auth_string import read_auth

REMOTE_OWNER = replace(OWNER, remote=True)


def home_authenticator(settings: Settings) -> Callable[[Request], Caller]:
    """Return what accepts the string of this home: whole, or its part after the colon."""
    text = read_auth(settings) or ""
    accepted = [one for one in (text, text.partition(":")[2]) if one]

    def authenticate(request: Request) -> Caller:
        given = token_of(request.headers.get("authorization", ""))
        if given and any(hmac.compare_digest(given.encode(), one.encode()) for one in accepted):
            return REMOTE_OWNER
        raise Denied(
            "The token is wrong." if given else "There is no token.",
            do="Send the header Authorization: Bearer TOKEN; `trainyard tokens create` makes one.", code="E-AUTH",
        )  # fmt: skip

    return authenticate


def token_of(header: str) -> str:
    """The token of an Authorization header: of Bearer, or the user and password of Basic."""
    scheme, _, given = header.partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(given, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return given.strip() if scheme.lower() == "bearer" else ""
