"""Authentication of requests: the caller of its token, of the home's own string, or of a browser's login.

Authorization: Bearer ty_…              a token that `trainyard tokens create` made
Authorization: Bearer | Basic STRING    the string of this home, whole or its part after the colon: everything
X-API-Key: tml-…                        either of both, as the Tinker SDK sends it
Cookie                                  a browser that logged in; what changes something needs X-CSRF-Token, too
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http.cookies import CookieError, SimpleCookie

from trainyard.app.access.guard import READING
from trainyard.app.access.limits import WrongCredentials
from trainyard.app.context import OWNER, Caller
from trainyard.errors import Denied
from trainyard.operations.table import Scope
from trainyard.settings import Settings
from trainyard.stores.auth_string import read_auth
from trainyard.stores.secret_files import PREFIX, LoginFile, TokenFile, TokenRecord, forgery_token, id_of_string

REMOTE_OWNER = replace(OWNER, remote=True)
FORGERY_HEADER = "x-csrf-token"
API_KEY_HEADER, API_KEY_PREFIX = "x-api-key", "tml-"
"""How the Tinker SDK sends a token; it takes only keys with this prefix."""
LOGIN_AGAIN = "Send the header Authorization: Bearer TOKEN; `trainyard tokens create` makes one."


@dataclass
class Authenticator:
    """Authenticator of the callers of a home. With `everybody`, who reaches this server is its owner (`--no-auth`)."""

    settings: Settings
    everybody: bool = False
    wrong: WrongCredentials = field(init=False)

    def __post_init__(self) -> None:
        self.wrong = WrongCredentials(self.settings.api_failed_logins)
        self.tokens, self.logins = TokenFile(self.settings.home), LoginFile(self.settings.home)

    def authenticate(self, headers: Mapping[str, str], method: str = "GET", address: str = "") -> Caller:
        """Return the caller of a request. Raises `Denied` (`E-AUTH`, `E-REQUEST-REFUSED`) and `TooMany` (`E-RATE`)."""
        if self.everybody:
            return REMOTE_OWNER
        if "authorization" in headers:
            return self.caller_of_credentials(parse_token(headers["authorization"]), address)[0]
        if API_KEY_HEADER in headers:
            return self.caller_of_credentials(headers[API_KEY_HEADER].removeprefix(API_KEY_PREFIX), address)[0]
        cookie = self.read_cookie(headers)
        if not cookie:
            raise Denied("There is no token.", do=LOGIN_AGAIN, code="E-AUTH")
        caller = self.caller_of_cookie(cookie)
        authorization = headers.get(FORGERY_HEADER, "")
        if method not in READING and not hmac.compare_digest(authorization.encode(), forgery_token(cookie).encode()):
            raise Denied(
                f"The header {FORGERY_HEADER} is {'wrong' if authorization else 'missing'}.",
                why="A page of another origin can make a browser send its cookie, but does not know this value.",
                do="Send the csrf of the answer to the login.", code="E-REQUEST-REFUSED",
            )  # fmt: skip
        return caller

    def caller_of_credentials(self, credentials: str, address: str) -> tuple[Caller, str]:
        """Return the caller of a token or of the home's string, and the token's id. Raises as `authenticate` does."""
        if credentials.startswith(PREFIX):
            if (record := self.tokens.find(credentials)) is not None:
                return build_caller(record), record.id
            raise Denied("The token is wrong, or was revoked, or has expired.", do=LOGIN_AGAIN, code="E-AUTH")
        self.wrong.require_patience(address)
        text = read_auth(self.settings) or ""
        accepted = [candidate for candidate in (text, text.partition(":")[2]) if candidate]
        if credentials and any(
            hmac.compare_digest(credentials.encode(errors="replace"), secret.encode()) for secret in accepted
        ):
            return REMOTE_OWNER, id_of_string(text)
        self.wrong.note(address)
        problem = "This is neither a token nor the string of this home." if credentials else "There is no token."
        raise Denied(problem, do=LOGIN_AGAIN, code="E-AUTH")

    def caller_of_code(self, code: str) -> tuple[Caller, str]:
        """Return the caller of a code of a link, which is used up then, and the token's id. Raises `Denied`
        (`E-AUTH`).
        """
        token_id = self.logins.redeem_code(code)
        if token_id is None:
            raise Denied(
                "This link was used before, or is older than an hour.", do="Make another: `trainyard dashboard`.",
                code="E-AUTH",
            )  # fmt: skip
        return self.caller_with_id(token_id), token_id

    def caller_of_cookie(self, cookie: str) -> Caller:
        """Return the caller of a login, with what its token allows now."""
        return self.caller_with_id(self.logins.find(cookie))

    def caller_with_id(self, token_id: str | None) -> Caller:
        """Return the caller of a token by its id. Raises `Denied` (`E-AUTH`) if there is none (any more)."""
        if token_id is not None and token_id == id_of_string(read_auth(self.settings) or ""):
            return REMOTE_OWNER
        record = self.tokens.find_by_id(token_id) if token_id is not None else None
        if record is None:
            raise Denied("The login has ended.", do="Log in again.", code="E-AUTH")
        return build_caller(record)

    @property
    def cookie_name(self) -> str:
        """Return one for each home: browsers send a cookie to every port of a host."""
        return f"trainyard_{hashlib.sha256(str(self.settings.home).encode()).hexdigest()[:8]}"

    def read_cookie(self, headers: Mapping[str, str]) -> str:
        """Return the cookie of a browser's login; empty without one."""
        try:
            caller = SimpleCookie(headers.get("cookie", "")).get(self.cookie_name)
        except CookieError:
            return ""
        return caller.value if caller is not None else ""


def build_caller(record: TokenRecord) -> Caller:
    return Caller(record.name, Scope(record.scope), record.tenant, remote=True, token_id=record.id)


def parse_token(header: str) -> str:
    """Return the token of an Authorization header: of Bearer, or the user and password of Basic."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(token, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return ""
    return token.strip() if scheme.lower() == "bearer" else ""
