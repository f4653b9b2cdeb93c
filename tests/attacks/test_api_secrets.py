"""Canaries in whatever a client and an operator can put them: none is in an answer, a log or a file of the home."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.api_process import serving
from trainyard.settings import settings
from trainyard.stores.auth_string import keep_auth
from trainyard.stores.secret_files import TokenFile

pytestmark = pytest.mark.integration

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJjYW5hcnkifQ.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
SENT = {
    "openai": "sk-proj-c4N4rY8kL2mN6pQ9rS3tU7vW1xY5zA0bC4d",
    "hub": "hf_C4n4rYdEfGhIjKlMnOpQrStUvWxYz0123456",
    "aws": "AKIAC4N4RYODNN7QXZWV",
    "jwt": JWT,
    "pem": "-----BEGIN PRIVATE KEY-----\nC4n4rYIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEA\n-----END PRIVATE KEY-----",
    "url": "https://alice:C4n4rYTr0ub4dor@data.example.org/rows.jsonl",
}
"""What a client sends."""
HIDDEN = ("c4N4rY8kL2m", "C4n4rYdEfGh", "AKIAC4N4RY", "dozjgNryP4J3", "C4n4rYIBADAN", "C4n4rYTr0ub4dor")
"""Parts of it that may be nowhere."""
OPERATORS = {"HF_TOKEN": "hf_0p3r4t0rdEfGhIjKlMnOpQrStUvWxYz01234", "WANDB_API_KEY": "0p3r4t0r" * 5}
"""In the environment of the service."""


def requests_with(secret: str) -> list[tuple[str, str, dict[str, object]]]:
    """Requests with a secret in each place that takes a text."""
    chain = {"name": "a", "nodes": [{"type": "data_source", "config": {"url": secret}}]}
    return [
        ("POST", "/api/v1/runs", {"json": {"target": "qa-pipeline", "parameters": {"api_key": secret}}}),
        ("POST", "/api/v1/runs", {"json": {"target": "qa-pipeline", "tags": [secret]}}),
        ("POST", "/api/v1/runs", {"json": {"target": secret}}),
        ("POST", "/api/v1/jobs", {"json": {"name": secret, "base_model": "starter", "dataset": {"path": secret}}}),
        ("POST", "/api/v1/chains", {"json": chain}),
        ("POST", "/api/v1/check", {"json": {"files": [chain]}}),
        ("POST", "/api/v1/plan", {"json": {"target": "qa-pipeline", "parameters": {"documents": secret}}}),
        ("POST", "/api/v1/graph/query", {"json": {"cypher": "RETURN $a", "parameters": {"a": secret}}}),
        ("POST", "/api/v1/corpus/apprenticeship", {"json": {"prompt": secret, "shadow": "a", "verdict": "b"}}),
        ("GET", "/api/v1/data/preview", {"params": {"path": secret}}),
        ("GET", "/api/v1/adapters/show", {"params": {"name": secret}}),
        ("GET", "/api/v1/jobs", {"params": {"text": secret}}),
        ("POST", "/api/v1/adapters/promote", {"json": {"name": secret}}),
        ("POST", "/api/v1/login", {"json": {"token": secret}}),
        ("POST", "/api/v1/check", {"content": f'{{"files": "{secret!r}'.encode()}),
    ]


@pytest.mark.timeout(240)
def test_no_canary_is_anywhere(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OPERATORS.items():
        monkeypatch.setenv(name, value)
    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)
    auth = keep_auth(settings())
    token = TokenFile(home).create("ci", "admin", "", 1)
    answers = []
    with serving() as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        right = {"authorization": f"Bearer {token}"}
        for secret in SENT.values():
            for method, path, options in requests_with(secret):
                kind = {"content-type": "application/json"} if method == "POST" else {}
                answer = client.request(method, path, headers=right | kind, **options)  # type: ignore[arg-type]
                assert answer.status_code in (400, 401, 403, 404, 422, 429, 503), (path, answer.text)
                answers.append(answer)
            plain = secret.replace("\n", "")
            answers += [
                client.get("/api/v1/tokens", headers={"authorization": f"Bearer {plain}"}),
                client.get(
                    "/api/v1/tokens", headers=right | {"user-agent": plain, "x-any": plain, "traceparent": plain}
                ),
                client.get("/api/v1/none", params={"token": plain}, headers=right),
                client.get("/api/v1/none", headers={"cookie": f"trainyard_x={plain}", **right}),
            ]
        for path in ("doctor", "schema?name=settings", "audit?limit=1000", "tokens", "chains", "openapi.json"):
            answers.append(client.get(f"/api/v1/{path}", headers=right))
            assert answers[-1].status_code == 200, path
    texts = [answer.text + str(answer.headers) for answer in answers]
    texts += [
        path.read_bytes().decode("latin-1")
        for path in home.rglob("*")
        if path.is_file() and path.name != "prefect-auth-string"
    ]
    assert len(texts) > 100
    for canary in (*HIDDEN, *OPERATORS.values(), auth.partition(":")[2], token):
        leaks = [text[max(0, text.index(canary) - 200) :][:400] for text in texts if canary in text]
        assert leaks == [], canary
