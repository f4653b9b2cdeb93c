"""The wheel in an environment outside of the checkout, with a server, a worker and a model server of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import REPOSITORY
from tests.flows.real_stack import wait_until
from trainyard.app.run_records import RunResult, read_result
from trainyard.app.services import prefect_environment, running
from trainyard.settings import Settings
from trainyard.stores.auth_string import auth_header, read_auth

RUN_ID = re.compile(r"UUID: ([0-9a-f-]{36})")
ANSWER_S = 60.0
PATIENCE_S = 600.0
"""Everything takes a fifth of this on an idle machine."""
ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
WHEEL_COMMAND = ["-m", "hatchling", "build", "-t", "wheel", "-d"]


def install(folder: Path) -> Path:
    """Build the wheel and install it with pip into an environment without our checkout; returns its `bin`.

    The environment reads the dependencies where the tests have theirs: they are not downloaded again.
    """
    subprocess.run([sys.executable, *WHEEL_COMMAND, str(folder / "wheel")], cwd=REPOSITORY, check=True)
    (wheel,) = (folder / "wheel").iterdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    python = folder / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    dependencies = folder / "env" / "lib" / version / "site-packages" / "dependencies.pth"
    dependencies.write_text(sysconfig.get_paths()["purelib"])
    return python.parent


class Installed:
    """The commands of the installed package on a home of their own."""

    def __init__(self, folder: Path, model: Path, **variables: str) -> None:
        self.bin = install(folder)
        self.work = folder / "work"
        self.work.mkdir()
        self.settings = Settings(home=folder / "home", prefect_port=0, default_base_model=str(model))
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "TRAINYARD_", "PYTHONPATH"))}
        self.environment = {
            **inherited,
            **variables,
            "OMP_NUM_THREADS": "1",
            "TRAINYARD_HOME": str(self.settings.home),
            "TRAINYARD_PREFECT_PORT": "0",
            "TRAINYARD_DEFAULT_BASE_MODEL": str(model),
            "TRAINYARD_DATA_ROOTS": json.dumps([str(self.work)]),
            "TRAINYARD_THREADS": "1",
        }

    def command(self, *arguments: str) -> str:
        """Output of a command in `bin`, in a folder that is not the checkout."""
        argv = (
            [str(self.bin / "python"), "-m", *arguments]
            if arguments[0] == "prefect"
            else [str(self.bin / arguments[0])]
        )
        argv += arguments[1:] if arguments[0] != "prefect" else ()
        done = subprocess.run(
            argv, cwd=self.work, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def write_rows(self, name: str, rows: list[dict[str, Any]]) -> str:
        (self.work / name).write_text("\n".join(json.dumps(row) for row in rows))
        return str(self.work / name)

    @property
    def api(self) -> str:
        server = running(self.settings, "server")
        assert server is not None
        return server.url

    def start(self, deployment: str, **parameters: Any) -> str:
        """`prefect deployment run`, as a user types it; returns the id of the run."""
        options = [word for key, value in parameters.items() for word in ("-p", f"{key}={json.dumps(value)}")]
        match = RUN_ID.search(self.command("prefect", "deployment", "run", deployment, *options))
        assert match
        return match[1]

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """An answer of the server's API; 503 means that it is busy, and to ask again."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            headers = auth_header(read_auth(self.settings))
            answer = httpx.request(method, f"{self.api}/{path}", json=body, headers=headers, timeout=ANSWER_S)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                answer.raise_for_status()
                return answer.json() if answer.content else None
            time.sleep(1)

    def schedule(self, deployment: str, **parameters: Any) -> str:
        """Add a schedule that is due now and have the server's scheduler look at it; returns the id of its run."""
        deployment_id = self.request("GET", f"deployments/name/{deployment}")["id"]
        due = datetime.now(UTC)
        schedule = {"interval": 86_400, "anchor_date": due.isoformat(), "timezone": "UTC"}
        rows = [{"active": True, "slug": "soon", "schedule": schedule, "parameters": parameters}]
        self.request("POST", f"deployments/{deployment_id}/schedules", rows)
        window = {"start_time": due.isoformat(), "end_time": (due + timedelta(hours=1)).isoformat(), "min_runs": 1}
        self.request("POST", f"deployments/{deployment_id}/schedule", window)
        first = {"deployments": {"id": {"any_": [deployment_id]}}, "sort": "EXPECTED_START_TIME_ASC", "limit": 1}
        (run,) = self.request("POST", "flow_runs/filter", first)
        assert run["auto_scheduled"]
        return str(run["id"])

    def finish(self, run_id: str) -> RunResult | None:
        """Wait until a run is completed; returns its result, where it was a chain."""

        def read_state() -> dict[str, Any]:
            run_state: dict[str, Any] = self.request("GET", f"flow_runs/{run_id}")["state"]
            return run_state

        wait_until(lambda: read_state()["type"] in ENDED, PATIENCE_S, f"the run {run_id}")
        assert read_state()["type"] == "COMPLETED", read_state()["message"]
        return read_result(self.settings.runs / run_id)


@contextmanager
def open_installed_stack(folder: Path, model: Path, **variables: str) -> Iterator[Installed]:
    """The installed package with everything up that `trainyard up` starts; nothing of it is left at the end."""
    installed = Installed(folder, model, **variables)
    try:
        installed.command("trainyard", "up")
        installed.environment |= prefect_environment(installed.settings, installed.api)  # what `trainyard env` exports
        yield installed
    finally:
        installed.command("trainyard", "down")
