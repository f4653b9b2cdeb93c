"""Repositories whose parts lie elsewhere: nothing outside of the data roots becomes a row."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.data.reading import read_all, settings_for
from tests.unit.data.test_repositories import commit, git
from trainyard.data.readers.repositories import open_repository
from trainyard.data.readers.streams import Limits
from trainyard.errors import InvalidInput, Refused

SECRET = "the secret of somebody else"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository inside and one outside of the roots, which every test copies."""
    folder = tmp_path_factory.mktemp("originals")
    for name, text in (("inside", "An open text."), ("outside", SECRET)):
        (folder / name).mkdir()
        git(folder / name, "init", "-q")
        commit(folder / name, f"Add {name}", note_md=f"# Note\n\n{text}\n")
    return folder


@pytest.fixture
def repositories(originals: Path, tmp_path: Path) -> tuple[Path, Path]:
    """(repository inside the root, secret repository outside of it)."""
    inside, outside = tmp_path / "root" / "inside", tmp_path / "outside"
    shutil.copytree(originals / "inside", inside)
    shutil.copytree(originals / "outside", outside)
    return inside, outside


def read_head(repository: Path) -> str:
    return git(repository, "rev-parse", "HEAD")


def point_head(inside: Path, outside: Path) -> None:
    """Let the branch inside name the commit outside."""
    (inside / ".git/refs/heads/main").write_text(read_head(outside) + "\n")


def link_objects(inside: Path, outside: Path) -> None:
    shutil.rmtree(inside / ".git/objects")
    (inside / ".git/objects").symlink_to(outside / ".git/objects")


def link_fan_out(inside: Path, outside: Path) -> None:
    for folder in (outside / ".git/objects").iterdir():
        if len(folder.name) == 2 and not (inside / ".git/objects" / folder.name).exists():
            (inside / ".git/objects" / folder.name).symlink_to(folder)


def link_loose_objects(inside: Path, outside: Path) -> None:
    for file in (outside / ".git/objects").glob("??/*"):
        object_folder = inside / ".git/objects" / file.parent.name
        object_folder.mkdir(exist_ok=True)
        (object_folder / file.name).symlink_to(file)


def link_packs(inside: Path, outside: Path) -> None:
    git(outside, "gc", "-q")
    for file in (outside / ".git/objects/pack").iterdir():
        (inside / ".git/objects/pack" / file.name).symlink_to(file)


def link_pack_folder(inside: Path, outside: Path) -> None:
    git(outside, "gc", "-q")
    (inside / ".git/objects/pack").rmdir()
    (inside / ".git/objects/pack").symlink_to(outside / ".git/objects/pack")


def link_chain(inside: Path, outside: Path) -> None:
    """A link to a folder inside of the roots, which is itself a link out."""
    other = inside.parent / "other"
    other.mkdir()
    shutil.rmtree(inside / ".git/objects")
    (inside / ".git/objects").symlink_to(other / "objects")
    (other / "objects").symlink_to(outside / ".git/objects")


def link_below_link(inside: Path, outside: Path) -> None:
    """A link to a folder inside of the roots, whose fan-out folders lead out."""
    other = inside.parent / "store"
    shutil.move(inside / ".git/objects", other)
    (inside / ".git/objects").symlink_to(other)
    for folder in (outside / ".git/objects").iterdir():
        if len(folder.name) == 2 and not (other / folder.name).exists():
            (other / folder.name).symlink_to(folder)


def link_dot_git(inside: Path, outside: Path) -> None:
    shutil.rmtree(inside / ".git")
    (inside / ".git").symlink_to(outside / ".git")


def write_gitdir(inside: Path, outside: Path) -> None:
    shutil.rmtree(inside / ".git")
    (inside / ".git").write_text(f"gitdir: {outside}/.git\n")


def write_commondir(inside: Path, outside: Path) -> None:
    (inside / ".git/commondir").write_text(f"{outside}/.git\n")


def write_alternates(inside: Path, outside: Path) -> None:
    (inside / ".git/objects/info").mkdir(exist_ok=True)
    (inside / ".git/objects/info/alternates").write_text(f"{outside}/.git/objects\n")


def quote_alternates(inside: Path, outside: Path) -> None:
    """Git takes a path in quotes as C does; who does not would look for a folder below the repository."""
    (inside / ".git/objects/info").mkdir(exist_ok=True)
    (inside / ".git/objects/info/alternates").write_text(f'"{outside}/.git/objects"\n')


def split_alternates(inside: Path, outside: Path) -> None:
    """Only a line feed ends a path: one with another separator is a link out."""
    (inside / "x\x0by").symlink_to(outside / ".git/objects")
    (inside / ".git/objects/info").mkdir(exist_ok=True)
    (inside / ".git/objects/info/alternates").write_text(f"{inside}/x\x0by\n")


def borrow_from_alternate(inside: Path, outside: Path) -> None:
    """An alternate inside of the roots that borrows from outside."""
    other = inside.parent / "other"
    git(inside.parent, "init", "-q", "other")
    (other / ".git/objects/info").mkdir(exist_ok=True)
    (other / ".git/objects/info/alternates").write_text(f"{outside}/.git/objects\n")
    (inside / ".git/objects/info").mkdir(exist_ok=True)
    (inside / ".git/objects/info/alternates").write_text(f"{other}/.git/objects\n")


def add_worktree(inside: Path, outside: Path) -> None:
    shutil.rmtree(inside)
    git(outside, "worktree", "add", "-q", str(inside), "-b", "side")


def newline_in_gitdir(inside: Path, outside: Path) -> None:
    """A folder whose name has a line end, next to one with the name before it."""
    shutil.move(inside / ".git", inside.parent / "git\nx")
    shutil.rmtree(inside.parent / "git\nx/objects")
    (inside.parent / "git\nx/objects").symlink_to(outside / ".git/objects")
    (inside.parent / "git").mkdir()
    (inside / ".git").write_text(f"gitdir: {inside.parent}/git\nx\n")


ATTACKS: list[Callable[[Path, Path], None]] = [
    link_objects, link_fan_out, link_loose_objects, link_packs, link_pack_folder, link_chain, link_below_link,
    link_dot_git, write_gitdir, write_commondir, write_alternates, quote_alternates, split_alternates,
    borrow_from_alternate, add_worktree, newline_in_gitdir,
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.__name__ for attack in ATTACKS])
def test_nothing_outside_of_the_roots_is_read(
    attack: Callable[[Path, Path], None], repositories: tuple[Path, Path]
) -> None:
    inside, outside = repositories
    attack(inside, outside)
    if (inside / ".git/refs/heads/main").is_file():
        point_head(inside, outside)
    with pytest.raises(InvalidInput, match=r"R-PATH-ROOT|E-REPOSITORY"):
        open_repository(inside, (inside.parent,), Limits())


def test_the_data_source_refuses_it_too(repositories: tuple[Path, Path], tmp_path: Path) -> None:
    inside, outside = repositories
    link_objects(inside, outside)
    point_head(inside, outside)
    with pytest.raises(Refused, match="R-PATH-ROOT") as error:
        read_all(tmp_path / "out", settings_for(inside.parent), repository=str(inside))
    assert SECRET not in str(error.value)


def test_links_that_stay_inside_are_followed(repositories: tuple[Path, Path], tmp_path: Path) -> None:
    inside, _ = repositories
    shutil.move(inside / ".git/objects", inside.parent / "store")
    (inside / ".git/objects").symlink_to(inside.parent / "store")
    (inside / ".git/hooks").mkdir(exist_ok=True)
    (inside / ".git/hooks/pre-commit").unlink(missing_ok=True)
    (inside / ".git/hooks/pre-commit").symlink_to("/usr/bin/true")
    (result,) = read_all(tmp_path / "out", settings_for(inside.parent), repository=str(inside)).values()
    assert [row.title for row in result.rows] == ["Add inside", "Note"]


@pytest.mark.faults
def test_trees_that_name_each_other_end_in_a_code(repositories: tuple[Path, Path]) -> None:
    """Ten levels of ten names are 10**10 files in a few kilobytes."""
    inside, _ = repositories
    blob = git(inside, "rev-parse", "HEAD:note.md")
    lines = "".join(f"100644 blob {blob}\tn{number}.md\n" for number in range(10))
    for _ in range(10):
        mktree = subprocess.run(
            ["git", "-C", inside, "mktree"], input=lines, capture_output=True, text=True, check=True
        )
        tree = mktree.stdout.strip()
        lines = "".join(f"040000 tree {tree}\tt{number}\n" for number in range(10))
    bomb = git(inside, "commit-tree", tree, "-m", "Bomb")
    (inside / ".git/refs/heads/main").write_text(bomb + "\n")
    repository = open_repository(inside, (inside.parent,), Limits())
    with pytest.raises(InvalidInput, match=r"E-REPOSITORY.* its list of ls-tree is over"):
        repository.run("ls-tree", "-r", "-z", "--full-tree", "HEAD")
