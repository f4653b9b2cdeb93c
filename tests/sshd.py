"""A real sshd on loopback, of the user who runs the tests, with keys of its own."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import time
from pathlib import Path

import asyncssh

SSHD = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")
NOT_HERE = "sshd is not here (Debian: openssh-server)"


class Sshd:
    """An sshd of this user on a free port, which lets one key in."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.key_file = folder, folder / "client"
        for name in ("host", "client"):
            key = asyncssh.generate_private_key("ssh-ed25519")
            key.write_private_key(str(folder / name))
            key.write_public_key(str(folder / f"{name}.pub"))
            (folder / name).chmod(0o600)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        lines = [
            f"Port {self.port}", "ListenAddress 127.0.0.1", f"HostKey {folder / 'host'}", f"PidFile {folder / 'pid'}",
            f"AuthorizedKeysFile {folder / 'client.pub'}", "StrictModes no", "UsePAM no", "PasswordAuthentication no",
            "AllowTcpForwarding yes", "PermitRootLogin prohibit-password",
        ]  # fmt: skip
        (folder / "config").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        assert SSHD is not None
        Path("/run/sshd").mkdir(exist_ok=True)
        log = (self.folder / "log").open("wb")
        self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(self.folder / "config")], stderr=log)
        log.close()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError((self.folder / "log").read_text())

    @property
    def address(self) -> str:
        return f"{getpass.getuser()}@127.0.0.1 -p {self.port}"
