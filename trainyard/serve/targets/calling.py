"""Requests to a target's server: one client, one call, and every failure as an error that says what to do.

The canary: a new version has to answer one prompt by OpenAI's chat completions before it is switched to.
"""

from __future__ import annotations

from typing import Any

import httpx

from trainyard.errors import TrainyardError, Unavailable
from trainyard.serve.client.client import api_key_from
from trainyard.serve.client.hosts import JudgedTransport
from trainyard.serve.targets.contract import TargetDeployment
from trainyard.settings import Settings
from trainyard.settings import settings as default_settings
from trainyard.spec.nodes import Target

TIMEOUT_S = 120.0


def http_client(target: Target, url: str, settings: Settings | None = None) -> httpx.Client:
    """Return a client of a server's root address; `url` may end with `/v1`.

    A key is sent only for a target that names an endpoint of the settings, and only to that endpoint's own address.
    Raises `InvalidInput`: `E-ENDPOINT` for an endpoint that is not there, `E-API-KEY` when its variable is not set.
    """
    headers = {}
    settings = settings or default_settings()
    if target.endpoint is not None:
        endpoint = settings.endpoint(target.endpoint)
        key = api_key_from(endpoint.api_key_env)
        url = endpoint.base_url
        headers = {"Authorization": f"Bearer {key}"} if key else {}
    root = url.rstrip("/").removesuffix("/v1")
    timeout = httpx.Timeout(TIMEOUT_S, connect=5.0)
    return httpx.Client(
        base_url=root, headers=headers, timeout=timeout, transport=JudgedTransport(settings.private_hosts)
    )


def call(site: TargetDeployment, method: str, path: str, body: Any = None) -> Any:
    """Send one request; return the JSON answer, or the text of an answer that is not JSON.

    Raises `Unavailable` (`E-SERVER-UNREACHABLE`, `E-AUTH`, `R-TARGET`) or `TrainyardError`
    (`E-SERVER-REFUSED`) with the server's own words.
    """
    response = send(site, method, path, json=body)
    if not response.is_success:
        raise make_refusal(site, path, response)
    if "json" not in response.headers.get("content-type", ""):
        return response.text
    try:
        return response.json()
    except ValueError as error:
        raise make_response_error(site, f"its answer to {path} is not valid JSON") from error


def send(site: TargetDeployment, method: str, path: str, **content: Any) -> httpx.Response:
    """Return the server's answer of whatever status. Raises `Unavailable` (`E-SERVER-UNREACHABLE`)."""
    assert site.http is not None, "only servers are called"
    try:
        return site.http.request(method, path, **content)
    except httpx.HTTPError as error:
        raise Unavailable(
            f"{site.where} did not answer {path}.",
            why=f"{type(error).__name__}: {error}",
            do="Start the server (`trainyard up` starts the embedded one), or correct the target's url.",
            code="E-SERVER-UNREACHABLE",
        ) from error


def make_refusal(site: TargetDeployment, path: str, response: httpx.Response) -> TrainyardError:
    """Return the error of an answer of 400 or more."""
    message = server_message(response)
    if response.status_code in (401, 403):
        return Unavailable(
            f"{site.where} refused the API key.",
            why=message if site.target.endpoint else f"{message.rstrip('.')}. The target's url is asked without a key.",
            do="Let the target name an endpoint of trainyard.toml that has api_key_env, and set that variable.",
            code="E-AUTH",
        )
    if response.status_code == 404 and message == "Not Found" and "lora" in path:
        return Unavailable(
            f"{site.where} does not load adapters while it runs.",
            why=f"It has no {path}.",
            do="Start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.",
            code="R-TARGET",
        )
    return TrainyardError(
        f"{site.where} answered {path} with status {response.status_code}.",
        why=message,
        do="Correct what the server names, and run the deployment again.",
        code="E-SERVER-REFUSED",
    )


def server_message(response: httpx.Response) -> str:
    """Return the message inside an error answer: OpenAI's, FastAPI's or plain text, at most 500 characters."""
    try:
        value = response.json()
    except ValueError:
        return response.text[:500]
    if isinstance(value, dict):
        error = value.get("error", value)
        value = error.get("message") or error.get("detail") or error if isinstance(error, dict) else error
    return str(value)[:500]


def make_response_error(site: TargetDeployment, problem: str) -> TrainyardError:
    return Unavailable(
        f"{site.where} is not an OpenAI-compatible server: {problem}.",
        do="Correct the target's url.",
        code="E-SERVER-RESPONSE",
    )


def ask_canary(site: TargetDeployment, model: str = "") -> None:
    """Require that the new version answers the canary prompt with some text. Raises `TrainyardError` (`E-CANARY`).

    `model` is the server's own name for it, where that is another one.
    """
    body = {
        "model": model or site.new.name,
        "messages": [{"role": "user", "content": site.canary.prompt}],
        "max_tokens": site.canary.max_tokens,
        "temperature": 0,
    }
    answer = call(site, "POST", "/v1/chat/completions", body)
    try:
        text = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise make_response_error(site, "its chat completion has no message") from error
    if not isinstance(text, str) or not text.strip():
        raise TrainyardError(
            f"{site.where} answered the canary prompt with nothing.",
            why=f"{site.new.name} was asked {site.canary.prompt!r} for at most {site.canary.max_tokens} tokens.",
            do="Look at the adapter's samples in the evaluation report; a longer canary_max_tokens may help.",
            code="E-CANARY",
        )
    site.answer = text.strip()
