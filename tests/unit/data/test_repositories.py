"""Git repositories: commits and files as documents, read without starting anything that the repository names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.unit.data.reading import Result, read_all, settings_for
from trainyard.app.context import Context
from trainyard.app.nights import add_commits
from trainyard.data.readers.repositories import MAX_DIFF_BYTES, Repository, batch, commit_documents, patches
from trainyard.data.readers.streams import Limits
from trainyard.errors import InvalidInput, Refused
from trainyard.operations.nights import EngineeringInput, added_text


def git(folder: Path, *arguments: str) -> str:
    environment = {
        **os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@example.org",
    }  # fmt: skip
    command = ["git", "-c", "init.defaultBranch=main", "-C", str(folder), *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, message: str, **files: str | bytes) -> str:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    return folder


def read(folder: Path, *, limits: Limits | None = None, **config: object) -> Result:
    output = folder.parent / f"out{len(list(folder.parent.iterdir()))}"
    settings = settings_for(folder.parent)
    (result,) = read_all(output, settings, limits=limits, repository=str(folder), **config).values()
    return result


def test_commits_and_files_become_documents(project: Path) -> None:
    first = commit(project, "Add the parser", parser_py="def parse(text):\n    return text\n", README_md="# Parser\n")
    second = commit(
        project, "Strip the text\n\nSpaces broke it.", parser_py="def parse(text):\n    return text.strip()\n"
    )
    result = read(project)
    commits = [row for row in result.rows if row.kind == "commit"]
    assert [(row.source, row.title) for row in commits] == [
        (f"project@{second[:12]}", "Strip the text"), (f"project@{first[:12]}", "Add the parser"),
    ]  # fmt: skip
    assert commits[0].text.startswith("Strip the text\n\nSpaces broke it.\n\ndiff --git a/parser.py b/parser.py\n")
    assert "-    return text\n+    return text.strip()\n" in commits[0].text
    files = [row for row in result.rows if row.kind != "commit"]
    assert [(row.source, row.kind, row.title) for row in files] == [
        ("project/README.md", "markdown", "Parser"), ("project/parser.py", "code", "parser.py"),
    ]  # fmt: skip
    assert result.facts["commits"] == 2
    assert len({row.doc_id for row in result.rows}) == 4


def test_globs_choose_the_files_of_a_repository_and_of_its_commits(project: Path) -> None:
    commit(project, "Start", src__a_py="x = 1\n", docs__a_md="# One\n", LICENSE="Free.\n")
    commit(project, "Both", src__a_py="x = 2\n", docs__a_md="# Two\n")
    commit(project, "Code", src__a_py="x = 3\n", vendor_js="x\n" * MAX_DIFF_BYTES)
    result = read(project, include=["*.py", "LICENSE"], exclude=["vendor*"])
    commits = {row.title: row.text for row in result.rows if row.kind == "commit"}
    assert list(commits) == ["Code", "Both", "Start"]
    assert "docs/a.md" not in "".join(commits.values())
    assert "+x = 2\n" in commits["Both"]
    files = [row.source for row in result.rows if row.kind != "commit"]
    assert files == ["project/LICENSE", "project/src/a.py"]
    pages = read(project, exclude=["*.py", "*.js"])
    assert [row.title for row in pages.rows] == ["Both", "Start", "Two"]
    assert pages.report["skipped"] == {"(no extension)": 1, "no_wanted_file": 1}
    with pytest.raises(InvalidInput, match="The globs leave no file"):
        read(project, exclude=["*"])


@pytest.mark.parametrize("name", ['a "quoted".py', "café.py", "tab\there.py", "a b/a b.py"])
def test_globs_know_every_name_that_git_writes(name: str, project: Path) -> None:
    for text in ("x = 1\n", "x = 2\n"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
        (project / "other.md").write_text(text)
        git(project, "add", "-A")
        git(project, "commit", "-q", "-m", text.strip())
    texts = [row.text for row in read(project, include=[name.rpartition("/")[2]]).rows]
    assert len(texts) == 3
    assert not any("other.md" in text for text in texts)


def test_what_is_left_out_is_counted(project: Path) -> None:
    commit(project, "Start", a_py="x = 1\n", picture_png=b"\x89PNG" + bytes(100), empty_py="")
    commit(project, "Nothing")
    commit(project, "Vendor", vendor_js="x\n" * MAX_DIFF_BYTES)
    git(project, "checkout", "-q", "-b", "side", "HEAD~1")
    commit(project, "Side", b_py="y = 2\n")
    git(project, "checkout", "-q", "main")
    git(project, "merge", "-q", "--no-ff", "-m", "Merge", "side")
    (project / "link.py").symlink_to("/etc/passwd")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "Link")
    result = read(project)
    assert sorted(row.title for row in result.rows if row.kind == "commit") == ["Link", "Side", "Start"]
    assert result.report["skipped"] == {
        ".png": 1, ".py": 1, "empty_file": 1, "large_diff": 1, "merge": 1, "no_text_change": 1,
    }  # fmt: skip
    assert not any("root:" in row.text for row in result.rows)


def test_large_and_broken_files_go_to_quarantine(project: Path) -> None:
    commit(project, "Start", a_py="x = 1\n", b_py=b"caf\xe9 = 1\n", c_py="y" * 5000 + "\n")
    result = read(project, limits=Limits(document=1000), max_bad_fraction=0.9)
    assert {entry["source"]: entry["reason"] for entry in result.quarantine} == {
        "project/b.py:1": "not_utf8", "project/c.py:1": "too_large",
    }  # fmt: skip


def test_nothing_that_the_repository_names_is_started(project: Path, tmp_path: Path) -> None:
    commit(project, "Start", a_py="x = 1\n", _gitattributes="*.py diff=evil filter=evil\n")
    commit(project, "Next", a_py="x = 2\n")
    alarm = tmp_path / "alarm"
    script = tmp_path / "evil.sh"
    script.write_text(f"#!/bin/sh\necho started >> {alarm}\ncat\n")
    script.chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "core.sshCommand", "diff.external", "diff.evil.textconv",
                 "diff.evil.command", "filter.evil.smudge", "filter.evil.clean", "gpg.program", "pager.log",
                 "core.alternateRefsCommand"):  # fmt: skip
        git(project, "config", name, str(script))
    git(project, "config", "log.showSignature", "true")
    git(project, "config", "alias.rev-list", f"!{script}")
    hooks = project / ".git" / "hooks"
    for hook in ("post-checkout", "reference-transaction", "post-index-change"):
        (hooks / hook).write_text(script.read_text())
        (hooks / hook).chmod(0o755)
    assert len([row for row in read(project).rows if row.kind == "commit"]) == 2
    assert not alarm.exists()


def test_a_repository_that_borrows_from_outside_is_refused(tmp_path: Path) -> None:
    outside, roots = tmp_path / "outside", tmp_path / "roots"
    outside.mkdir()
    roots.mkdir()
    git(outside, "init", "-q")
    commit(outside, "Secret", a_py="x = 1\n")
    git(tmp_path, "clone", "-q", "--shared", str(outside), str(roots / "borrower"))
    (roots / "pointer").mkdir()
    (roots / "pointer" / ".git").write_text(f"gitdir: {outside / '.git'}\n")
    for name in ("borrower", "pointer"):
        with pytest.raises(Refused, match=r"R-PATH-ROOT config\.repository: .* keeps its objects in .*outside"):
            read_all(tmp_path / f"out-{name}", settings_for(roots), repository=str(roots / name))
    with pytest.raises(Refused, match=r"R-PATH-ROOT config\.repository"):
        read_all(tmp_path / "out", settings_for(roots), repository=str(outside))
    assert len(read_all(tmp_path / "both", settings_for(roots, outside), repository=str(roots / "borrower"))) == 1


def test_folders_that_are_no_repository_are_refused(project: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"E-REPOSITORY: project cannot be read as a git repository\. Why: fatal:"):
        read(project)
    commit(project, "Start", sub__a_py="x = 1\n")
    with pytest.raises(InvalidInput, match=r"Why: The folder itself is not a repository"):
        read_all(tmp_path / "out", settings_for(tmp_path), repository=str(project / "sub"))


def test_a_bare_repository_is_read(project: Path, tmp_path: Path) -> None:
    commit(project, "Start", a_py="x = 1\n")
    git(tmp_path, "clone", "-q", "--bare", str(project), str(tmp_path / "bare"))
    assert [row.kind for row in read(tmp_path / "bare").rows] == ["commit", "code"]


def test_max_rows_stops_the_reading(project: Path) -> None:
    for number in range(5):
        commit(project, f"Change {number}", a_py=f"x = {number}\n")
    assert [row.title for row in read(project, max_rows=2).rows] == ["Change 4", "Change 3"]


def test_patches_are_cut_only_at_ids_that_begin_a_line(tmp_path: Path) -> None:
    ids = ["a" * 40, "b" * 40, "c" * 40, "d" * 40]
    line = b"+" + b"x" * (MAX_DIFF_BYTES - 1)
    output = tmp_path / "output"
    output.write_bytes(f"{ids[0]}\n+{ids[2]}\n {ids[2]}\n{ids[1]}\n".encode() + line + f"{ids[2]}\n{ids[3]}\n".encode())
    with output.open("rb") as stream:
        first, second, third, fourth = patches(stream, ids)
    assert first == f"+{ids[2]}\n {ids[2]}\n".encode()
    assert (second, third, fourth) == (None, b"", b"")


def test_missing_objects_are_none(project: Path) -> None:
    commit(project, "Start", a_py="x = 1\n")
    repository = Repository(project)
    assert list(batch(repository, ["0" * 40])) == [None]
    assert [document.title for document in commit_documents(repository)] == ["Start"]


def test_every_commit_is_a_tuple_or_counted_by_reason(project: Path) -> None:
    for number in range(3):
        commit(project, f"Change {number}", a_py=f"number = {number}\n")
    commit(project, "Nothing", **{})
    commit(project, "A picture", picture_png=b"\x89PNG\0\1\2")
    commit(project, "Data", data_txt="x" * 250_000 + "\n")
    git(project, "checkout", "-q", "-b", "side", "HEAD~1")
    commit(project, "Aside", b_py="aside = 1\n")
    git(project, "checkout", "-q", "main")
    git(project, "merge", "-q", "--no-ff", "-m", "Merge side", "side")
    settings = settings_for(project.parent, home=project.parent / "home")
    engineering_input = EngineeringInput(repo=project)
    added = add_commits(engineering_input, Context(settings))
    assert (added.added, added.there, added.commits) == (4, 0, 8)
    assert added.skipped == {"large_diff": 1, "merge": 1, "no_text_change": 2}
    again = add_commits(engineering_input, Context(settings))
    assert (again.added, again.there, again.skipped) == (0, 4, added.skipped)
    text = added_text(added)
    assert "engineering: 4 added, 0 there already" in text
    assert "4 of 8 commits skipped: 1 large diff, 1 merge, 2 no text change" in text
