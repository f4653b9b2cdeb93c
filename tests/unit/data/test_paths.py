"""No path leaves its root, however it is spelled."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.data.reading import settings_for
from trainyard.data.paths import data_roots, open_inside, resolve_inside
from trainyard.errors import InvalidInput, NotFound, Refused


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a file, beside it a secret, and links of both kinds."""
    folder = tmp_path / "root"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "data.jsonl").write_text("inside")
    (tmp_path / "secret.jsonl").write_text("outside")
    (tmp_path / "rooted").mkdir()
    (tmp_path / "rooted" / "data.jsonl").write_text("outside")
    (folder / "inner").symlink_to(folder / "sub")
    (folder / "outer").symlink_to(tmp_path)
    (folder / "file").symlink_to(tmp_path / "secret.jsonl")
    return folder


@pytest.mark.parametrize("path", ["sub/data.jsonl", "./sub/../sub/data.jsonl", "inner/data.jsonl", "sub//data.jsonl"])
def test_paths_inside_resolve_to_the_real_file(root: Path, path: str) -> None:
    assert resolve_inside(path, [root]) == root / "sub" / "data.jsonl"
    assert resolve_inside(root / path, [root]) == root / "sub" / "data.jsonl"


OUTSIDE = [
    "../secret.jsonl", "sub/../../secret.jsonl", "outer/secret.jsonl", "file", "/etc/passwd", "../rooted/data.jsonl",
    "/proc/self/cwd/../secret.jsonl", "../does-not-exist", "/", "..",
]  # fmt: skip
ODD = [
    "%2e%2e/secret.jsonl", "..%2fsecret.jsonl", "sub%5cdata.jsonl", "sub/data.jsonl\0", "a%00b", "//server/share",
    "\\\\server\\share", "..\\secret.jsonl", "C:\\data", "c:/data", "file:///etc/passwd", "FILE:/etc/passwd",
    "http://x/y", "//proc/self/cwd",
]  # fmt: skip


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_that_leave_are_refused_whether_they_exist_or_not(root: Path, path: str) -> None:
    with pytest.raises(Refused, match=r"R-PATH-ROOT config\.path: .* leads to .*, outside of the data roots"):
        resolve_inside(path, [root])


@pytest.mark.parametrize("path", ["file", "outer/secret.jsonl", "outer/does-not-exist"])
def test_a_link_that_leaves_one_of_several_roots_is_refused_and_not_missing(
    root: Path, tmp_path: Path, path: str
) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(Refused, match=r"R-PATH-ROOT config\.path: .* leads to .*, outside of the data roots"):
        resolve_inside(path, [root, tmp_path / "other"])
    with pytest.raises(NotFound, match=r"There is no file or folder '\.\./absent'"):
        resolve_inside("../absent", [root / "sub", tmp_path / "other", root])


@pytest.mark.parametrize("path", ODD)
def test_odd_spellings_are_refused(root: Path, path: str) -> None:
    with pytest.raises(Refused, match=r"R-PATH-ROOT config\.path: .* is not a plain path"):
        resolve_inside(path, [root])


def test_a_missing_file_inside_is_not_found(root: Path) -> None:
    with pytest.raises(NotFound, match=re.escape(f"E-DATA-NOT-FOUND: There is no file or folder 'no.jsonl'. Why: It "
                                                 f"was looked for in {root}.")):  # fmt: skip
        resolve_inside("no.jsonl", [root])


def test_a_relative_path_is_looked_up_in_every_root(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "only-here.md").write_text("x")
    assert resolve_inside("only-here.md", [root, other]) == other / "only-here.md"
    assert resolve_inside("../other/only-here.md", [root, other]) == other / "only-here.md"


pieces = st.sampled_from(
    ["..", ".", "sub", "outer", "inner", "file", "data.jsonl", "secret.jsonl", "%2e", "\\", "", "/"]
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=300, deadline=None
)
@given(st.lists(pieces, min_size=1, max_size=8).map("/".join))
def test_whatever_resolves_is_inside(root: Path, path: str) -> None:
    try:
        resolved_path = resolve_inside(path, [root])
    except (Refused, NotFound):
        return
    assert Path(os.path.realpath(resolved_path)).is_relative_to(root)


def test_roots_are_the_working_folder_the_tenant_and_the_settings(tmp_path: Path, home: Path) -> None:
    settings_here = settings_for(tmp_path / "data")
    assert data_roots(settings_here) == (Path.cwd(), home / "tenants" / "default", tmp_path / "data")
    assert data_roots(settings_here, "acme") == (
        home / "tenants" / "acme",
        tmp_path / "data",
    )  # not the operator's folder


def test_opening_reads_the_file(root: Path) -> None:
    with open_inside(resolve_inside("inner/data.jsonl", [root]), [root]) as stream:
        assert stream.read() == b"inside"


def test_a_file_swapped_for_a_link_is_not_opened(root: Path, tmp_path: Path) -> None:
    resolved_path = resolve_inside("sub/data.jsonl", [root])
    resolved_path.unlink()
    resolved_path.symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(Refused, match=r"R-PATH-ROOT .* is a link to .*secret\.jsonl, outside of the data roots"):
        open_inside(resolved_path, [root])


def test_a_file_that_vanished_is_an_error(root: Path) -> None:
    with pytest.raises(InvalidInput, match=r"E-DATA-NOT-FOUND: gone\.jsonl cannot be opened: No such file"):
        open_inside(root / "gone.jsonl", [root])


def test_a_folder_swapped_for_a_link_is_not_followed(root: Path, tmp_path: Path) -> None:
    resolved_path = resolve_inside("sub/data.jsonl", [root])
    (root / "sub").rename(root / "moved")
    (root / "sub").symlink_to(tmp_path / "rooted")
    with pytest.raises(Refused, match="was replaced by a link that leaves the data roots"):
        open_inside(resolved_path, [root])


def test_pipes_are_not_opened(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(InvalidInput, match=r"E-DATA-NOT-FOUND: pipe is not a regular file\. Why: Pipes and devices"):
        open_inside(root / "pipe", [root])


@pytest.fixture
def place_of_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder that contains the home, with files of two tenants and the home's own."""
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "work" / ".trainyard"))
    home = tmp_path / "work" / ".trainyard"
    for name in ("tenants/ours/own.jsonl", "tenants/theirs/secret.jsonl", "prefect-auth-string", "runs/r/events.jsonl"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("text")
    (tmp_path / "work" / "shared.jsonl").write_text("text")
    (tmp_path / "work" / "link.jsonl").symlink_to(home / "tenants" / "theirs" / "secret.jsonl")
    return home


CLOSED = [".trainyard/tenants/theirs/secret.jsonl", ".trainyard/prefect-auth-string", ".trainyard/runs", ".trainyard",
          ".trainyard/tenants", ".trainyard/tenants/ours/../theirs/secret.jsonl", "link.jsonl"]  # fmt: skip


@pytest.mark.parametrize("path", CLOSED)
def test_the_home_is_closed_where_the_working_folder_contains_it(place_of_home: Path, path: str) -> None:
    work, tenant_folder = place_of_home.parent, place_of_home / "tenants" / "ours"
    for roots in ((work, tenant_folder), (Path("/"), tenant_folder)):
        with pytest.raises(Refused, match=r"R-PATH-ROOT .* in TRAINYARD_HOME, of which a chain"):
            resolve_inside(work / path, roots)
    with pytest.raises(Refused, match="R-PATH-ROOT"):
        open_inside(work / path, (work, tenant_folder))


def test_a_root_in_the_home_opens_what_is_in_it(place_of_home: Path) -> None:
    work, tenant_folder = place_of_home.parent, place_of_home / "tenants" / "ours"
    assert resolve_inside("own.jsonl", (work, tenant_folder)) == tenant_folder / "own.jsonl"
    assert resolve_inside(".trainyard/tenants/ours/own.jsonl", (work, tenant_folder)) == tenant_folder / "own.jsonl"
    assert resolve_inside("shared.jsonl", (work, tenant_folder)) == work / "shared.jsonl"
    assert resolve_inside(place_of_home / "runs", (work, tenant_folder, place_of_home)) == place_of_home / "runs"
    with open_inside(tenant_folder / "own.jsonl", (work, tenant_folder)) as stream:
        assert stream.read() == b"text"
