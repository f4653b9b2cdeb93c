"""A PostgreSQL server of the distribution, in a folder of its own on a free port, for the tests that need one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

INITDB = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)), None)
MISSING = "" if INITDB else "PostgreSQL is not installed: apt-get install postgresql"
USER, PASSWORD = "yard", "correct-horse-9f2"


@dataclass
class PostgresServer:
    """A running server with one user, whose password it asks for."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "prefect", *, password: str = PASSWORD, user: str = USER) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        assert INITDB is not None
        argv = [str(INITDB.with_name("postgres")), "-D", str(self.folder / "data"), "-p", str(self.port),
                "-k", str(self.folder), "-c", "fsync=off"]  # fmt: skip
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=find_user())
        deadline = time.monotonic() + 30
        while self.run_sql("select 1", check=False) != 0:
            assert time.monotonic() < deadline, "PostgreSQL did not start"
            time.sleep(0.1)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)
            self.process = None

    def run_sql(self, statement: str, database: str = "postgres", *, check: bool = True) -> int:
        """Run a statement as the owner of the server; return psql's exit status."""
        assert INITDB is not None
        argv = [str(INITDB.with_name("psql")), "-qtA", "-v", "ON_ERROR_STOP=1", "-c", statement,
                self.url(database)]  # fmt: skip
        return subprocess.run(argv, check=check, capture_output=True).returncode


def find_user() -> str | None:
    """PostgreSQL refuses to run as root."""
    return "postgres" if os.getuid() == 0 else None


@contextmanager
def running_postgresql() -> Iterator[PostgresServer]:
    """Start a server; it is ended, and its folder removed, at the end."""
    assert INITDB is not None, MISSING
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    password = folder / "password"
    password.write_text(PASSWORD)
    if user := find_user():
        for path in (folder, password):
            shutil.chown(path, user)
    server = PostgresServer(folder, port)
    try:
        subprocess.run(
            [INITDB, "-D", folder / "data", "-A", "scram-sha-256", "-U", USER, f"--pwfile={password}", "--no-sync"],
            check=True, capture_output=True, user=user,
        )  # fmt: skip
        server.start()
        server.run_sql("create database prefect")
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
