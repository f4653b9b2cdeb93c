"""A machine over SSH: a real sshd on loopback with a host key of its own, a deadline, a way back, and a script."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest

from tests.sshd import NOT_HERE, SSHD, Sshd
from trainyard.compute.rent.joining import connect, forward_back, read_host_key, read_login, set_deadline, start_script
from trainyard.errors import Unavailable
from trainyard.testing.prime_server import PrimeDouble

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(SSHD is None, reason=NOT_HERE),
]


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    server = Sshd(tmp_path)
    server.start()
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait()


def test_a_machine_gets_a_deadline_a_way_back_and_a_script_without_keys_in_arguments(
    sshd: Sshd, tmp_path: Path
) -> None:
    double = PrimeDouble()
    ended, seen = tmp_path / "ended", tmp_path / "seen"

    async def join(url: str) -> str:
        async with connect(read_login(sshd.address, sshd.key_file)) as connection:
            await set_deadline(connection, 1, shutdown=f"touch {ended}")
            port = await forward_back(connection, int(url.rpartition(":")[2]))
            lines = [
                f"ps -eo args > {seen}",
                "python3 -c \"import os, urllib.request as u; r = u.Request(os.environ['API']); "
                "r.add_header('Authorization', 'Bearer ' + os.environ['KEY']); print(u.urlopen(r).read().decode())\"",
            ]
            api = f"http://127.0.0.1:{port}/api/v1/availability/gpus"
            process = await start_script(connection, lines, {"API": api, "KEY": double.key})
            done = await process.wait(timeout=20)
            assert done.exit_status == 0, done.stderr
            return str(done.stdout)

    with double.serve() as url:
        assert "h100-b" in asyncio.run(join(url))
    assert double.key not in seen.read_text()
    deadline = time.monotonic() + 10
    while not ended.exists() and time.monotonic() < deadline:  # the connection is closed: the machine does it alone
        time.sleep(0.05)
    assert ended.exists()


def test_another_host_key_than_the_first_is_refused(sshd: Sshd) -> None:
    async def learn(host_key: str) -> str:
        async with connect(read_login(sshd.address, sshd.key_file, host_key)) as connection:
            return read_host_key(connection)

    first = asyncio.run(learn(""))
    assert asyncio.run(learn(first)) == first
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
    with pytest.raises(Unavailable, match=r"E-SSH.*Host key"):
        asyncio.run(learn(other))


def test_no_address_no_key_and_no_server_are_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="Set rent_ssh_key"):
        read_login("root@10.0.0.1 -p 22", None)
    with pytest.raises(Unavailable, match="is not an address of SSH"):
        read_login("$(touch x)@host", tmp_path)

    async def reach() -> None:
        asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(tmp_path / "key"))
        async with connect(read_login("root@127.0.0.1 -p 1", tmp_path / "key")):
            pytest.fail("nothing listens there")

    with pytest.raises(Unavailable, match=r"E-SSH: 127\.0\.0\.1 port 1 cannot be reached"):
        asyncio.run(reach())
