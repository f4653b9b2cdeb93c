"""Documents as they come: unreadable ones are data too."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.data.limited.service import parse_limited
from trainyard.night.streams import Content, DocumentReader, StreamDocument, find_documents, matches
from trainyard.spec.night import STREAMS, StreamSpec
from trainyard.stores.files import RealFiles

BOMB = "a: &a [x, x]\n" + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(9))


@pytest.mark.parametrize(
    ("name", "glob", "expected"),
    [
        ("meetings/a.md", "meetings/**/*.md", True),
        ("meetings/2027/01/a.md", "meetings/**/*.md", True),
        ("meetings.md", "meetings/**/*.md", False),
        ("x/a.yaml", "*.yaml", False),
        ("a.yaml", "**", True),
    ],
)
def test_patterns(name: str, glob: str, expected: bool) -> None:
    assert matches(name, glob) is expected


def find_document(root: Path, name: str) -> StreamDocument:
    documents = find_documents((StreamSpec(name="all", globs=("**",)),), root, RealFiles())
    return next(document for document in documents if document.name == name)


def read(root: Path, name: str, most: int = 1_000_000) -> Content:
    return DocumentReader("v1", root, RealFiles(), most, parse_limited).read(find_document(root, name))


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.md", b"", "empty"),
        ("a.md", b"  \n", "empty"),
        ("a.md", b"caf\xe9", "not UTF-8: byte 0xe9 at 3"),
        ("a.md", b"a\x00b", "NUL"),
        ("a.yaml", BOMB.encode(), "alias"),
        ("a.yaml", b"!!python/object/apply:os.system ['true']", "tag"),
        ("a.json", b'{"a": 1,}', "JSON"),
        ("a.md", b"x" * 2_000, "2,000 bytes; at most 1,000"),
    ],
)
def test_what_cannot_be_read_says_why_and_has_a_key(tmp_path: Path, name: str, data: bytes, why: str) -> None:
    (tmp_path / name).write_bytes(data)
    content = read(tmp_path, name, 1_000)
    assert why.lower() in content.unreadable.lower()
    assert len(content.key.content_sha256) == 64
    assert not content.text


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("person Eve")
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "a.md").symlink_to(tmp_path / "secret.md")
    assert "link" in read(tmp_path / "documents", "a.md").unreadable


def test_an_empty_or_missing_folder_has_no_documents(tmp_path: Path) -> None:
    assert find_documents(STREAMS, tmp_path, RealFiles()) == []
    assert find_documents(STREAMS, tmp_path / "nowhere", RealFiles()) == []


def test_a_hundred_megabytes_are_not_read(tmp_path: Path) -> None:
    class Counting(RealFiles):
        def read(self, path: Path) -> bytes:
            raise AssertionError(f"{path.name} was read")

    with (tmp_path / "big.md").open("wb") as stream:
        stream.truncate(100 << 20)
    content = DocumentReader("v1", tmp_path, Counting(), 1_000_000, parse_limited).read(
        find_document(tmp_path, "big.md")
    )
    assert content.unreadable == "it has 104,857,600 bytes; at most 1,000,000 are read"


def test_a_document_that_may_not_be_read_is_quarantined(tmp_path: Path) -> None:
    """As anybody but root sees a file without permission."""

    class Denied(RealFiles):
        def read(self, path: Path) -> bytes:
            raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "a.md").write_text("person Eve")
    content = DocumentReader("v1", tmp_path, Denied(), 1_000, parse_limited).read(find_document(tmp_path, "a.md"))
    assert content.unreadable == "it cannot be read: Permission denied"
    assert not content.text
