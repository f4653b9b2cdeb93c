"""The committed build of the dashboard is what its sources and its lockfile make, and it is small."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.test_budgets import REPOSITORY
from tools.docs.screenshots import FOLDER, PAGES
from trainyard.app.chains.describe import SCHEMAS

WEB, BUILD = REPOSITORY / "web", REPOSITORY / "trainyard" / "surfaces" / "web"
TYPES = WEB / "src" / "api" / "schema.d.ts"
BUDGET_BYTES = 400_000
"""Of everything that a browser could load, compressed."""


def test_the_bundle_is_small() -> None:
    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in BUILD.glob("assets/*")}
    assert sum(sizes.values()) <= BUDGET_BYTES, sizes


def test_no_text_is_html_and_no_code_is_text() -> None:
    """In our sources; the content security policy refuses the same in what they are built from."""
    forbidden = ("dangerouslySetInnerHTML", "innerHTML", "eval(", "new Function", "<style", "document.write")
    sources = [path for path in (WEB / "src").rglob("*.ts*") if path.name != TYPES.name]
    assert sources
    matches = {path.name: word for path in sources for word in forbidden if word in path.read_text(encoding="utf-8")}
    assert not matches


def test_file_names_of_the_build_stay_the_same() -> None:
    """A change of one page changes the file of that page, and no other name."""
    names = [path.name for path in BUILD.glob("assets/*")]
    assert "main.js" in names
    hashed = re.compile(r"-(?=\S*[A-Z0-9])[\w-]{8}\.(js|css)$")
    assert [name for name in names if hashed.search(name)] == []


def test_forms_know_every_widget_of_the_schemas() -> None:
    """A form's look comes from `widget` and `main` of a schema, never from a description or the name of a field."""
    text = (WEB / "src" / "components" / "schema.ts").read_text(encoding="utf-8")
    (row,) = re.findall(r"export const WIDGETS = \[(.*)\]", text)
    schemas = [model.model_json_schema() for model in SCHEMAS.values()]
    widgets = {value for key, value in iterate_values(schemas) if key == "widget"}
    assert widgets == set(re.findall(r'"(\w+)"', row))
    patterns = re.compile(r"/\S+/i?\.test\((name|[\w!.\[\]]*description)")
    forms = [*(WEB / "src").rglob("*.tsx"), *(WEB / "src").rglob("*.ts")]
    assert [path.name for path in forms if patterns.search(path.read_text(encoding="utf-8"))] == []


def iterate_values(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield each key of a schema with its value, nested ones too."""
    if isinstance(schema, dict):
        yield from schema.items()
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from iterate_values(part)


def test_every_page_has_a_picture() -> None:
    patterns = re.findall(r'path: "([^"]+)"', (WEB / "src" / "routes.tsx").read_text(encoding="utf-8"))
    things = {
        "artifact": "run/node/port",
        "adapter": "tenant/role/v1",
        "evaluation": "run/node",
        "night": "tenant/1",
        "canvas": "one/edit",
    }
    paths = {name: path.partition("?")[0].format_map(defaultdict(lambda: "one", things)) or "/"
             for name, path in PAGES.items()}  # fmt: skip
    for pattern in patterns:
        parts = re.compile(re.sub(r":\w+", "[^/]+", pattern))
        assert any(parts.fullmatch(path) for path in paths.values()), pattern
    assert [name for name in paths if not (FOLDER / f"dashboard-{name}.png").is_file()] == []


@pytest.fixture(scope="module")
def node_programs() -> Path:
    """The programs of the dashboard's packages, as `npm ci` installs them from the lockfile."""
    folder = WEB / "node_modules" / ".bin"
    if shutil.which("node") is None or not folder.is_dir():
        pytest.skip("node and web/node_modules are not here: `cd web && npm ci`")
    return folder


def test_the_packages_are_those_of_the_lockfile(node_programs: Path) -> None:
    locked = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    package = json.loads((WEB / "package.json").read_text(encoding="utf-8"))
    for name, version in (package["dependencies"] | package["devDependencies"]).items():
        installed = json.loads((WEB / "node_modules" / name / "package.json").read_text(encoding="utf-8"))
        assert installed["version"] == locked[f"node_modules/{name}"]["version"] == version, name


def test_the_build_is_that_of_its_sources(node_programs: Path, tmp_path: Path) -> None:
    argv = [str(node_programs / "vite"), "build", "--outDir", str(tmp_path / "build"), "--emptyOutDir"]
    subprocess.run(argv, cwd=WEB, check=True, capture_output=True)
    built, committed = files_below(tmp_path / "build"), files_below(BUILD)
    assert sorted(built) == sorted(committed)
    assert not [name for name in built if built[name] != committed[name]]


def test_the_pages_fit_the_types_of_the_api(node_programs: Path, tmp_path: Path) -> None:
    """The types are generated, and not committed."""
    document = tmp_path / "openapi.json"
    subprocess.run([sys.executable, "-m", "tools.docs.openapi", str(document)], cwd=REPOSITORY, check=True)
    argv = [str(node_programs / "openapi-typescript"), str(document), "-o", str(TYPES)]
    subprocess.run([*argv, "--root-types", "--root-types-no-schema-prefix"], cwd=WEB, check=True, capture_output=True)
    checked = subprocess.run([node_programs / "tsc", "--noEmit"], check=False, cwd=WEB, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
