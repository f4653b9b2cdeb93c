"""The PostgreSQL database of the Prefect server: checked by a real server before Prefect starts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.postgresql import MISSING, PASSWORD, USER, PostgresServer, running_postgresql
from trainyard.app.access import database
from trainyard.errors import Conflict, TrainyardError
from trainyard.settings import Settings, load_settings

VARIABLE = "YARD_DATABASE"
NAMED = {"prefect_database": f"env:{VARIABLE}"}


def settings() -> Settings:
    return Settings(**NAMED)


def refusal(monkeypatch: pytest.MonkeyPatch, url: str) -> str:
    """Return the error of an address; no password of it is in the text."""
    monkeypatch.setenv(VARIABLE, url)
    with pytest.raises(TrainyardError) as caught:
        database.database_variables(settings())
    assert PASSWORD not in str(caught.value)
    return str(caught.value)


def test_without_the_setting_the_server_has_sqlite() -> None:
    assert database.database_variables(Settings()) == {}


@pytest.mark.parametrize("address", ["mysql://yard@db/prefect", "", "postgresql:/db"])
def test_a_variable_of_another_form_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    assert refusal(monkeypatch, address).startswith("E-SETTINGS: prefect_database is env:YARD_DATABASE")


@pytest.mark.parametrize("address", ["postgresql://a:s3cret-x@c:d@h/y", "postgresql://a:s3cret-x@h:port/y"])
def test_an_address_that_cannot_be_read_is_refused_without_its_password(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    text = refusal(monkeypatch, address)
    assert text.startswith("E-SETTINGS: The address")
    assert "s3cret" not in text


def test_a_password_in_the_settings_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_PREFECT_DATABASE", f"postgresql://{USER}:{PASSWORD}@db/prefect")
    with pytest.raises(TrainyardError, match=r"E-SETTINGS: .*contains a password: leave it out") as caught:
        load_settings()
    assert PASSWORD not in str(caught.value)


def test_two_addresses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(database.URL_VARIABLE, f"postgresql+asyncpg://{USER}:{PASSWORD}@other/prefect")
    assert refusal(monkeypatch, f"postgresql://{USER}:{PASSWORD}@db/prefect").startswith("E-PREFECT-VARIABLE")


def test_a_host_that_does_not_resolve_or_does_not_listen_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "host no-host.invalid does not resolve" in refusal(monkeypatch, f"postgresql://{USER}@no-host.invalid/p")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        text = refusal(monkeypatch, f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port}/prefect")
    assert text.startswith(f"E-SERVER-START: The Prefect server cannot use the database prefect on 127.0.0.1:{port}.")
    assert "Start PostgreSQL" in text


def test_an_old_server_a_replica_and_a_user_without_rights_are_named() -> None:
    url = database.parse_address("postgresql://yard@db/prefect")
    facts = {"version": 150_016, "version_text": "15.16", "is_replica": False, "may_create": True, "revision": ""}
    database.require_usable(database.DatabaseFacts(**facts), url)
    for change, text in (
        ({"version": 130_010, "version_text": "13.10"}, "It is PostgreSQL 13.10; Prefect needs 14.9"),
        ({"is_replica": True}, "It is a replica"),
        ({"may_create": False}, "GRANT CREATE ON SCHEMA public TO yard"),
    ):
        with pytest.raises(TrainyardError, match=text):
            database.require_usable(database.DatabaseFacts(**{**facts, **change}), url)


def test_the_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "asyncpg", None)
    assert "E-PACKAGE-MISSING: The package asyncpg" in refusal(monkeypatch, f"postgresql://{USER}:{PASSWORD}@db/p")


def test_a_running_server_with_another_database_is_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"postgresql://{USER}:{PASSWORD}@db/prefect")
    address = {database.URL_VARIABLE: f"postgresql+asyncpg://{USER}:{PASSWORD}@db/prefect"}
    assert database.keep_database(settings(), address) == "prefect on db:5432"
    database.refuse_other_database(settings())
    assert PASSWORD not in database.database_record(settings()).read_text()
    with pytest.raises(Conflict, match=r"prefect_database \(SQLite\) has no effect .* prefect on db:5432"):
        database.refuse_other_database(Settings())


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresServer]:
    with running_postgresql() as server:
        yield server


@pytest.mark.integration
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_real_server_is_asked_first(
    postgresql: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, postgresql.url())
    variables = database.database_variables(settings())
    assert variables == {database.URL_VARIABLE: postgresql.url().replace("://", "+asyncpg://")}
    assert database.inspect_database(settings()).startswith("PostgreSQL 1")
    for url, why in (
        (postgresql.url(password="wrong-horse"), f"It does not accept the login of {USER}"),
        (postgresql.url(user="nobody"), "It does not accept the login of nobody"),
        (postgresql.url("lost"), "It has no such database"),
        (f"{postgresql.url()}?ssl=require", "SSL"),
    ):
        assert why in refusal(monkeypatch, url)
    bare = f"postgresql://{USER}@127.0.0.1:{postgresql.port}/prefect"
    assert "does not accept the login" in refusal(monkeypatch, bare)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv(VARIABLE, bare)
    assert database.database_variables(settings()) == variables
    schema = "create table alembic_version (version_num text); insert into alembic_version values ('ffffffffffff')"
    postgresql.run_sql(schema, "prefect")
    assert "A newer Prefect has written its schema (revision ffffffffffff)" in refusal(monkeypatch, postgresql.url())


def test_the_revisions_of_this_prefect_are_known() -> None:
    package = find_spec("prefect")
    assert package is not None
    folder = Path(str(package.origin)).parent / "server" / "database" / "_migrations" / "versions" / "postgresql"
    assert len(database.list_revisions()) == len(list(folder.glob("*.py"))), "each migration has one"
