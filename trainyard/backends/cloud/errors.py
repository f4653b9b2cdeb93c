"""Errors of a provider's client in our words: its status, its own reason, what to do, and never a key.

Services repeat a wrong key in their answer, and clients put the answer into their exception. So the key is taken out of
the reason, and an exception that has it is not chained: the log of a job has the traceback of every chained exception.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from trainyard.errors import TrainyardError
from trainyard.spec.axes.providers import PROVIDERS

LONGEST_REASON = 300
HIDDEN = "[key]"


class ProviderError(TrainyardError):
    """A provider refused a call, or did not answer it."""

    default_code = "E-PROVIDER"
    status: int | None = None
    """Its HTTP status; None where no answer came."""
    is_unresolved = False
    """Whether its host has no address: of a region or a service that there is not."""
    is_quota = False
    """Whether a limit is reached that waiting does not lift: credit, or space for files."""

    @property
    def is_refusal(self) -> bool:
        """Return whether the call certainly had no effect, and would have none if it were repeated."""
        if self.is_quota:
            return True
        return self.status is not None and 400 <= self.status < 500 and self.status not in (408, 409, 425, 429)


WRONG = "Correct what it names (model, region, hyperparameter or row). Nothing was submitted."
ADVICE: Mapping[int, str] = {
    400: WRONG,
    401: "Set the provider's key where the worker starts; the one that is there is not accepted.",
    402: "Look at the billing of the account.",
    403: "Give the key the rights for files and fine-tuning.",
    404: "Correct the name; the provider does not have it.",
    413: "Use fewer rows, or another provider.",
    422: WRONG,
    429: "Wait; the provider limits the rate of this account.",
}
AGAIN = "Start the job again: one that exists at the provider is found, not created twice."
UNRESOLVED = "Correct the region or the address where the worker starts, or its network."
QUOTA = "Make room at the provider or raise the limit of the account, then resume: what is uploaded stays."
QUOTA_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "storage_quota_exceeded", "QuotaExceeded"})
"""Codes of limits that waiting does not lift, in answers of 4xx."""
NO_SPACE = 507
EXPIRED = ("expired", "invalid_grant")


def make_error(provider: str, call: str, error: BaseException, keys: tuple[str, ...] = ()) -> ProviderError:
    """Return a client's exception in our words, by the HTTP status that it carries."""
    status, reason = read_status(error), read_reason(error)
    title, unresolved = PROVIDERS[provider].title, status is None and is_host_unknown(error)
    quota = status == NO_SPACE or read_code(error) in QUOTA_CODES
    answer = f"{title} answered {status} to {call}." if status else f"{title} did not answer {call}."
    advice = QUOTA if quota else UNRESOLVED if unresolved else ADVICE.get(status or 0, AGAIN)
    if status in (400, 401, 403) and any(word in reason.lower() for word in EXPIRED):
        advice = "Set a key that has not expired where the worker starts."
    result = ProviderError(answer, why=hide_keys(reason, keys), do=advice)
    result.status, result.is_unresolved, result.is_quota = status, unresolved, quota
    return result


def read_status(error: BaseException) -> int | None:
    """Return the HTTP status of an exception of any of the clients; None for a lost connection."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return int(status) if status else None
    for value in (getattr(error, "status_code", None), getattr(response, "status_code", None)):
        if isinstance(value, int):
            return value
    return None


def read_detail(error: BaseException) -> Any:
    """Return the part of an answer that describes an error: a mapping, a text, or None."""
    body, response = getattr(error, "body", None), getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        facts = response.get("Error", {})
        return {"message": facts.get("Message"), "code": facts.get("Code")}
    if body is None and getattr(error, "server_message", None):  # huggingface_hub
        return error.server_message  # type: ignore[attr-defined]
    if body is None and response is not None:  # httpx
        try:
            body = response.json()
        except (ValueError, RuntimeError, UnicodeDecodeError):  # no JSON, or an answer that was not read
            body = None
    return body.get("error", body) if isinstance(body, Mapping) else None


def read_reason(error: BaseException) -> str:
    """Return what a provider said, at most 300 characters, without the addresses that clients add."""
    detail = read_detail(error)
    text = detail.get("message") if isinstance(detail, Mapping) else detail
    lines = str(text if isinstance(text, str) and text.strip() else error).strip().splitlines()
    return lines[0][:LONGEST_REASON] if lines else type(error).__name__


def read_code(error: BaseException) -> str:
    """Return the provider's own code of an error; empty for none."""
    detail = read_detail(error)
    return str(detail.get("code") or "") if isinstance(detail, Mapping) else ""


def is_host_unknown(error: BaseException) -> bool:
    """Return whether an exception comes of a name that has no address, and not of a network that is down."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return cause.errno in (socket.EAI_NONAME, socket.EAI_NODATA)
        cause = cause.__cause__ or cause.__context__
    return False


def hide_keys(text: str, keys: tuple[str, ...]) -> str:
    """Return a text without keys."""
    for key in keys:
        text = text.replace(key, HIDDEN)
    return text


def contains_key(error: BaseException, keys: tuple[str, ...]) -> bool:
    """Return whether an exception, or one that it comes of, has a key in its text."""
    cause: BaseException | None = error
    while cause is not None:
        if any(key in f"{cause!r} {cause}" for key in keys):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


@dataclass(frozen=True)
class ProviderCalls:
    """Calls of a client: `with calls("the upload of rows"): …` raises `ProviderError` for its exceptions."""

    provider: str
    kinds: tuple[type[BaseException], ...]
    """Exceptions of the client and its HTTP library."""
    keys: tuple[str, ...] = field(default=(), repr=False)
    """Texts that no message shows."""

    @contextmanager
    def __call__(self, call: str, *more: type[BaseException]) -> Iterator[None]:
        """Raise `ProviderError` for the client's exceptions, and for those of `more` kinds."""
        try:
            yield
        except (*self.kinds, *more) as error:
            shown = None if contains_key(error, self.keys) else error
            raise make_error(self.provider, call, error, self.keys) from shown
