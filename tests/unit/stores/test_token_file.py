from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from trainyard.errors import Conflict, Corrupt, InvalidInput, NotFound
from trainyard.stores.secret_files import (
    DAY_S,
    LOGIN_S,
    MAX_LOGINS,
    MAX_TOKENS,
    OWN_STRING,
    LoginFile,
    TokenFile,
    forgery_token,
    hash_secret,
    logins_file,
    tokens_file,
)


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path)


def test_a_token_is_found_and_nowhere_written(tokens: TokenFile, tmp_path: Path) -> None:
    token = tokens.create("ci", "run", "acme", 3)
    record = tokens.find(token)
    assert record is not None
    assert (record.name, record.scope, record.tenant) == ("ci", "run", "acme")
    assert len(token) == 46
    assert token.startswith("ty_")
    assert token not in tokens_file(tmp_path).read_text()
    assert tokens_file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert tokens_file(tmp_path).parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("wrong", ["", "ty_", "ci", "ty_\ud800", "ü" * 50, "x" * 100_000])
def test_what_is_no_token_is_not_found(tokens: TokenFile, wrong: str) -> None:
    token = tokens.create("ci", "run", "", 3)
    assert tokens.find(wrong) is None
    assert tokens.find(token[:-1]) is None
    assert tokens.find(f"{token} ") is None


def test_a_token_that_another_process_revokes_opens_nothing_at_once(tokens: TokenFile, tmp_path: Path) -> None:
    token = tokens.create("ci", "run", "", 3)
    assert tokens.find(token) is not None
    TokenFile(tmp_path).revoke("ci")
    assert tokens.find(token) is None
    tokens_file(tmp_path).unlink()
    assert tokens.find(token) is None


def test_a_token_expires_and_gives_its_name_free(tokens: TokenFile) -> None:
    token = tokens.create("ci", "run", "", 1, now=1_000.0)
    assert tokens.find(token, now=1_000.0 + DAY_S - 1) is not None
    assert tokens.find(token, now=1_000.0 + DAY_S) is None
    assert tokens.find_by_id(hash_secret(token)) is None
    tokens.create("ci", "read", "", 1)
    assert [token.scope for token in tokens.list()] == ["read"]


def test_names(tokens: TokenFile) -> None:
    tokens.create("ci", "run", "", 3)
    with pytest.raises(Conflict, match="There is a token 'ci' already"):
        tokens.create("ci", "run", "", 3)
    with pytest.raises(Conflict, match="There is a token 'owner' already"):
        tokens.create("owner", "run", "", 3)
    for name in ("", "../x", "A", "a" * 64, "a\n"):
        with pytest.raises(InvalidInput, match=r"E-NAME: .* is not a valid name of a token"):
            tokens.create(name, "run", "", 3)
    with pytest.raises(InvalidInput, match="is not a valid name of a tenant"):
        tokens.create("other", "run", "../acme", 3)
    with pytest.raises(NotFound, match=r"There is no token 'other'\. Why: There is ci\."):
        tokens.revoke("other")


def test_a_file_that_was_damaged_opens_nothing(tokens: TokenFile, tmp_path: Path) -> None:
    token = tokens.create("ci", "run", "", 3)
    for text in ("", "[]", '{"records": []}', '{"records": {"a": 1}}', "\x00"):
        tokens_file(tmp_path).write_text(text)
        with pytest.raises(Corrupt, match=r"tokens\.json cannot be read"):
            tokens.find(token)


def test_every_request_compares_with_all_of_the_most_tokens_quickly(tokens: TokenFile) -> None:
    token = tokens.create("ci", "run", "", 3)
    with tokens.file.changing() as records:
        (row,) = records.values()
        records |= {f"{number:064x}": row | {"name": f"n{number}"} for number in range(MAX_TOKENS - 1)}
    assert tokens.find(token) is not None
    start_s = time.process_time()
    for _ in range(20):
        tokens.find(token)
    assert (time.process_time() - start_s) / 20 < 0.01


def test_a_browser_is_logged_in_for_half_a_day(tmp_path: Path) -> None:
    logins = LoginFile(tmp_path)
    cookie, other = logins.begin("ci", now=100.0), logins.begin(OWN_STRING, now=100.0)
    assert logins.find(cookie, now=100.0 + LOGIN_S - 1) == "ci"
    assert logins.find(cookie, now=100.0 + LOGIN_S) is None
    assert logins.find(other, now=101.0) == OWN_STRING
    assert logins.find("", now=101.0) is None
    assert cookie not in logins_file(tmp_path).read_text()
    LoginFile(tmp_path).end(cookie)
    logins.end(cookie)
    assert logins.find(cookie, now=101.0) is None
    assert forgery_token(cookie) != forgery_token(other)
    assert cookie not in forgery_token(cookie)


def test_the_oldest_login_makes_room(tmp_path: Path) -> None:
    logins = LoginFile(tmp_path)
    first = logins.begin("ci", now=100.0)
    with logins.file.changing() as records:
        records |= {f"{number:064x}": {"token": "ci", "expires": 1e9} for number in range(MAX_LOGINS - 1)}
    logins.begin("ci", now=101.0)
    assert logins.find(first, now=102.0) is None
    assert len(logins.file.records()) == MAX_LOGINS


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        TokenFile(tmp_path).create("ci", "run", "", 3)
    finally:
        os.umask(before)
    assert tokens_file(tmp_path).stat().st_mode & 0o777 == 0o600
