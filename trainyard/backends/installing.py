"""Makes the environment of an external trainer: everything or nothing, one at a time, twice the same.

It is built in `envs/.NAME-…`, and `envs/NAME` is a link that is set in one step after the import
test: whatever is killed on the way leaves a folder that counts for nothing and is swept by the next install. The folder
keeps its path, so that the scripts and libraries in it stay valid.

A requirement file is pinned, its torch line first: torch is installed alone, because a later resolution would otherwise
pull another build of it. A comment `#: --no-deps` gives the lines below it their own call of pip with those options.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from trainyard.backends import environments
from trainyard.backends.deepspeed.build import build as build_deepspeed
from trainyard.backends.install_steps import ENDING, LOG_FILE, make_install_error, run_install_step
from trainyard.backends.llamacpp.build import build as build_llamacpp
from trainyard.compute.lease import device_lock, holder
from trainyard.errors import Conflict, InvalidInput, Unavailable
from trainyard.inherited import installer_environment
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName, Installable
from trainyard.stores.whole import write_json_durably

Say = Callable[[str], None]
PHASE_MARK = "#:"
BUILDS: dict[Installable, Callable[[Path, Say], None]] = {
    BackendName.DEEPSPEED: build_deepspeed,
    BackendName.LLAMACPP: build_llamacpp,
}
"""Backend -> what is built in its environment after pip and before the import test."""


@dataclass(frozen=True)
class Phase:
    """A call of pip."""

    options: tuple[str, ...]
    requirements: tuple[str, ...]


def phases(text: str) -> list[Phase]:
    """The calls of pip that a requirement file asks for: the first requirement (torch) alone, then group by group."""
    groups: list[tuple[tuple[str, ...], list[str]]] = [((), [])]
    for line in text.splitlines():
        if line.startswith(PHASE_MARK):
            groups.append((tuple(shlex.split(line.removeprefix(PHASE_MARK))), []))
        elif (stripped := line.partition(" #")[0].strip()) and not stripped.startswith("#"):
            groups[-1][1].append(stripped)
    options, first = groups[0]
    split = [(options, first[:1]), (options, first[1:]), *groups[1:]]
    return [Phase(options, tuple(lines)) for options, lines in split if lines]


def install(name: Installable, settings: Settings, say: Say) -> environments.Health:
    """Make the environment of a backend, or find it made. Returns the result of the import test.

    Raises `InvalidInput` (`E-BACKEND-CONFIG`: it has no environment of its own), `Conflict` (`E-BACKEND-CONFIG`: the
    operator named one, which we leave alone), `Unavailable` (`E-INSTALL`: pip or the build failed; nothing is left).
    """
    require_installable(name, settings)
    root = environments.envs(settings)
    root.mkdir(parents=True, exist_ok=True)
    with ENDING.catch_signals(), lock_installation(name, root, say):
        if is_current(name, settings) and (last_health := environments.health(name, settings)).ok:
            say(f"{name.value} {last_health.version} is installed already")
            return last_health
        sweep(name, root)
        require_python(name)
        require_room(root, environments.require_external(name).room_gib)
        environment = Path(tempfile.mkdtemp(prefix=f".{name.value}-", dir=root))
        try:
            health = build(name, environment, say)
        except BaseException:
            if (environment / LOG_FILE).is_file():  # what a failed installation said outlives its folder
                shutil.copyfile(environment / LOG_FILE, root / f"{name.value}.{LOG_FILE}")
            shutil.rmtree(environment, ignore_errors=True)
            raise
        take_place(environment, root / name.value)
        environments.health_file(name, settings).unlink(missing_ok=True)
        sweep(name, root)
        say(f"{name.value} {health.version} is installed and imports ({health.seconds:.0f} s)")
        return environments.health(name, settings)


def require_installable(name: Installable, settings: Settings) -> None:
    if environments.is_named(name, settings):
        raise Conflict(
            f"The setting backend_envs names an environment for {name.value}: "
            f"{environments.find_folder(name, settings)}.",
            why="Trainyard installs nothing into an environment that it did not create.",
            do=f"Install there by hand, or remove backend_envs.{name.value} from trainyard.toml.",
            code="E-BACKEND-CONFIG",
        )
    if environments.find_external(name) is None:
        raise InvalidInput(
            f"The backend {name.value} has no environment of its own: it runs in Trainyard's.",
            do=f"Install one of: {', '.join(backend.value for backend in environments.REQUIREMENTS)}.",
            code="E-BACKEND-CONFIG",
        )


def require_python(name: Installable, version: tuple[int, int] = sys.version_info[:2]) -> None:
    """Raise `Unavailable` (`E-INSTALL`) where a package of the environment has no wheel for our Python."""
    pythons = environments.require_external(name).pythons
    if pythons and version not in pythons:
        versions = " and ".join(".".join(map(str, python)) for python in pythons)
        raise Unavailable(
            f"The pinned packages of {name.value} are for Python {versions}; this is {'.'.join(map(str, version))}.",
            why="The environment is made with the Python that Trainyard runs on.",
            do=f"Install {environments.REQUIREMENTS[name].name} in an environment with such a Python, and name it in "
            f"trainyard.toml: backend_envs.{name.value}.",
            code="E-INSTALL",
        )


@contextmanager
def lock_installation(name: Installable, root: Path, say: Say) -> Iterator[None]:
    """Lock this environment; a second install waits for the first one and finds its work done."""
    path = root / f".{name.value}.lock"
    if (other := holder(path)) is not None:
        say(f"process {other.pid} is installing {name.value}; waiting for it")
    with device_lock(path, run=f"install-{name.value}", wait_s=float("inf")):
        yield


def is_current(name: Installable, settings: Settings) -> bool:
    """Whether the environment was made from the requirement file as it is now."""
    path = environments.find_folder(name, settings) / environments.RECORD_FILE
    if not path.is_file():
        return False
    record = orjson.loads(path.read_bytes())
    return bool(
        record.get("requirements") == environments.requirements_digest(name)
        and record.get("python") == python_version()
    )


def python_version() -> str:
    return ".".join(map(str, sys.version_info[:3]))


def build(name: Installable, environment: Path, say: Say) -> environments.Health:
    """Fill an empty folder with a tested environment and its record. Raises `Unavailable` (`E-INSTALL`)."""
    external, started = environments.require_external(name), time.monotonic()
    variables = {**environments.clean_variables(installer_environment()), **external.variables}
    say(f"making {environment.name}")
    run_install_step([sys.executable, "-P", "-m", "venv", str(environment)], environment, variables)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    for phase in phases(environments.REQUIREMENTS[name].read_text(encoding="utf-8")):
        say(f"installing {', '.join(phase.requirements)}")
        run_install_step([*pip, *phase.options, *phase.requirements], environment, variables)
    if name in BUILDS:
        say(f"building {name.value}")
        BUILDS[name](environment, say)
    versions = environments.distributions(environment)
    tested = environments.import_test(
        name, environment, versions.get(external.distribution, ""), environments.install_line(name)
    )
    if not tested.ok:
        raise make_install_error(name.value, tested.why)
    record = {
        "backend": name.value,
        "requirements": environments.requirements_digest(name),
        "python": python_version(),
        "versions": versions,
        "seconds": round(time.monotonic() - started, 1),
    }
    write_json_durably(environment / environments.RECORD_FILE, record)
    return tested


def take_place(environment: Path, target: Path) -> None:
    """Let `envs/NAME` mean the new environment; one that was made by hand as a folder steps aside."""
    if target.is_dir() and not target.is_symlink():
        target.rename(target.with_name(f".{target.name}-replaced-{os.getpid()}"))
    # In one step: another process may be reading the link.
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(environment.name)
    temporary.replace(target)


def sweep(name: Installable, root: Path) -> None:
    """Remove what earlier and killed installations left; called under the lock."""
    current = (root / name.value).resolve()
    for left in root.glob(f".{name.value}-*"):
        if left.resolve() != current:
            shutil.rmtree(left, ignore_errors=True)


def require_room(root: Path, gib: int) -> None:
    free = shutil.disk_usage(root).free >> 30
    if free < gib:
        raise Unavailable(
            f"There are {free} GiB free at {root}, and an environment takes up to {gib}.",
            do="Free space, or point TRAINYARD_HOME at a larger disk.",
            code="E-INSTALL",
        )
