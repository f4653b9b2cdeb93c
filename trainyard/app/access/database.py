"""The database of the Prefect server that `up` starts: SQLite in the home, or PostgreSQL, which is checked first.

A server that cannot use its database ends with a traceback of hundreds of lines, or waits for it without a word. So
`up` connects once itself, with the driver and the address of the server, and reports what is wrong in one sentence. The
password is in the environment of the server and of the watchdog, which restarts it, and in no file or message.

Imports neither Prefect nor torch; SQLAlchemy and asyncpg are imported for a check only.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.errors import Conflict, InvalidInput, TrainyardError, Unavailable
from trainyard.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy import URL
    from sqlalchemy.ext.asyncio import AsyncEngine

URL_VARIABLE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
PASSWORD_VARIABLE = "PGPASSWORD"
DRIVER = "postgresql+asyncpg"
LEAST_VERSION = 140_009
"""PostgreSQL 14.9, as Prefect 3.8 asks for."""
CONNECT_S = 10.0
DO_START = "Start PostgreSQL, or correct the setting prefect_database."
FACTS = """
select current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery(),
    has_schema_privilege(current_schema(), 'CREATE'), to_regclass('alembic_version') is not null
"""


REVISION = re.compile(r"^revision(?:: str)? = [\"']([0-9a-f]+)[\"']", re.MULTILINE)


@dataclass(frozen=True)
class DatabaseFacts:
    """Facts of a database that decide whether the server can use it."""

    version: int
    version_text: str
    is_replica: bool
    may_create: bool
    revision: str
    """Of the schema; empty in a database that no Prefect server has used."""


def find_address(settings: Settings, variables: Mapping[str, str] = os.environ) -> str | None:
    """Return the address of the PostgreSQL database, password included; None for SQLite.

    Raises `InvalidInput` (`E-SETTINGS`, `E-PREFECT-VARIABLE`).
    """
    address = settings.prefect_database
    if address.startswith("env:"):
        name = address.removeprefix("env:")
        address = variables.get(name, "")
        if not address.startswith(("postgresql://", f"{DRIVER}://", "postgres://")):
            raise InvalidInput(
                f"prefect_database is env:{name}, and {name} {'has another form' if address else 'is not set'}.",
                do=f"Set {name} to postgresql://USER:PASSWORD@HOST:5432/NAME.", code="E-SETTINGS",
            )  # fmt: skip
    other = variables.get(URL_VARIABLE)
    if address and other and to_async(other) != to_async(address):
        raise InvalidInput(
            f"{URL_VARIABLE} and the setting prefect_database name two databases.", do=f"Unset {URL_VARIABLE}.",
            code="E-PREFECT-VARIABLE",
        )  # fmt: skip
    address = address or other or ""
    return to_async(address) if address.startswith("postgres") else None


def to_async(address: str) -> str:
    """Return the address with the driver that Prefect uses."""
    scheme, separator, rest = address.partition("://")
    return f"{DRIVER}{separator}{rest}" if scheme in ("postgres", "postgresql") else address


def database_variables(settings: Settings) -> dict[str, str]:
    """Return the variable that gives the server its database; empty for SQLite.

    Raises `Unavailable` (`E-SERVER-START`, `E-PACKAGE-MISSING`) for a database that the server cannot use.
    """
    address = find_address(settings)
    if address is None:
        return {}
    url = parse_address(address)
    require_usable(asyncio.run(read_facts(url)), url)
    return {URL_VARIABLE: url.render_as_string(hide_password=False)}


def inspect_database(settings: Settings) -> str:
    """Return the version of the database that is set, after a check that it can be used.

    Raises `Unavailable` (`E-SERVER-START`, `E-PACKAGE-MISSING`) and `InvalidInput` (`E-SETTINGS`).
    """
    address = find_address(settings)
    if address is None:
        return "which prefect_database does not name any more"
    facts = asyncio.run(read_facts(url := parse_address(address)))
    require_usable(facts, url)
    return f"PostgreSQL {facts.version_text}"


def password_variables(settings: Settings) -> dict[str, str]:
    """Return the variables with the login of the database, for the watchdog, which starts a server that died."""
    names = (settings.prefect_database.removeprefix("env:"), PASSWORD_VARIABLE)
    return {name: os.environ[name] for name in names if name in os.environ}


def parse_address(address: str) -> URL:
    """Return the parts of an address, with the password of PGPASSWORD where it has none."""
    from sqlalchemy.engine import make_url  # a start with SQLite needs none of it
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        raise InvalidInput(
            "The address of the Prefect server's database cannot be read.",
            do="Write postgresql://USER@HOST:5432/NAME; other characters of a password as %XX.", code="E-SETTINGS",
        ) from None  # fmt: skip
    password = os.environ.get(PASSWORD_VARIABLE)
    return url.set(password=password) if url.password is None and password else url


def describe_database(url: URL) -> str:
    """Return where a database is, without its password."""
    return f"{url.database or url.username or ''} on {url.host or 'localhost'}:{url.port or 5432}"


async def read_facts(url: URL) -> DatabaseFacts:
    """Connect as the server would. Raises `Unavailable` (`E-SERVER-START`, `E-PACKAGE-MISSING`)."""
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import create_async_engine  # a start with SQLite needs none of it
    from sqlalchemy.pool import NullPool

    try:
        engine = create_async_engine(url, poolclass=NullPool)
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"The package {error.name}, which connects Prefect with PostgreSQL, is not installed.",
            do="Install the pinned versions: pip install -c constraints.txt -e .", code="E-PACKAGE-MISSING",
        ) from None  # fmt: skip
    try:
        async with asyncio.timeout(CONNECT_S):
            return await query_facts(engine)
    except TimeoutError:
        raise unusable_error(url, f"No answer in {CONNECT_S:.0f} s.", DO_START) from None
    except socket.gaierror:
        raise unusable_error(url, f"The host {url.host} does not resolve.", "Correct the host's name.") from None
    except (OSError, SQLAlchemyError) as error:
        raise connection_error(url, error) from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "asyncpg":
            raise
        raise connection_error(url, error) from None
    finally:
        await engine.dispose()


async def query_facts(engine: AsyncEngine) -> DatabaseFacts:
    """Return the facts of the database behind an engine."""
    async with engine.connect() as connection:
        version, text, is_replica, may_create, has_schema = (await connection.exec_driver_sql(FACTS)).one()
        revision = ""
        if has_schema:
            revision = (await connection.exec_driver_sql("select version_num from alembic_version")).scalar() or ""
        return DatabaseFacts(version, text, is_replica, bool(may_create), revision)


def connection_error(url: URL, error: Exception) -> Unavailable:
    """Return the error of a failed connection, by PostgreSQL's own code of it."""
    cause = getattr(error, "orig", None) or error
    state = getattr(cause, "sqlstate", None) or ""
    if state.startswith("28"):
        do = "Correct the password (PGPASSWORD, ~/.pgpass or the variable of prefect_database), or pg_hba.conf."
        return unusable_error(url, f"It does not accept the login of {url.username or 'this user'}.", do)
    if state == "3D000":
        return unusable_error(url, "It has no such database.", f"createdb {url.database}")
    if state == "53300":
        return unusable_error(url, "It has no connection left.", "Raise max_connections, or end other clients.")
    why = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
    if url.password:
        why = why.replace(str(url.password), "[redacted]")
    return unusable_error(url, why, DO_START)


def require_usable(facts: DatabaseFacts, url: URL) -> None:
    """Raise `Unavailable` (`E-SERVER-START`) for a database in which the server could not write its tables."""
    if facts.version < LEAST_VERSION:
        raise unusable_error(url, f"It is PostgreSQL {facts.version_text}; Prefect needs 14.9.", "Upgrade PostgreSQL.")
    if facts.is_replica:
        raise unusable_error(url, "It is a replica, which can only be read.", "Name the primary server.")
    if not facts.may_create and not facts.revision:
        do = f"As the owner of the database: GRANT CREATE ON SCHEMA public TO {url.username}"
        raise unusable_error(url, f"{url.username} may create no tables in it.", do)
    if facts.revision and facts.revision not in list_revisions():
        raise unusable_error(
            url, f"A newer Prefect has written its schema (revision {facts.revision}).",
            "Install that Prefect, or name another database.",
        )  # fmt: skip


def list_revisions() -> set[str]:
    """Return the revisions of the schema that the installed Prefect knows, as its migrations name them."""
    package = find_spec("prefect")
    if package is None or package.origin is None:
        raise TrainyardError("Prefect is not installed.", do="pip install -c constraints.txt -e .", code="E-INSTALL")
    folder = Path(package.origin).parent / "server" / "database" / "_migrations" / "versions" / "postgresql"
    texts = (path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    return {match[1] for text in texts if (match := REVISION.search(text))}


def unusable_error(url: URL, why: str, do: str) -> Unavailable:
    return Unavailable(
        f"The Prefect server cannot use the database {describe_database(url)}.", why=why, do=do, code="E-SERVER-START"
    )


# which one a server that is running uses


def database_record(settings: Settings) -> Path:
    """Return the file with the database of the server that is running, without its password; SQLite has none."""
    return settings.services / "server.database"


def keep_database(settings: Settings, variables: Mapping[str, str]) -> str:
    """Record the database of a server that is starting, and return it in words."""
    path = database_record(settings)
    address = variables.get(URL_VARIABLE, "")
    if not address.startswith("postgres"):
        path.unlink(missing_ok=True)
        return ""
    text = describe_database(parse_address(address))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="utf-8")
    return text


def read_database(settings: Settings) -> str:
    """Return the PostgreSQL database of the server that is running, or was last; empty for SQLite."""
    try:
        return database_record(settings).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def refuse_other_database(settings: Settings) -> None:
    """Raise `Conflict` (`E-SERVER-RUNS`) where the server that is running was started with another database."""
    address = find_address(settings)
    configured, current = describe_database(parse_address(address)) if address else "", read_database(settings)
    if configured != current:
        raise Conflict(
            f"prefect_database ({configured or 'SQLite'}) has no effect on the Prefect server that is running.",
            why=f"It was started with {current or 'SQLite'}.", do="Run `trainyard down`, then `trainyard up` again.",
            code="E-SERVER-RUNS",
        )  # fmt: skip
