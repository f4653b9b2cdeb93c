"""The switch of a file to a write-ahead log, while others open it."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Timer

import pytest

from trainyard.stores.write_ahead import use_write_ahead_log


def test_a_locked_file_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as holder:
        holder.execute("create table t (x)")
        holder.execute("begin exclusive")
        timer = Timer(0.3, lambda: holder.execute("commit"))
        timer.start()
        with closing(sqlite3.connect(path, timeout=0)) as database:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                use_write_ahead_log(database, 0.0)
            use_write_ahead_log(database, 10.0)
            assert database.execute("pragma journal_mode").fetchone()[0] == "wal"
        timer.join()


def test_many_switch_it_at_once(tmp_path: Path) -> None:
    def switch(_: int) -> str:
        with closing(sqlite3.connect(tmp_path / "file", timeout=10)) as database:
            use_write_ahead_log(database, 10.0)
            return str(database.execute("pragma journal_mode").fetchone()[0])

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(switch, range(32))) == {"wal"}
