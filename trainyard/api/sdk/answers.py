"""What a service has answered, whichever transport brought it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class ServiceAnswer:
    """A response that was read, or the head of a stream."""

    status_code: int
    headers: Mapping[str, str]
    """By names in lower case."""
    content: bytes
    url: str

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def json(self) -> Any:
        """Raises `ValueError`."""
        return json.loads(self.content)


def answer_of(response: httpx.Response, content: bytes | None = None) -> ServiceAnswer:
    """The answer that httpx has read; with `content`, of a stream, of which nothing is read."""
    whole = response.content if content is None else content
    return ServiceAnswer(response.status_code, dict(response.headers), whole, str(response.url))
