"""A real Prefect server and worker in a home of their own, driven by the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from trainyard.api.services import running
from trainyard.settings import Settings

FIRST_PORT = 4600


class Stack:
    """A home of its own, and the command line on it."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self.settings = Settings(home=folder / "home", prefect_port=FIRST_PORT, default_base_model=str(model))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "TRAINYARD_"))}
        self.environment = {
            **kept,
            "TRAINYARD_HOME": str(self.settings.home),
            "TRAINYARD_PREFECT_PORT": str(FIRST_PORT),
            "TRAINYARD_DEFAULT_BASE_MODEL": str(model),
            "TRAINYARD_THREADS": "1",
        }

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "trainyard.cli", *arguments],
            cwd=self.work, env=self.environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    def json(self, *arguments: str) -> dict[str, Any]:
        done = self.command(*arguments, "--json")
        assert done.returncode in (0, 1), done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def state_of(self, run_id: str) -> dict[str, Any]:
        server = running(self.settings, "server")
        assert server is not None
        found: dict[str, Any] = httpx.get(f"{server.url}/flow_runs/{run_id}", timeout=20).json()["state"]
        return found

    def last_progress(self, run_id: str) -> float:
        path = self.settings.runs / run_id / "events.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        events = [json.loads(line) for line in lines]
        return max([e["fraction"] for e in events if e["event"] == "progress" and e["node"] == "trainer"], default=0.0)
