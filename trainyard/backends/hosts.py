"""Several hosts: which of them this one is, where they meet, and what they need to have in common. Imports no torch."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from trainyard.backends.job import TrainingJob
from trainyard.compute.roll_call import HOSTS_FILE, Host
from trainyard.errors import InvalidInput
from trainyard.spec.chain import digest
from trainyard.spec.training import LaunchSettings
from trainyard.stores.whole import write_json_durably

DEFAULT_PORT = 29_500
"""Of the first host of `launch.hosts`, as torchrun's."""
RANK_VARIABLE = "TRAINYARD_NODE_RANK"
"""The number of this host in `launch.hosts`, where its names do not say."""
DEFAULT_WAIT_S = 600
PACKAGES = ("trainyard", "torch", "transformers", "peft")
"""Packages whose versions decide the numbers."""


@dataclass(frozen=True)
class Place:
    """This host among those of a launch."""

    node_rank: int
    host: str
    port: int


def find_place(launch: LaunchSettings) -> Place:
    """Return the place of this host. Raises `InvalidInput` (`E-LAUNCH`) for one that is not among them."""
    if not launch.hosts:
        host, _, port = (launch.rendezvous or "").partition(":")
        return Place(launch.node_rank or 0, host, int(port))
    return Place(find_own_number(launch.hosts), launch.hosts[0], DEFAULT_PORT)


def find_own_number(hosts: tuple[str, ...]) -> int:
    """Return the number of this host by its name or one of its addresses. Raises `InvalidInput` (`E-LAUNCH`)."""
    if RANK_VARIABLE in os.environ:
        return read_number(os.environ[RANK_VARIABLE], len(hosts))
    own = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    names = {socket.gethostname(), socket.getfqdn()}
    for number, host in enumerate(hosts):
        if host in names or own & resolve(host):
            return number
    raise InvalidInput(
        f"This host, {socket.gethostname()}, is none of {', '.join(hosts)}.",
        do=f"Name it in launch.hosts, or set {RANK_VARIABLE} to its number.",
        code="E-LAUNCH",
    )


def resolve(host: str) -> set[str]:
    """Return the addresses of a host. Raises `InvalidInput` (`E-LAUNCH`) where there is none."""
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise InvalidInput(
            f"The host {host!r} does not resolve: {error}.",
            do="Correct its name in launch, or add it to DNS or /etc/hosts.",
            code="E-LAUNCH",
        ) from error


def read_number(text: str, count: int) -> int:
    """Return the number that the variable gives this host. Raises `InvalidInput` (`E-LAUNCH`)."""
    if text.isdecimal() and int(text) < count:
        return int(text)
    raise InvalidInput(
        f"{RANK_VARIABLE} is {text!r}, and {count} hosts are numbered from 0 to {count - 1}.",
        do="Set it to the number of this host in launch.hosts, or remove it.",
        code="E-LAUNCH",
    )


def require_hosts(launch: LaunchSettings) -> None:
    """Raise `InvalidInput` (`E-LAUNCH`) for a host that does not resolve, by its name."""
    for host in launch.hosts or (find_place(launch).host,):
        resolve(host)


def prepare_hosts(job: TrainingJob, folder: Path, environment: Path | None = None) -> None:
    """Write what this host says to the others before they start (`compute/roll_call.py`).

    `environment` is that of an external trainer, whose packages count. Raises `InvalidInput` (`E-LAUNCH`) for a host
    that does not resolve, or that is none of them.
    """
    launch = job.config.launch
    require_hosts(launch)
    place = find_place(launch)
    names = launch.hosts or (place.host, *(f"host {number}" for number in range(1, launch.node_count)))
    host = Host(
        place.node_rank, names, place.host, place.port, float(launch.wait_s or DEFAULT_WAIT_S),
        collect_facts(job, environment),
    )  # fmt: skip
    write_json_durably(folder / HOSTS_FILE, asdict(host))


def collect_facts(job: TrainingJob, environment: Path | None) -> dict[str, str]:
    """Return what hosts compare: versions, the base, and the settings that each of them was started with."""
    python = ".".join(platform.python_version_tuple()[:2])
    paths = None if environment is None else [str(path) for path in environment.glob("lib/python*/site-packages")]
    versions = {name: find_version(name, paths) for name in (*PACKAGES, *(["deepspeed"] if paths else []))}
    config = job.config.model_dump(mode="json", include={"stage", "method", "backend", "hyperparameters", "launch"})
    launch = {name: value for name, value in config["launch"].items() if name not in ("node_rank", "wait_s")}
    data = {} if paths is None else {"data": digest(job.data_sha256)[:12]}  # each host of an external trainer reads it
    return {
        "python": python, **versions, **data, "base": job.base_sha256 or "unknown",
        "settings": digest({**config, "launch": launch})[:12],
    }  # fmt: skip


def find_version(name: str, paths: Iterable[str] | None) -> str:
    """Return the version of a package here, or in an environment; Trainyard itself is always here."""
    if paths is None or name == "trainyard":
        return importlib.metadata.version(name)
    found = importlib.metadata.distributions(name=name, path=[*paths])
    return next((distribution.version for distribution in found), "none")


def write_hostfile(launch: LaunchSettings, path: Path) -> tuple[str, ...]:
    """Write the hostfile of DeepSpeed's launcher, one `NAME slots=N` a line, and return the names in their order."""
    names = launch.hosts or tuple(f"host-{number}" for number in range(launch.nodes))
    path.write_text("".join(f"{name} slots={launch.local_processes}\n" for name in names), encoding="utf-8")
    return names
