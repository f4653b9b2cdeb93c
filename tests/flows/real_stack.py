"""A real Prefect server and worker in a home of their own, driven by the command line and by signals."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from trainyard.app.run_records import read_events, read_result
from trainyard.app.services import running
from trainyard.app.training_logs import find_training_logs
from trainyard.compute.child import PARENT_VARIABLE
from trainyard.settings import Settings
from trainyard.stores.auth_string import auth_header, read_auth

FIRST_PORT = 4600
NOTHING_LISTENS = "http://127.0.0.1:9"
STEPS, SAVE_STEPS, ACCUMULATION = 400, 50, 8
"""Long enough for a command to reach a training in the middle, which takes some 3 of its 40 s."""


def wait_until(condition: Callable[[], Any], seconds: float, description: str = "it", *, every_s: float = 0.1) -> float:
    """Wait for a condition and return how long it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, f"{description} took more than {seconds:.0f} s"
        time.sleep(every_s)
    return time.monotonic() - started


def kill_tree(pid: int) -> None:
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue


class Stack:
    """A home of its own, and the command line on it."""

    timeout_s = 600.0
    """Of one command."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir(exist_ok=True)  # of a stack that another test process has started
        self.settings = Settings(home=folder / "home", prefect_port=FIRST_PORT, default_base_model=str(model))
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "TRAINYARD_"))}
        self.environment = {
            **variables,
            "TRAINYARD_HOME": str(self.settings.home),
            "TRAINYARD_PREFECT_PORT": str(FIRST_PORT),
            "TRAINYARD_DEFAULT_BASE_MODEL": str(model),
            "TRAINYARD_THREADS": "1",
            # As on a machine whose way out is a proxy: whatever asks one for a loopback address fails.
            "HTTP_PROXY": NOTHING_LISTENS,
            "http_proxy": NOTHING_LISTENS,
            "ALL_PROXY": NOTHING_LISTENS.replace("http", "socks5"),
        }

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "trainyard", *arguments],
            cwd=self.work, env=self.environment, capture_output=True, text=True, timeout=self.timeout_s, check=False,
        )  # fmt: skip

    def json(self, *arguments: str) -> dict[str, Any]:
        done = self.command(*arguments, "--json")
        assert done.returncode in (0, 1), done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def state_of(self, run_id: str) -> dict[str, Any]:
        run_state: dict[str, Any] = self.request_prefect(f"flow_runs/{run_id}")["state"]
        return run_state

    def request_prefect(self, path: str) -> Any:
        """An answer of the server's API."""
        return httpx.get(f"{self.api_url()}/{path}", headers=self.credentials(), timeout=20).json()

    def credentials(self) -> dict[str, str]:
        return auth_header(read_auth(self.settings))

    def last_progress(self, run_id: str) -> float:
        path = self.settings.runs / run_id / "events.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        events = [json.loads(line) for line in lines]
        return max([e["fraction"] for e in events if e["event"] == "progress" and e["node"] == "trainer"], default=0.0)

    # jobs

    def start_job(self, *, budget_s: int | None = None, data: str = "data.jsonl", **hyperparameters: Any) -> str:
        """Start a training that does the same in the same bits each time, unless its settings differ.

        It is made anew although an identical one has finished, which `jobs create` would reuse.
        """
        values: dict[str, Any] = {"max_steps": STEPS, "save_steps": SAVE_STEPS, "precision": "fp32"}
        values |= {"gradient_accumulation": ACCUMULATION, **hyperparameters}
        pairs = {"dataset.path": data, "lora.dropout": 0.1, **({"budget_s": budget_s} if budget_s else {})}
        pairs |= {f"hyperparameters.{key}": value for key, value in values.items()}
        options = [word for key, value in pairs.items() for word in ("-p", f"{key}={value}")]
        return str(self.json("run", "training-job", *options, "--refresh")["run_id"])

    def finish(self, run_id: str) -> str:
        """Wait for a job's result and return the digest of its weights."""
        self.wait_for_state(run_id, "COMPLETED", "FAILED", "CRASHED", "CANCELLED", seconds=240)
        assert self.state_of(run_id)["type"] == "COMPLETED", self.state_of(run_id)["message"]
        return self.weights(run_id)

    def write_traps(self) -> None:
        """Write modules of the user's into the working folder, as a repository has them: nothing may import them."""
        for name in ("types", "enum", "orjson", "torch", "trainyard"):
            (self.work / f"{name}.py").write_text(f'raise SystemExit("{name}.py of the working folder was imported")')

    def write_data(self, name: str = "data.jsonl", rows: int = 80) -> None:
        examples = [{"instruction": f"What is twice {n}?", "output": f"Twice {n} is {2 * n}."} for n in range(rows)]
        (self.work / name).write_text("\n".join(json.dumps(row) for row in examples))

    def step(self, run_id: str) -> int:
        """The newest step of a job's trainer, read from its own events."""
        works = find_training_logs(self.settings.runs / run_id)
        return works[-1].progress().step if works else 0

    def wait_for_step(self, run_id: str, step: int = 1) -> None:
        wait_until(lambda: self.step(run_id) >= step, 120, "the training")

    def wait_for_state(self, run_id: str, *types: str, seconds: float = 120) -> float:
        """Wait until the run is in one of Prefect's state types."""
        try:
            return wait_until(lambda: self.state_of(run_id)["type"] in types, seconds, f"becoming {'/'.join(types)}")
        except AssertionError as error:
            state = self.state_of(run_id)
            is_in = f"it is {state['name']} since {state['timestamp']}: {state['message']}"
            raise AssertionError(f"{error}; {is_in}") from None

    def pause(self, run_id: str) -> None:
        """Suspend a run as the Prefect pages do, and wait until its process is gone; the command takes seconds more."""
        process = self.flow_process(run_id)
        state = {"type": "PAUSED", "name": "Suspended", "state_details": {"pause_reschedule": True}}
        address = f"{self.api_url()}/flow_runs/{run_id}/set_state"
        answer = httpx.post(address, json={"state": state}, headers=self.credentials(), timeout=20)
        assert answer.json()["status"] == "ACCEPT", answer.text
        wait_until(lambda: not process.is_running(), 60, "the process's end")

    def api_url(self) -> str:
        server = running(self.settings, "server")
        assert server is not None
        return server.url

    def flow_process(self, run_id: str) -> psutil.Process:
        return psutil.Process(int(self.request_prefect(f"flow_runs/{run_id}")["infrastructure_pid"]))

    def children(self) -> list[psutil.Process]:
        """Every live supervised child of this home, whoever its parent is now."""
        children = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                is_ours = (
                    environment.get("TRAINYARD_HOME") == str(self.settings.home) and PARENT_VARIABLE in environment
                )
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    children.append(process)
            except (psutil.Error, OSError):
                continue
        return children

    def slot_is_free(self) -> bool:
        """Whether nobody holds the lock of the device, the lock of the child, and the server's limit."""
        name = f"device:{socket.gethostname()}:0"
        limit = self.request_prefect(f"v2/concurrency_limits/{name}")
        locks = [self.settings.services / "slot-0.lock", self.settings.services / "devices" / "cpu-0.lock"]
        return limit["active_slots"] == 0 and all(map(is_unlocked, locks))

    def events(self, run_id: str, name: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.settings.runs / run_id) if event["event"] == name]

    def weights(self, run_id: str) -> str:
        """SHA-256 of the adapter's weights that a finished job has left."""
        result = read_result(self.settings.runs / run_id)
        assert result is not None
        (reference,) = result.node("trainer").outputs.values()
        return hashlib.sha256((reference.path / "adapter_model.safetensors").read_bytes()).hexdigest()


@contextmanager
def standing(folder: Path, model: Path, prepare: Callable[[Stack], None] = lambda _: None) -> Iterator[Stack]:
    """A stack that is up and has data for its jobs; in the end nothing that it started is left.

    `prepare` writes what else is in its folders, or changes its environment, before it starts.
    """
    stack = Stack(folder, model)
    stack.write_data()
    stack.write_traps()
    prepare(stack)
    try:
        up = stack.command("up")
        assert up.returncode == 0, up.stderr
        yield stack
    finally:
        stack.command("down")
    assert not stack.children()


def is_unlocked(path: Path) -> bool:
    if not path.exists():
        return True
    with path.open() as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
