"""The repository speaks of the product alone and works from any folder."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from itertools import chain, product
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.test_budgets import REPOSITORY, format_path, list_tracked_files, sources

TEXTS = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".sh", ".html", ".js", ".css", ".json", ".jinja", ""}
# Written in pieces, so that this file does not hold what it looks for.
FORBIDDEN = re.compile(
    "|".join(
        first + second
        for first, second in [
            ("py", r"pi\.org"), ("python", "hosted"), ("registry", r"\.npmjs"), ("deb", r"\.debian"),
            ("/wo", r"rk/(main|steering|shared)"), ("/ro", "ot/"), ("/ho", r"me/[a-z]+/"), ("/opt/", "wheels"),
        ]
    )
)  # fmt: skip


def readable(path: Path) -> bool:
    return path.suffix in TEXTS and path.stat().st_size < 2_000_000


def test_no_machine_path_and_no_registry_host() -> None:
    hits = []
    for path in filter(readable, list_tracked_files()):
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if FORBIDDEN.search(line):
                hits.append(f"{format_path(path)}:{number}: {line.strip()[:100]}")
    assert not hits


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    requirements = [
        Requirement(dependency) for dependency in (*project["dependencies"], *project["optional-dependencies"]["dev"])
    ]
    pinned = {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in pins()}
    assert not [requirement.name for requirement in requirements if canonicalize_name(requirement.name) not in pinned]
    assert not [
        str(requirement)
        for requirement in requirements
        if not requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])
    ]


@pytest.mark.network
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_wheel_resolves(version: str, tmp_path: Path) -> None:
    """Each Python finds every requirement as a wheel under the pins; nothing is installed."""
    wheel = build_wheel(tmp_path)
    argv = ["install", "--dry-run", "--quiet", "--python-version", version, "--only-binary=:all:"]
    argv += ["--target", str(tmp_path / "target"), "--constraint", "constraints.txt", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *argv], cwd=REPOSITORY, check=True)


def test_every_dependency_is_used() -> None:
    """Some are loaded by name, so the name of a package anywhere in the sources counts."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    dependencies = {re.split(r"[\s<>=!\[;]", line)[0].lower().replace("_", "-") for line in project["dependencies"]}
    modules: dict[str, set[str]] = {name: set() for name in dependencies}
    for module, names in packages_distributions().items():
        for name in {distribution.lower().replace("_", "-") for distribution in names} & dependencies:
            modules[name].add(module)
    identifiers = set(re.findall(r"\w+", " ".join(path.read_text() for path in sources())))
    assert not sorted(name for name, module_names in modules.items() if module_names and not module_names & identifiers)


def pins() -> list[str]:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def list_required(lines: Iterable[str]) -> set[str]:
    """The packages that the requirements lead to on some Python and system, as the installed metadata says it."""
    systems = {"Linux": "linux", "Darwin": "darwin", "Windows": "win32"}.items()
    environments = [
        {"python_version": version, "platform_system": system, "sys_platform": platform}
        for version, (system, platform) in product(("3.11", "3.12", "3.13"), systems)
    ]
    waiting = {(Requirement(line), "") for line in lines}
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not any(
            requirement.marker.evaluate({**environment, "extra": extra}) for environment in environments
        ):
            continue
        for name, next_extra in {
            (canonicalize_name(requirement.name), next_extra) for next_extra in ("", *requirement.extras)
        } - seen:
            seen.add((name, next_extra))
            waiting |= {(Requirement(line), next_extra) for line in list_requirements(name)}
    return {name for name, _ in seen}


def list_requirements(name: str) -> list[str]:
    """None are known of a package that is not installed: one of another system, or of an extra."""
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []


def test_every_pin_is_required() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    required_names = list_required([*project["dependencies"], *chain.from_iterable(extras)])
    assert not sorted({canonicalize_name(line.split("==")[0]) for line in pins()} - required_names)


def test_pins_are_exact_and_portable() -> None:
    assert not [line for line in pins() if not re.fullmatch(r"[A-Za-z0-9_.\-]+==[A-Za-z0-9_.!]+", line)]


def test_fastapi_stays_where_the_prefect_server_works() -> None:
    version = next(line for line in pins() if line.lower().startswith("fastapi=="))
    major, minor = version.split("==")[1].split(".")[:2]
    assert (int(major), int(minor)) >= (0, 139)
    assert (int(major), int(minor)) < (0, 150)


def test_sqlalchemy_stays_where_the_scheduler_of_prefect_works() -> None:
    """2.1 refuses the bulk insert by which Prefect 3.8 makes the runs of a schedule: no schedule starts anything."""
    version = next(line for line in pins() if line.lower().startswith("sqlalchemy=="))
    assert version.split("==")[1].startswith("2.0.")


def test_yaml_files_parse() -> None:
    bad = REPOSITORY / "tests" / "resources"
    for path in list_tracked_files():
        if path.suffix in {".yaml", ".yml"} and bad not in path.parents:
            assert yaml.safe_load(path.read_text()) is not None, format_path(path)


def test_changelog_names_the_version() -> None:
    version = re.search(r'__version__ = "([^"]+)"', (REPOSITORY / "trainyard" / "__init__.py").read_text())
    assert version
    assert f"## {version.group(1)}" in (REPOSITORY / "CHANGELOG.md").read_text()


def build_wheel(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=REPOSITORY, check=True
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_the_wheel_takes_one_name_and_contains_what_is_deployed(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_wheel(tmp_path)) as archive:
        names = set(archive.namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"trainyard"}
    deployed = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())["deployments"]
    flows = {f"trainyard/shipped/{deployment['entrypoint'].partition(':')[0]}" for deployment in deployed}
    assert not sorted((flows | {"trainyard/shipped/prefect.yaml"}) - names)
    built = {f"trainyard/surfaces/sdk/{name}.pyi" for name in ("surface", "asynchronous")}  # not committed
    assert built <= names
    folders = ("flows", "nodes", "tasks", "deployments", "examples")
    tracked = [format_path(path) for path in list_tracked_files()]
    shipped = {
        f"trainyard/shipped/{name}" for name in tracked if name.startswith(tuple(f"{folder}/" for folder in folders))
    }
    assert not sorted(shipped - names)
