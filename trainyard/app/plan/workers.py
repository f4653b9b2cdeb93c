"""Whether the workers of `fan_out` can do a chain's pieces: packages, address, versions, the shared folder.

A cluster that runs is asked by a child process (`cluster_probe`): the client of Ray can end the process that has it.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainyard.app.plan.keys import package_version
from trainyard.backends.machine import code_digest
from trainyard.errors import Reason
from trainyard.inherited import child_environment
from trainyard.settings import FanOutSettings, Settings
from trainyard.spec.axes.data import GeneratorKind
from trainyard.spec.graph import ResolvedChain
from trainyard.spec.nodes import AiGeneratorConfig, ValidatorConfig

EXTRAS: Mapping[str, tuple[str, str]] = {
    "dask": ("prefect_dask", "trainyard[dask]"),
    "ray": ("prefect_ray", "trainyard[ray]"),
}
"""Engine -> module of its task runner, and the package that brings it."""
PACKAGES = ("numpy", "pyarrow", "tokenizers", "msgspec", "xxhash", "phonenumberslite", "HanTa")
"""Packages that decide the bytes of a piece."""
REACH_S, PROBE_S, TRUSTED_S = 3.0, 60.0, 60.0
FIELD, API_VARIABLE = "fan_out", "PREFECT_API_URL"
ANSWERED: dict[tuple[FanOutSettings, str], float] = {}
"""Clusters that could do the work, and when (monotonic seconds)."""


@cache
def list_versions() -> dict[str, str]:
    """Return the versions here of what decides the bytes of a piece."""
    python = ".".join(platform.python_version_tuple()[:2])
    code = code_digest(("data",))[:12]
    return {"Python": python, "trainyard's code": code, **{name: package_version(name) for name in PACKAGES}}


def describe_differences(versions: Mapping[str, str], host: str, own: Mapping[str, str]) -> str:
    """Return what a worker on a host has in another version than the run; empty if nothing."""
    return "; ".join(
        f"{name} {own.get(name)} on {host}, {version} here"
        for name, version in versions.items()
        if own.get(name) != version
    )


def describe_worker(folder: str) -> dict[str, Any]:
    """Return the versions of this worker, and what it sees of a folder; it runs there."""
    path = Path(folder)
    return {
        "host": socket.gethostname(),
        "versions": list_versions(),
        "inode": path.stat().st_ino if path.is_dir() else None,
        "writes": os.access(path, os.W_OK),
        "api": bool(os.environ.get(API_VARIABLE)),
    }


def check_workers(chain: ResolvedChain, settings: Settings) -> list[Reason]:
    """Return why the workers of `fan_out` could not do the pieces of this chain."""
    fan_out = settings.fan_out
    if fan_out is None or not any(works_in_pieces(node.config) for node in chain.nodes):
        return []
    module, package = EXTRAS.get(fan_out.engine, ("", ""))
    if module and find_spec(module) is None:
        because = f"fan_out.engine is {fan_out.engine}, and its package is not installed here."
        return [Reason("R-PACKAGE-MISSING", None, FIELD, because, f"Run `pip install '{package}'`.")]
    if (
        fan_out.address is None
        or time.monotonic() - ANSWERED.get((fan_out, str(settings.home)), -TRUSTED_S) < TRUSTED_S
    ):
        return []
    problem = find_problem(fan_out, settings.home)
    if not problem:
        ANSWERED[fan_out, str(settings.home)] = time.monotonic()
        return []
    instead = (
        f"Start its workers with the same packages, TRAINYARD_HOME and {API_VARIABLE}, or correct fan_out in "
        "trainyard.toml."
    )
    return [Reason("E-SERVER-UNREACHABLE", None, FIELD, f"{fan_out.description}: {problem}", instead)]


def works_in_pieces(config: object) -> bool:
    """Return whether a node's work is done in pieces where there are workers for them."""
    by_rule = isinstance(config, AiGeneratorConfig) and config.engine is GeneratorKind.EXTRACTIVE
    return by_rule or isinstance(config, ValidatorConfig)


def find_problem(fan_out: FanOutSettings, home: Path) -> str:
    """Return what is wrong with a cluster that should run; empty if nothing."""
    address = urlsplit(fan_out.address or "")
    try:
        socket.create_connection((address.hostname, address.port), REACH_S).close()
    except (OSError, ValueError) as error:
        return f"nothing answers there ({error})."
    command = [
        sys.executable,
        "-m",
        "trainyard.app.plan.cluster_probe",
        fan_out.engine,
        fan_out.address or "",
        str(home),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=child_environment(), timeout=PROBE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no scheduler of {fan_out.engine} answered within {PROBE_S:.0f} s."
    if done.returncode:
        return f"it cannot be used: {(done.stderr.strip().splitlines() or ['no reason given'])[-1][:500]}"
    workers = json.loads(done.stdout.splitlines()[-1])
    inode = home.stat().st_ino if home.is_dir() else None
    return (
        "it has no worker."
        if not workers
        else next(filter(None, (judge_worker(each, home, inode) for each in workers)), "")
    )


def judge_worker(worker: Mapping[str, Any], home: Path, inode: int | None) -> str:
    """Return why a worker cannot do pieces; empty if it can."""
    if "error" in worker:
        return f"a worker cannot run Trainyard: {worker['error']}"
    host = worker["host"]
    if differences := describe_differences(list_versions(), host, worker["versions"]):
        return f"a worker has other versions: {differences}."
    if inode is not None and (worker["inode"] != inode or not worker["writes"]):
        return f"the worker on {host} does not see {home}, or may not write there."
    if not worker["api"]:
        return f"the worker on {host} has no {API_VARIABLE} in its environment, by which it reports its pieces."
    return ""
