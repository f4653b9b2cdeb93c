"""The repository speaks of the product alone and works from any folder."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml

from tests.architecture.test_budgets import REPOSITORY, name_of, sources, tracked_files

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
    found = []
    for path in filter(readable, tracked_files()):
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if FORBIDDEN.search(line):
                found.append(f"{name_of(path)}:{number}: {line.strip()[:100]}")
    assert not found


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in pins()}
    names = [re.split(r"[\s<>=!\[;]", requirement)[0].lower().replace("_", "-") for requirement in wanted]
    assert not sorted(set(names) - pinned)


def test_every_dependency_is_used() -> None:
    """Some are loaded by name, so the name of a package anywhere in the sources counts."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[\s<>=!\[;]", line)[0].lower().replace("_", "-") for line in project["dependencies"]}
    modules: dict[str, set[str]] = {name: set() for name in wanted}
    for module, names in packages_distributions().items():
        for name in {one.lower().replace("_", "-") for one in names} & wanted:
            modules[name].add(module)
    words = set(re.findall(r"\w+", " ".join(path.read_text() for path in sources())))
    assert not sorted(name for name, given in modules.items() if given and not given & words)


def pins() -> list[str]:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


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
    for path in tracked_files():
        if path.suffix in {".yaml", ".yml"} and bad not in path.parents:
            assert yaml.safe_load(path.read_text()) is not None, name_of(path)


def test_changelog_names_the_version() -> None:
    version = re.search(r'__version__ = "([^"]+)"', (REPOSITORY / "trainyard" / "__init__.py").read_text())
    assert version
    assert f"## {version.group(1)}" in (REPOSITORY / "CHANGELOG.md").read_text()


@pytest.mark.slow
def test_the_wheel_holds_only_the_package(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=REPOSITORY, check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"trainyard"}
