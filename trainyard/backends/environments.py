"""The Python environments of the trainers that do not share ours: where they are, what is in them, whether it imports.

Each external trainer pins other versions than we do, so each has a virtual environment of its own:
`TRAINYARD_HOME/envs/NAME`, or one that the operator names in `backend_envs`. Everything here looks from outside:
versions are read from the files that pip leaves, and the one import test runs in that environment's own interpreter.
Installing is in `installing.py`.

Programs that run there see `trainyard/workers` and nothing else of this package, and need `orjson` for it.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from trainyard import workers
from trainyard.backends.base import Probe
from trainyard.errors import Unavailable
from trainyard.inherited import child_environment
from trainyard.settings import Settings
from trainyard.settings import settings as current_settings
from trainyard.spec.axes.backends import BackendName, Installable, ServerName
from trainyard.stores.whole import write_json_durably

WORKERS = Path(workers.__file__).parent
"""The only folder of Trainyard that an external interpreter imports from."""
WORKER_MODULE = "trainyard_worker.run"
WORKER = ("-m", WORKER_MODULE)
"""What runs there, followed by the name of an engine and the folder of a job."""
REQUIREMENTS_FOLDER = Path(__file__).parent / "requirements"
RECORD_FILE = "trainyard.json"
"""In an environment that we made: the digest of what it was made from."""
PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;#]+)", re.MULTILINE)
IMPORT_TIMEOUT_S = 600
"""The first import of a large package on a busy machine compiles its byte code; two minutes are not unusual."""


@dataclass(frozen=True)
class External:
    """Specifics of the environment of one trainer."""

    distribution: str
    """The package whose version is the trainer's version."""
    imports: str
    """Code of the import test; it prints nothing and raises if the environment is broken."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Set while it is installed and tested."""
    room_gib: int = 6
    """Free space that it takes while it is made."""
    pythons: tuple[tuple[int, int], ...] = ()
    """Versions of Python that all of its packages have wheels for; () for every one that Trainyard runs on."""


ENVIRONMENTS: dict[BackendName, External] = {
    BackendName.DEEPSPEED: External(
        "deepspeed",
        "import torch, transformers, peft, deepspeed",
        {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"},
    ),
    BackendName.MLX: External("mlx-lm", "import mlx.core, mlx_lm"),
    BackendName.LLAMACPP: External("gguf", "import gguf"),
    BackendName.UNSLOTH: External("unsloth", "import unsloth, trl, peft"),
    BackendName.AXOLOTL: External("axolotl", "import axolotl.utils.schemas.config"),
    BackendName.TOGETHER_STEPS: External("together", "import together.post_training", room_gib=1),
    BackendName.FIREWORKS_STEPS: External(
        "fireworks-ai", "import fireworks.training.sdk.client", room_gib=1, pythons=((3, 11), (3, 12), (3, 13), (3, 14))
    ),
}
"""Backends with an environment of their own."""

SERVERS: dict[ServerName, External] = {
    ServerName.VLLM: External(
        "vllm", "import vllm", {"VLLM_NO_USAGE_STATS": "1"}, room_gib=20, pythons=((3, 11), (3, 12))
    ),
}
"""Programs that serve models; `serve/inference_server/vllm.py` finds them in the same place."""

INSTALLABLE: tuple[Installable, ...] = (*ENVIRONMENTS, *SERVERS)
REQUIREMENTS: dict[Installable, Path] = {name: REQUIREMENTS_FOLDER / f"{name.value}.txt" for name in INSTALLABLE}


@dataclass(frozen=True)
class Health:
    """Result of importing a trainer in its environment, and how to fix a failure."""

    ok: bool
    version: str = ""
    why: str = ""
    fix: str = ""
    seconds: float = 0.0


def find_external(name: Installable) -> External | None:
    """Return the specifics of an environment; None for a backend that runs in Trainyard's."""
    return SERVERS.get(name) if isinstance(name, ServerName) else ENVIRONMENTS.get(name)


def require_external(name: Installable) -> External:
    """Return the same of one that has an environment."""
    external = find_external(name)
    assert external is not None, name
    return external


def envs(settings: Settings | None = None) -> Path:
    return (settings or current_settings()).home / "envs"


def find_folder(name: Installable, settings: Settings | None = None) -> Path:
    """Where the environment of a backend is, or would be: the operator's own, else `TRAINYARD_HOME/envs/NAME`."""
    path = (settings or current_settings()).backend_envs.get(name.value)
    return path.expanduser().absolute() if path else envs(settings) / name.value


def is_named(name: Installable, settings: Settings | None = None) -> bool:
    """Whether the operator named an environment that is not ours to change."""
    return name.value in (settings or current_settings()).backend_envs


def install_line(name: Installable) -> str:
    return f"trainyard backends install {name.value}"


def find_python(name: Installable, settings: Settings | None = None) -> Path:
    """Return the interpreter of a backend's program; Trainyard's own if the backend has no environment.

    Raises `Unavailable` (`R-BACKEND-MISSING`) with the command that installs it.
    """
    if find_external(name) is None and not is_named(name, settings):
        return Path(sys.executable)
    python = find_folder(name, settings) / "bin" / "python"
    if not python.exists():
        raise Unavailable(
            f"The backend {name.value!r} is not available.",
            why=f"There is no environment at {find_folder(name, settings)}.",
            do=repair_hint(name, settings),
            code="R-BACKEND-MISSING",
        )
    return python


def repair_hint(name: Installable, settings: Settings | None = None) -> str:
    """Return how to restore a missing or broken environment."""
    if is_named(name, settings):
        return f"Correct backend_envs.{name.value} in trainyard.toml, or remove it and run `{install_line(name)}`."
    return f"Run `{install_line(name)}`."


def site_packages(environment: Path) -> list[Path]:
    return sorted(environment.glob("lib/python3*/site-packages"))


def distributions(environment: Path) -> dict[str, str]:
    """Distribution -> version of an environment, read from the names of its `dist-info` folders."""
    stems = (path.name.removesuffix(".dist-info") for site in site_packages(environment)
             for path in site.glob("*.dist-info"))  # fmt: skip
    return {
        str(canonicalize_name(name)): version for name, _, version in (stem.rpartition("-") for stem in stems) if name
    }


def list_installed(name: Installable, settings: Settings | None = None) -> dict[str, str]:
    """Distribution -> version in the environment of a backend; empty where there is none. Imports nothing."""
    return distributions(find_folder(name, settings))


def pins(name: Installable) -> dict[str, str]:
    """Distribution -> version that the backend's requirement file asks for."""
    path = REQUIREMENTS.get(name)
    if path is None or not path.is_file():
        return {}
    return {
        str(canonicalize_name(distribution)): version
        for distribution, version in PIN.findall(path.read_text(encoding="utf-8"))
    }


def requirements_digest(name: Installable) -> str:
    return hashlib.sha256(REQUIREMENTS[name].read_bytes()).hexdigest()


def probe(name: Installable, settings: Settings | None = None) -> Probe:
    """Whether an external trainer is installed in the right version. Reads files only; a failed import test counts."""
    environment, fix = find_folder(name, settings), repair_hint(name, settings)
    versions = list_installed(name, settings)
    external, requirements = require_external(name), pins(name)
    version = versions.get(external.distribution, "")
    if not (environment / "bin" / "python").exists():
        return Probe(False, why=f"{name.value} is not installed: there is no environment at {environment}.", fix=fix)
    if not version:
        return Probe(False, why=f"The environment at {environment} has no {external.distribution}.", fix=fix)
    if not fits(version, requirements.get(external.distribution, version), exactly=not is_named(name, settings)):
        why = f"{external.distribution} {version} is installed; {requirements[external.distribution]} is what we drive."
        return Probe(False, version=version, why=why, fix=fix)
    last_health = read_last_health(name, settings)
    if last_health is not None and not last_health.ok:
        return Probe(False, version=version, why=last_health.why, fix=fix)
    return Probe(True, version=version)


def fits(version: str, pinned: str, *, exactly: bool) -> bool:
    """Whether a version is the pinned one; in an environment that the operator named, another patch of it will do."""
    try:
        have, want = Version(version).release, Version(pinned).release
    except InvalidVersion:
        return version == pinned
    return have == want if exactly else have[:2] == want[:2]


def health_file(name: Installable, settings: Settings | None = None) -> Path:
    return envs(settings) / f"{name.value}.health.json"


def make_key(name: Installable, settings: Settings | None = None) -> str:
    """Names what the import test looked at: the environment, the versions in it and the test."""
    environment = find_folder(name, settings)
    changed = [path.stat().st_mtime_ns for path in site_packages(environment)]
    text = orjson.dumps(
        [str(environment.resolve()), changed, list_installed(name, settings), require_external(name).imports]
    )
    return hashlib.sha256(text).hexdigest()


def read_last_health(name: Installable, settings: Settings | None = None) -> Health | None:
    """Return the result of the last import test, if nothing has changed since."""
    path = health_file(name, settings)
    if not path.is_file():
        return None
    try:
        record = orjson.loads(path.read_bytes())
        return Health(**record["health"]) if record["key"] == make_key(name, settings) else None
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None  # another version of us wrote it; the test is repeated


def health(name: Installable, settings: Settings | None = None, *, refresh: bool = False) -> Health:
    """Import the trainer once in its own interpreter and remember the result until the environment changes."""
    looked = probe(name, settings)
    last_health = read_last_health(name, settings)
    if last_health is not None and not refresh:
        return last_health
    if not looked.version:
        return Health(False, why=looked.why, fix=looked.fix)
    result = import_test(name, find_folder(name, settings), looked.version, repair_hint(name, settings))
    envs(settings).mkdir(parents=True, exist_ok=True)
    write_json_durably(health_file(name, settings), {"key": make_key(name, settings), "health": asdict(result)})
    return result


def import_test(name: Installable, environment: Path, version: str, fix: str) -> Health:
    """Run the imports of a backend in an environment, without network and without Trainyard's packages."""
    external, started = require_external(name), time.monotonic()
    variables = {
        **clean_variables(child_environment()),
        **external.variables,
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
    }
    argv = [str(environment / "bin" / "python"), "-c", external.imports]
    try:
        ran = subprocess.run(
            argv, env=variables, cwd=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=IMPORT_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Health(False, version, f"`{external.imports}` had not ended after {IMPORT_TIMEOUT_S} s.", fix)
    except OSError as error:
        return Health(False, version, f"Its interpreter does not start: {error.strerror}.", fix)
    seconds = round(time.monotonic() - started, 2)
    if ran.returncode == 0:
        return Health(True, version, seconds=seconds)
    error_lines = ran.stderr.strip().splitlines()
    last = error_lines[-1][:300] if error_lines else f"exit code {ran.returncode}"
    return Health(False, version, f"It does not import: {last}", fix, seconds)


def clean_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Our environment variables without those that would lead another interpreter to our packages."""
    return {key: value for key, value in variables.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


def variables() -> dict[str, str]:
    """What every program in an external interpreter needs beyond `launching.environment`: our workers, no more."""
    return {"PYTHONPATH": str(WORKERS), "PYTHONNOUSERSITE": "1"}
