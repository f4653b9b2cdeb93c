from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from pydantic import BaseModel

from trainyard.app.secrets import (
    OWN_ID,
    REDACTED,
    SERVICE_LOGGERS,
    find_secrets,
    list_secrets,
    read_text_before,
    redact_lines,
    redact_logs,
    redact_text,
    redact_value,
    refuse_secrets,
    texts_of_request,
)
from trainyard.data.quality.detectors import find_keys
from trainyard.errors import InvalidInput
from trainyard.operations.chains import RunInput
from trainyard.settings import load_settings
from trainyard.stores.auth_string import keep_auth
from trainyard.stores.secret_files import new_secret

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
    requests: list[dict[str, Any]] = [
        {"target": f"x {secret} y"},
        {"target": "qa-pipeline", "parameters": {"a": {"b": [1, {"c": secret}]}}},
        {"target": "qa-pipeline", "tags": ("fine", secret)},
        {"target": {"name": "chain", "nodes": [{"config": {"path": secret}}]}},
        {"target": "qa-pipeline", "parameters": {secret: 1}},
    ]
    for fields in requests:
        request = RunInput(**fields)
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
    fields = {
        "api_key": "short",
        "HF_TOKEN": "x",
        "password": "p",
        "max_tokens": 5,
        "token_env": "HF_TOKEN",
        "auth": "",
    }
    assert redact_value(fields) == {
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
    redacted = redact_value(Odd(data=b"x" * 1_000_000, path=Path("a"), deep=deep))
    assert redacted["data"] == "1,000,000 bytes"
    assert redacted["path"] == "a"
    assert "bottom" not in str(redacted)
    assert redact_value(list(range(100))) == [*range(8), "… 92 more"]
    assert redact_value(["word"] * 100)[-1] == "… 60 more"
    assert len(redact_value({"text": "word " * 10_000})["text"]) < 300
    refuse_secrets(texts_of_request(Odd(deep=deep)))


@pytest.mark.parametrize("kind", CANARIES)
def test_a_secret_in_a_log_is_replaced_and_its_lines_stay(kind: str) -> None:
    secret = CANARIES[kind]
    hidden = secret.split("//")[1].split("@")[0] if secret.startswith("https") else secret
    lines = ["step 1", *f"the key is {secret} here".split("\n"), "step 2"]
    redacted = redact_lines(lines)
    assert len(redacted) == len(lines)
    assert (redacted[0], redacted[-1]) == ("step 1", "step 2")
    assert REDACTED in redacted[1]
    assert not [part for part in hidden.split("\n")[1:-1] or [hidden] if part in "\n".join(redacted)]


def test_lines_without_a_secret_are_as_they_were() -> None:
    lines = ["", "loss 0.5 at step 12 of 40", "tokens: 12,345", "a\nb", "PRIVATE KEY", "https://example.org/x?y=1", ""]
    assert redact_lines(lines, ["not in it"]) == lines
    assert redact_lines([]) == []


def test_a_known_value_is_replaced_whatever_it_looks_like() -> None:
    lines = ["plain words here", "say plain words", "again plain words and plain words", "two\nlines with plain words"]
    redacted = redact_lines(lines, ["plain words", "words here", "lines\nagain"])
    assert redacted == [REDACTED, f"say {REDACTED}", f"again {REDACTED} and {REDACTED}", f"two\nlines with {REDACTED}"]
    assert redact_lines(["begin one", "two end"], ["one\ntwo"]) == [f"begin {REDACTED}", f"{REDACTED} end"]


def test_the_secrets_of_the_process_are_known(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SOME_API_KEY", "letters-only"), ("WAREHOUSE", "sqlite:////srv/rows"), ("PIN_TOKEN", "short")):
        monkeypatch.setenv(name, value)
    secrets = list_secrets(load_settings(home=home, databases={"rows": "WAREHOUSE"}))
    assert {"letters-only", "sqlite:////srv/rows"} <= set(secrets)
    assert "short" not in secrets
    auth = keep_auth(load_settings(home=home))
    assert {auth, auth.partition(":")[2]} <= set(list_secrets(load_settings(home=home)))


def test_a_traceback_of_the_service_has_no_secret(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("trainyard.rest")
    before = list(logger.filters)
    redact_logs(load_settings(home=home))
    try:
        try:
            raise ValueError(f"cannot reach {CANARIES['url']}\nwith {CANARIES['own']}")
        except ValueError as error:
            logger.error("trace %s of %s", "abc", CANARIES["hub"], exc_info=error, stack_info=True)
        logger.error("rates of %s are fine", "ci")
    finally:
        for name in SERVICE_LOGGERS:
            logging.getLogger(name).filters[:] = before if name == logger.name else []
    assert "Tr0ub4dor" not in caplog.text
    assert CANARIES["own"] not in caplog.text
    assert CANARIES["hub"] not in caplog.text
    assert "trace abc of [redacted]" in caplog.text
    assert "ValueError: cannot reach https://[redacted]@data.example.org/rows.jsonl" in caplog.text
    assert "rates of ci are fine" in caplog.text


def test_a_block_of_a_log_is_looked_at_quickly() -> None:
    """What is sent at a time of a log of any length: 256 KiB, here with words that need a second look."""
    line = "step 12,345 of 50,000: loss 1.2345, 5678 tokens a second, token accuracy 0.81, checkpoint-12345 kept; "
    lines = [f"{line} {number}" for number in range((256 << 10) // len(line))]
    start_s = time.process_time()
    assert redact_lines(lines, ["0123456789"] * 20) == lines
    assert time.process_time() - start_s < 0.3
    many = [f"api_key=x{number:06}a8b7c6d5e4f3 " * 3 for number in range(3000)]
    start_s = time.process_time()
    assert all(line.count(REDACTED) == 3 for line in redact_lines(many))
    assert time.process_time() - start_s < 2


def test_a_private_key_in_a_log_is_replaced_wherever_a_part_begins(tmp_path: Path) -> None:
    lines = ["step 1", "the key:", *PEM.split("\n"), "step 2", "the next PRIVATE KEY is not shown", "step 3"]
    path = tmp_path / "child.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    body = PEM.split("\n")[1]
    for cut in range(len(lines)):
        offset = sum(len(line) + 1 for line in lines[:cut])
        redacted = [*redact_lines(lines[:cut]), *redact_lines(lines[cut:], (), read_text_before(path, offset))]
        assert len(redacted) == len(lines)
        assert not any(body in line for line in redacted), cut
        assert [line for line in redacted if "step" in line] == ["step 1", "step 2", "step 3"]
        assert lines[-2] in redacted
    assert read_text_before(path, 0) == read_text_before(tmp_path / "none", 5) == ""


@hypothesis.given(st.from_regex(OWN_ID, fullmatch=True))
def test_ids_are_no_keys_for_the_rules_either(text: str) -> None:
    """They are not looked at; the rules would find nothing in them."""
    assert find_secrets(text) == []
    assert list(find_keys(text)) == []
    assert find_secrets(f"api_key={'a1b2c3d4' * 4}") != []
