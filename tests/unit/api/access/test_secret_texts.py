from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from trainyard.api.access.secrets import (
    REDACTED,
    find_secrets,
    redact_text,
    redact_value,
    refuse_secrets,
    texts_of_request,
)
from trainyard.api.requests.chains import RunInput
from trainyard.errors import InvalidInput
from trainyard.stores.access.secret_files import new_secret

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcw\n" * 4 + "-----END PRIVATE KEY-----"
CANARIES = {
    "openai": "sk-proj-4fJ8kL2mN6pQ9rS3tU7vW1xY5zA0bC4d",
    "hub": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567",
    "aws": "AKIAIOSFODNN7QXZWVTS",
    "jwt": JWT,
    "gcp": PEM,
    "url": "https://alice:Tr0ub4dor@data.example.org/rows.jsonl",
    "url token": "https://ghp-token-value@git.example.org/x",
    "own": new_secret("ty_"),
}


@pytest.mark.parametrize("kind", CANARIES)
def test_a_secret_is_found_wherever_it_is_and_not_repeated(kind: str) -> None:
    secret = CANARIES[kind]
    hidden = secret.split("//")[1].split("@")[0] if secret.startswith("https") else secret
    places: list[dict[str, Any]] = [
        {"target": f"x {secret} y"},
        {"target": "qa-pipeline", "parameters": {"a": {"b": [1, {"c": secret}]}}},
        {"target": "qa-pipeline", "tags": ("fine", secret)},
        {"target": {"name": "chain", "nodes": [{"config": {"path": secret}}]}},
        {"target": "qa-pipeline", "parameters": {secret: 1}},
    ]
    for given in places:
        request = RunInput(**given)
        with pytest.raises(InvalidInput, match="contains what looks like a key, a token or a password") as refused:
            refuse_secrets(texts_of_request(request))
        assert hidden not in str(refused.value)
        assert hidden not in str(redact_value(request))


@pytest.mark.parametrize(
    "text",
    [
        "qa-pipeline", "default/assistant/v3", "0aa885f8-eaaa-4f32-a852-144a17056dc2", "/data/rows/part-000017.jsonl",
        "meta-llama/Llama-3.2-3B-Instruct-4bit", "https://data.example.org/rows.jsonl?part=2", "job-0123456789ab",
        "a" * 64, "sha256:" + "0123456789abcdef" * 4, "http://[::1]:8000/v1", "mail@example.org asks for a token",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert find_secrets(text) == []
    assert redact_text(text) == text


def test_fields_that_are_called_so_are_replaced_whatever_they_are() -> None:
    given = {"api_key": "short", "HF_TOKEN": "x", "password": "p", "max_tokens": 5, "token_env": "HF_TOKEN", "auth": ""}
    assert redact_value(given) == {
        "api_key": REDACTED, "HF_TOKEN": REDACTED, "password": REDACTED, "max_tokens": 5, "token_env": "HF_TOKEN",
        "auth": "",
    }  # fmt: skip


class Odd(BaseModel):
    data: bytes = b""
    path: Path = Path()
    deep: Any = None


def test_what_is_written_down_has_an_end() -> None:
    deep: Any = "bottom"
    for _ in range(500):
        deep = [deep]
    shown = redact_value(Odd(data=b"x" * 1_000_000, path=Path("a"), deep=deep))
    assert shown["data"] == "1,000,000 bytes"
    assert shown["path"] == "a"
    assert "bottom" not in str(shown)
    assert redact_value(list(range(100)))[-1] == "… 60 more"
    assert len(redact_value({"text": "word " * 10_000})["text"]) < 300
    refuse_secrets(texts_of_request(Odd(deep=deep)))
