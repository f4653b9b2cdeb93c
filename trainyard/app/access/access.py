"""Access to the Prefect server that `up` starts: its login, its origins, and an operator's settings of both.

Imports neither Prefect nor torch. What the server does with it is in `prefect_api/guard.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from trainyard.errors import Conflict, InvalidInput
from trainyard.settings import Settings
from trainyard.stores.auth_string import SERVER_VARIABLE, auth_file, keep_auth, read_auth

PREFIX = "PREFECT_SERVER_"
ORIGINS_VARIABLE = "PREFECT_SERVER_CORS_ALLOWED_ORIGINS"
ORIGINS_NAMES = (ORIGINS_VARIABLE, "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS")
"""Prefect reads both names."""
ORIGIN = re.compile(r"https?://[a-z0-9.:\[\]-]+")
DEFAULTS = {
    "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
    # In memory, the default, a server that restarts forgets who has a slot and never frees it again.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}
"""Defaults of Trainyard's server, unless the operator sets others."""


def server_variables(settings: Settings, url: str, *, auth: bool = True) -> dict[str, str]:
    """Return the `PREFECT_SERVER_…` variables of the server at `url` (…/api): the operator's over ours, and the home's
    string.

    Raises `InvalidInput` (`E-PREFECT-VARIABLE`) for a variable that contradicts how `up` starts the server, and
    `E-AUTH` for a string that cannot be used.
    """
    variables = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    address = urlsplit(url)
    fixed = {
        "PREFECT_SERVER_API_HOST": (str(address.hostname), "forward its port, or let a proxy on this machine reach it"),
        "PREFECT_SERVER_API_PORT": (
            str(address.port),
            f"set TRAINYARD_PREFECT_PORT={variables.get(f'{PREFIX}API_PORT')}",
        ),
        "PREFECT_SERVER_API_BASE_PATH": (address.path, "let a proxy on this machine rename it"),
    }
    for name, (fixed_value, instead) in fixed.items():
        if variables.get(name, fixed_value) != fixed_value:
            raise variable_error(name, f"`trainyard up` starts its server with {fixed_value}.", f"Unset it; {instead}.")
    if not auth and SERVER_VARIABLE in variables:
        raise variable_error(
            SERVER_VARIABLE, "--no-auth starts a server without it.", "Unset it, or leave --no-auth out."
        )
    text = keep_auth(settings, variables.get(SERVER_VARIABLE))
    other_variables = {name: value for name, value in variables.items() if name not in ORIGINS_NAMES}
    local_origins = (f"http://127.0.0.1:{address.port}", f"http://localhost:{address.port}")
    origins = ",".join((*local_origins, *operator_origins(variables)))
    return {**DEFAULTS, **other_variables, ORIGINS_VARIABLE: origins, **({SERVER_VARIABLE: text} if auth else {})}


def operator_origins(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the origins that the operator added, such as that of a proxy. Raises `E-PREFECT-VARIABLE` for what is
    none.
    """
    origins = []
    for name in ORIGINS_NAMES:
        for origin in filter(None, (word.strip() for word in variables.get(name, "").split(","))):
            if not ORIGIN.fullmatch(origin):
                instead = "Write whole origins with commas between them, such as https://prefect.example.com."
                why = (
                    "Every page that you open could start runs."
                    if origin == "*"
                    else f"{origin!r} is not a valid origin."
                )
                raise variable_error(name, why, instead)
            origins.append(origin)
    return tuple(origins)


def variable_error(name: str, why: str, do: str) -> InvalidInput:
    problem = f"{name} cannot be what it is set to" + ("." if name == SERVER_VARIABLE else f": {os.environ[name]!r}.")
    return InvalidInput(problem, why=why, do=do, code="E-PREFECT-VARIABLE")


def refuse_other_access(settings: Settings, *, asks: bool, auth: bool) -> None:
    """Compare a running server with the settings. Raises `Conflict` (`E-SERVER-RUNS`) if they differ.

    `asks` says whether it asks for credentials, `auth` whether a new one would.
    """
    variable = os.environ.get(SERVER_VARIABLE)
    if asks and not auth:
        problem = "--no-auth has no effect on the Prefect server that runs: it asks for the string."
    elif asks and variable is not None and variable != read_auth(settings):
        problem = f"{SERVER_VARIABLE} has no effect on the Prefect server that runs: it asks for another string."
    else:
        return
    raise Conflict(
        problem,
        why=f"It was started with the string in {auth_file(settings)}.",
        do="Run `trainyard down`, then `trainyard up` again.",
        code="E-SERVER-RUNS",
    )
