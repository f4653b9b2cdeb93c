"""Folders of strangers whose files are named as modules: commands that are called there import none of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import trainyard

pytestmark = pytest.mark.integration

PACKAGE = Path(trainyard.__file__).parent
PROGRAM = Path(sys.executable).parent / "trainyard"
NAMES = ("types", "enum", "json", "orjson", "pyarrow", "trainyard")
TRAP = 'import pathlib\npathlib.Path(__file__).with_name("imported").touch()\n'
CHAIN = """\
name: shadowed
nodes:
  - {type: data_source, config: {path: chats.jsonl}}
  - {type: trainer}
"""


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of someone else's, in which a user calls commands."""
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRAINYARD_DEFAULT_BASE_MODEL", str(tiny_model))
    folder = tmp_path / "repository"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(TRAP)
    (folder / "chats.jsonl").write_text('{"prompt": "What is twice 2?", "completion": "Twice 2 is 4."}\n' * 3)
    (folder / "guide.md").write_text("# Battery\n\nThe battery lasts 40 minutes and weighs 3 kg.\n")
    (folder / "chain.yaml").write_text(CHAIN)
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ("data", "preview", "chats.jsonl"),
        ("data", "preview", ".", "--generate"),
        ("check", "chain.yaml"),
        ("plan", "chain.yaml"),
    ],
    ids=" ".join,
)
def test_a_command_imports_nothing_of_its_folder(folder: Path, arguments: tuple[str, ...]) -> None:
    done = subprocess.run([PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert not (folder / "imported").exists()
    assert "E-BUG" not in done.stderr
    assert "E-DATA-UNREADABLE" not in done.stderr


def test_every_program_of_ours_is_started_without_the_folder_on_its_path() -> None:
    """`python -m` puts the working folder before the library on `sys.path`; `-P` keeps it off."""
    started = [
        (path.relative_to(PACKAGE), line)
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r'sys\.executable\}?"?, "?-(?!P|I)', line)
    ]
    assert started == []
