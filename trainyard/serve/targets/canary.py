"""The canary: a new version has to answer one prompt by OpenAI's chat completions before it is switched to."""

from __future__ import annotations

from trainyard.errors import TrainyardError
from trainyard.serve.targets.calling import call, make_response_error
from trainyard.serve.targets.contract import TargetDeployment


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
