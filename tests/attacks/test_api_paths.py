"""Paths out of the roots and addresses of the inner network, in every text parameter of the API: none is reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.path_program import CANARY

pytestmark = pytest.mark.integration

SLOW = [pytest.mark.slow, pytest.mark.timeout(900)]
PARTS = [pytest.param(first, 1_000, marks=SLOW) for first in range(0, 5_000, 1_000)]


@pytest.mark.parametrize(("first", "count"), [(0, 100), *PARTS])
def test_no_path_leads_out(first: int, count: int, tmp_path: Path) -> None:
    outside, work = tmp_path / "outside", tmp_path / "work" / "data"
    for folder in (outside, work / "docs"):
        folder.mkdir(parents=True)
    (outside / "secret.jsonl").write_text(json.dumps({"prompt": CANARY, "completion": CANARY}) + "\n")
    (work / "link").symlink_to(outside)
    (work / "docs" / "a.md").write_text("# A\n\nA node reads.\n")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment = {
        **inherited, "TRAINYARD_HOME": str(tmp_path / "home"), "HOME": str(outside), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    argv = [sys.executable, "-m", "tools.path_program", str(tmp_path), str(first), str(count)]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=800, check=False, env=environment)
    printed = ended.stdout.splitlines()
    assert (ended.returncode, bool(printed)) == (0, True), f"ended with {ended.returncode}: {ended.stderr[-3000:]}"
    report: dict[str, Any] = json.loads(printed[-1])
    assert not report["escapes"] + report["leaks"] + report["connections"], json.dumps(report, indent=1)
    assert report["requests"] > 0.9 * count, report["statuses"]
    assert set(map(int, report["statuses"])) <= {200, 201, 400, 403, 404, 405, 409, 413, 422, 424, 429, 503}, report
    assert sum(report["statuses"].get(status, 0) for status in ("403", "404", "422")) > 0.6 * report["requests"], report
    assert CANARY not in ended.stderr, ended.stderr[-3000:]
    paths = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    named = [str(path.relative_to(tmp_path)) for path in paths if CANARY.encode() in path.read_bytes()]
    assert not named, "files of the home that contain it"
