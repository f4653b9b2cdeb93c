"""Log a browser in: a token once, then a cookie that no script can read.

    POST /api/v1/login {"token": …}   a cookie for half a day, and what it allows: {caller, scope, tenant, csrf}
    GET  /api/v1/login                who is logged in
    POST /api/v1/logout               the login ends here and in the browser

What changes something needs the header X-CSRF-Token with `csrf`, besides the cookie.
"""

from __future__ import annotations

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trainyard.app.access.audit import record_event
from trainyard.app.context import Caller
from trainyard.errors import Denied
from trainyard.json_types import JsonObject
from trainyard.stores.secret_files import CODE_PREFIX, LOGIN_S, forgery_token
from trainyard.surfaces.access.authentication import Authenticator
from trainyard.surfaces.access.entrance import LOGIN, caller_of_request
from trainyard.surfaces.bodies import read_request, read_trace_id

LOGOUT = "/api/v1/logout"


class LoginInput(BaseModel):
    """Login of a browser."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: str = Field(min_length=1, max_length=1024)
    """A token, the home's string, or the code of a link of `trainyard dashboard`, which works once."""


def add_logins(app: Starlette, authenticator: Authenticator) -> None:
    """Add the three routes."""

    def facts(caller: Caller, cookie: str) -> JsonObject:
        csrf = forgery_token(cookie) if cookie else ""
        return {"caller": caller.name, "scope": caller.scope.value, "tenant": caller.tenant, "csrf": csrf}

    async def log_in(request: Request) -> Response:
        login = await read_request(LoginInput, request)
        return await anyio.to_thread.run_sync(begin, request, login.token)

    def begin(request: Request, token: str) -> Response:
        address = request.client.host if request.client else ""
        try:
            if token.startswith(CODE_PREFIX):
                caller, token_id = authenticator.caller_of_code(token)
            else:
                caller, token_id = authenticator.caller_of_credentials(token, address)
        except Denied as error:
            record_event(authenticator.settings, "login", "", read_trace_id(request), error)
            raise
        cookie = authenticator.logins.begin(token_id)
        record_event(authenticator.settings, "login", caller.name, read_trace_id(request))
        answer = JSONResponse(facts(caller, cookie))
        answer.set_cookie(
            authenticator.cookie_name, cookie, max_age=LOGIN_S, path="/", httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return answer

    async def show_caller(request: Request) -> Response:
        return JSONResponse(facts(caller_of_request(request), authenticator.read_cookie(request.headers)))

    async def log_out(request: Request) -> Response:
        await anyio.to_thread.run_sync(authenticator.logins.end, authenticator.read_cookie(request.headers))
        record_event(authenticator.settings, "logout", caller_of_request(request).name, read_trace_id(request))
        answer = Response(status_code=204)
        answer.delete_cookie(authenticator.cookie_name, path="/", httponly=True, samesite="strict")
        return answer

    app.add_route(LOGIN, log_in, methods=["POST"])
    app.add_route(LOGIN, show_caller, methods=["GET"])
    app.add_route(LOGOUT, log_out, methods=["POST"])
