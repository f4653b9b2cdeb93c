from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.errors import InvalidInput
from trainyard.settings import Settings, settings
from trainyard.stores.auth_string import auth_file, auth_header, keep_auth, read_auth


def test_a_home_makes_its_own_string_and_keeps_it(tmp_path: Path) -> None:
    here, other = Settings(home=tmp_path / "a"), Settings(home=tmp_path / "b")
    assert read_auth(here) is None
    text = keep_auth(here)
    assert keep_auth(here) == read_auth(here) == text != keep_auth(other)
    assert len(text) > 40


def test_its_file_is_for_its_owner_alone_at_every_moment(home: Path) -> None:
    keep_auth(settings())
    path = auth_file(settings())
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    keep_auth(settings())
    assert path.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in home.iterdir()] == [path.name], "no temporary file is left"


def test_an_operator_s_string_replaces_the_random_one() -> None:
    keep_auth(settings())
    assert keep_auth(settings(), "admin:correct-horse") == "admin:correct-horse"
    assert keep_auth(settings()) == "admin:correct-horse"


@pytest.mark.parametrize("text", ["", "short", "with space:x", "tab\t:12345678", "ümlaut:12345678", "a" * 513])
def test_a_string_that_a_header_cannot_carry_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"E-AUTH: The auth string of PREFECT_SERVER_API") as refused:
        keep_auth(settings(), text)
    assert not text or text not in str(refused.value)
    assert read_auth(settings()) is None


def test_a_file_that_cannot_be_used_is_named(home: Path) -> None:
    keep_auth(settings())
    auth_file(settings()).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match=r"E-AUTH: .*prefect-auth-string cannot be read: it is not UTF-8 text"):
        read_auth(settings())
    auth_file(settings()).write_text("")
    with pytest.raises(InvalidInput, match=r"E-AUTH: The auth string of .*prefect-auth-string has 0 characters"):
        read_auth(settings())


def test_the_header_is_basic_authentication() -> None:
    assert auth_header("user:password") == {"Authorization": "Basic dXNlcjpwYXNzd29yZA=="}
    assert auth_header(None) == {}
