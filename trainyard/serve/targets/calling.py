"""Requests to a target's server: one client, one call, and every failure as an error that says what to do."""

from __future__ import annotations

import os
from typing import Any

import httpx

from trainyard.errors import InvalidInput, TrainyardError, Unavailable
from trainyard.serve.targets.contract import Site
from trainyard.spec.nodes import Target

TIMEOUT_S = 120.0


def http_client(target: Target, url: str) -> httpx.Client:
    """A client of a server's root address; `url` may end with `/v1`. The key comes from the target's variable.

    Raises `InvalidInput` (`E-API-KEY`) when the variable is not set.
    """
    headers = {}
    if target.api_key_env:
        key = os.environ.get(target.api_key_env)
        if not key:
            raise InvalidInput(
                f"The variable {target.api_key_env} is not set.",
                why=f"The {target.type.value} target names it as its API key.",
                do=f"Set {target.api_key_env} where the chain runs.",
                code="E-API-KEY",
            )
        headers["Authorization"] = f"Bearer {key}"
    root = url.rstrip("/").removesuffix("/v1")
    return httpx.Client(base_url=root, headers=headers, timeout=httpx.Timeout(TIMEOUT_S, connect=5.0))


def call(site: Site, method: str, path: str, body: Any = None) -> Any:
    """One request; returns the JSON answer, or the text of an answer that is no JSON.

    Raises `Unavailable` (`E-TARGET-UNREACHABLE`, `E-TARGET-AUTH`, `R-TARGET-LORA-OFF`) or `TrainyardError`
    (`E-TARGET-REFUSED`) with the server's own words.
    """
    assert site.http is not None, "only servers are called"
    try:
        response = site.http.request(method, path, json=body)
    except httpx.HTTPError as error:
        raise Unavailable(
            f"{site.where} did not answer {path}.",
            why=f"{type(error).__name__}: {error}",
            do="Start the server (`trainyard up` starts the embedded one), or correct the target's url.",
            code="E-TARGET-UNREACHABLE",
        ) from error
    if not response.is_success:
        raise refused(site, path, response)
    if "json" not in response.headers.get("content-type", ""):
        return response.text
    try:
        return response.json()
    except ValueError as error:
        raise garbage(site, f"its answer to {path} is no JSON") from error


def refused(site: Site, path: str, response: httpx.Response) -> TrainyardError:
    """The error of an answer of 400 or more."""
    said = server_message(response)
    if response.status_code in (401, 403):
        return Unavailable(
            f"{site.where} refused the API key.", why=said, do="Set the target's api_key_env.", code="E-TARGET-AUTH"
        )
    if response.status_code == 404 and said == "Not Found" and "lora" in path:
        return Unavailable(
            f"{site.where} does not load adapters while it runs.",
            why=f"It has no {path}.",
            do="Start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.",
            code="R-TARGET-LORA-OFF",
        )
    return TrainyardError(
        f"{site.where} answered {path} with status {response.status_code}.",
        why=said,
        do="Correct what the server names, and run the deployment again.",
        code="E-TARGET-REFUSED",
    )


def server_message(response: httpx.Response) -> str:
    """The message inside an error answer: OpenAI's, FastAPI's or plain text, at most 500 characters."""
    try:
        value = response.json()
    except ValueError:
        return response.text[:500]
    if isinstance(value, dict):
        error = value.get("error", value)
        value = error.get("message") or error.get("detail") or error if isinstance(error, dict) else error
    return str(value)[:500]


def garbage(site: Site, what: str) -> TrainyardError:
    return Unavailable(
        f"{site.where} is no OpenAI-compatible server: {what}.", do="Correct the target's url.", code="E-TARGET-GARBAGE"
    )
