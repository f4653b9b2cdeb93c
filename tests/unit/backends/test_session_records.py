"""What is read of a session with every call: kept while its file is the same, read again when it was replaced."""

from __future__ import annotations

from pathlib import Path

from trainyard.backends.sessions import records
from trainyard.backends.sessions.records import SOCKET_FILE, find_socket, read_unchanged, remove_socket
from trainyard.stores.whole import write_json_durably


def test_a_file_is_read_once_until_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    assert read_unchanged(str(path)) is None
    write_json_durably(path, {"tenant": "a"})
    before = records.read_version.cache_info().misses
    assert [read_unchanged(str(path)) for _ in range(3)] == [{"tenant": "a"}] * 3
    assert records.read_version.cache_info().misses == before + 1
    write_json_durably(path, {"tenant": "b"})
    assert read_unchanged(str(path)) == {"tenant": "b"}
    path.unlink()
    assert read_unchanged(str(path)) is None


def test_a_session_that_was_resumed_answers_at_its_new_socket(tmp_path: Path) -> None:
    for number in range(3):
        socket_folder = tmp_path / f"place-{number}"
        socket_folder.mkdir()
        write_json_durably(tmp_path / SOCKET_FILE, {"path": str(socket_folder / "calls"), "pid": number})
        assert find_socket(tmp_path) == str(socket_folder / "calls")
        remove_socket(tmp_path)
        assert find_socket(tmp_path) is None
