"""A rented machine becomes a worker: over one SSH connection, which also carries its way to Prefect's server.

    1. the deadline: a command on the machine that shuts it down, started first, so that it works without this one
    2. setup: what installs Trainyard there
    3. the worker: `prefect worker start`, whose API is a port of that machine that leads back here

Keys go through the input of the remote shell, never into its arguments. The host key is learned at the first connection
and compared at each later one.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.errors import Unavailable

if TYPE_CHECKING:
    from asyncssh import SSHClientConnection, SSHClientProcess

ADDRESS = re.compile(r"(?:ssh )?(?P<user>[a-z_][\w.-]*)@(?P<host>[\w.:-]+)(?: -p (?P<port>\d+))?")
CONNECT_S = 20.0


@dataclass(frozen=True)
class Login:
    """Login of a rented machine."""

    user: str
    host: str
    port: int
    key_file: Path
    host_key: str = ""
    """Public key of the machine in OpenSSH's form; empty before the first connection."""


def read_login(address: str, key_file: Path | None, host_key: str = "") -> Login:
    """Return the login of `user@host -p port`. Raises `Unavailable` (`E-SSH`)."""
    match = ADDRESS.fullmatch(address)
    if match is None or key_file is None:
        problem = (
            "There is no key for rented machines." if key_file is None else f"{address!r} is not an address of SSH."
        )
        raise Unavailable(problem, do="Set rent_ssh_key to the private key that the account has.", code="E-SSH")
    return Login(match["user"], match["host"], int(match["port"] or 22), key_file, host_key)


@asynccontextmanager
async def connect(login: Login) -> AsyncIterator[SSHClientConnection]:
    """Yield a connection. Raises `Unavailable` (`E-SSH`), also where the host key is another one."""
    try:
        import asyncssh  # an extra
    except ImportError as error:
        raise Unavailable("The SSH client is not installed.", do="`pip install 'trainyard[rent]'`.",
                          code="E-SSH") from error  # fmt: skip
    known_hosts = None
    if login.host_key:
        known_hosts = asyncssh.import_known_hosts(f"[{login.host}]:{login.port} {login.host_key}\n")
    try:
        connection = await asyncio.wait_for(
            asyncssh.connect(
                login.host, login.port, username=login.user, client_keys=[str(login.key_file)], known_hosts=known_hosts,
                agent_path=None, config=None, keepalive_interval=15,
            ), CONNECT_S,
        )  # fmt: skip
    except (OSError, asyncssh.Error, TimeoutError, asyncssh.KeyImportError) as error:
        raise Unavailable(
            f"{login.host} port {login.port} cannot be reached over SSH: {error or 'no answer'}",
            do="Check rent_ssh_key, or wait until the machine has started.", code="E-SSH",
        ) from error  # fmt: skip
    async with connection:
        yield connection


def read_host_key(connection: SSHClientConnection) -> str:
    """Return the machine's public key, to compare it at the next connection."""
    key = connection.get_server_host_key()
    return "" if key is None else key.export_public_key().decode().strip()


async def set_deadline(connection: SSHClientConnection, seconds: float, shutdown: str) -> None:
    """Let the machine shut itself down after a time, whatever becomes of this one. Raises `Unavailable` (`E-SSH`)."""
    inner = shlex.quote(f"sleep {max(1, round(seconds))}; {shutdown}")
    command = f"(setsid nohup sh -c {inner} >/dev/null 2>&1 </dev/null &) && echo set"
    result = await connection.run(command, timeout=CONNECT_S)
    if str(result.stdout).strip() != "set":
        raise Unavailable(
            f"The deadline of the machine was not set: {str(result.stderr).strip()[:200]}",
            do="Rent another machine; this one is released.", code="E-SSH",
        )  # fmt: skip


async def forward_back(connection: SSHClientConnection, port: int) -> int:
    """Return a port of the machine's loopback that leads to a local port. Raises `Unavailable` (`E-SSH`)."""
    import asyncssh  # an extra, which the connection has imported

    try:
        listener = await connection.forward_remote_port("127.0.0.1", 0, "127.0.0.1", port)
    except asyncssh.ChannelListenError as error:
        raise Unavailable("The machine forwards no port to this one.", why=str(error), do="Rent another machine.",
                          code="E-SSH") from error  # fmt: skip
    return listener.get_port()


async def start_script(
    connection: SSHClientConnection, lines: list[str], environment: Mapping[str, str]
) -> SSHClientProcess[str]:
    """Start a shell script; its variables and lines are its input, so that no list of processes shows them."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    process = await connection.create_process("sh -s")
    process.stdin.write("\n".join(["set -e", *exports, *lines]) + "\n")
    process.stdin.write_eof()
    return process
