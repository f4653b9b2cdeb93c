"""A kill storm over everything that `trainyard up` started: `python -m tests.faults.storm --minutes 15 --seed N`.

A home of its own, on a small disk where root may mount one. While chains with deployments, and nights, come one after
another, a random process of the home is killed, asked to end or stopped for a while, or the disk is full for some
seconds. Then the faults stop, and has to hold:

    every run has completed, or completes when it is resumed
    every adapter version is whole, its number was used once, and the live one is there
    60 s after the end no supervised child is left, and no slot or lock of a device is held
    SQLite finds its database intact, and nothing half-written or empty is left

The last line counts the faults and the violations; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.flows.real_stack import Stack, wait_until
from trainyard.data.corpora import Corpora
from trainyard.errors import TrainyardError
from trainyard.locations import CHECKOUT
from trainyard.night.training import tenant_root
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.files import RealFiles

CHAIN = """
name: storm
nodes:
- {{id: data, type: data_source, config: {{path: data.jsonl}}}}
- id: trainer
  type: trainer
  config:
    stage: sft
    method: lora
    hyperparameters: {{max_steps: {steps}, save_steps: 5, gradient_accumulation: 2, precision: fp32, seed: {seed}}}
- {{id: deployer, type: deployer, config: {{role: {role}, unevaluated: true, targets: [{{type: registry}}]}}}}
"""
ROLES = ("bot", "coder")
NIGHT = {
    "documents": str(CHECKOUT / "examples" / "night"),
    "buckets": [{"name": "engineering", "method": "sft", "threshold": 10}],
    "phase2": {
        "gate": "none",
        "training": {"method": "lora", "hyperparameters": {"max_steps": 3, "batch_size": 2, "max_length": 128}},
    },
}
DISK_MB, LEAVE_BYTES = 700, 16_384
IN_FLIGHT = 2
ENDS = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
RESUMES = 4
COMMAND_S = 900.0
RUN_S, CALM_S = 420.0, 60.0
"""How long a run may take without faults, and what orphans have to end."""
ACTIONS = ("kill", "kill", "kill", "term", "stop", "stop", "disk")


@dataclass
class Storm:
    """The home, the runs that were started in it, and what went wrong."""

    stack: Stack
    chance: random.Random
    full: Path | None
    """The file that fills the disk; None where the disk is the machine's own."""
    runs: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    """Why a command did not start a run: its error code."""

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    def violated(self, message: str) -> None:
        self.violations.append(message)
        self.say(f"VIOLATED {message}")

    # Work.

    def start_chain(self) -> None:
        number = len(self.runs)
        path = self.stack.work / f"storm-{number}.yaml"
        path.write_text(CHAIN.format(steps=self.chance.choice((20, 60)), seed=number, role=self.chance.choice(ROLES)))
        self.begin("run", str(path))

    def start_night(self) -> None:
        """A night with new tuples, by its deployment; a second one of the same date reports itself as done."""
        number = len(self.runs)
        commits = [{"diff": f"+wheel {number}-{n}", "message": f"Add wheel {number}-{n}"} for n in range(12)]
        root = tenant_root(self.stack.settings, "default")
        try:
            Corpora(root / "corpora", RealFiles()).add("engineering", "sft", commits)
        except (OSError, TrainyardError) as error:
            self.refused[type(error).__name__] += 1
            return
        environment = {**self.stack.environment, **self.variables()}
        config = json.dumps(NIGHT)
        argv = [sys.executable, "-m", "prefect", "deployment", "run", "nightly/two-phase", "-p", f"config={config}"]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)
        run_ids = [word for word in done.stdout.replace("/", " ").split() if len(word) == 36 and word.count("-") == 4]
        if done.returncode or not run_ids:
            self.refused["night"] += 1
            return
        self.runs.append(run_ids[-1])
        self.say(f"night {run_ids[-1]}")

    def variables(self) -> dict[str, str]:
        done = self.stack.command("env", "--json")
        variables: dict[str, str] = json.loads(done.stdout)["variables"] if done.returncode == 0 else {}
        return variables

    def begin(self, *arguments: str) -> None:
        done = self.stack.command(*arguments, "--json")
        try:
            run_id = str(json.loads(done.stdout)["run_id"])
        except (ValueError, KeyError):
            code = next((word.strip('":,') for word in (done.stderr + done.stdout).split() if "E-" in word), "no code")
            self.refused[code] += 1
            if "Traceback" in done.stderr:
                self.violated(f"a traceback instead of an error: {done.stderr.splitlines()[-1][:200]}")
            return
        self.runs.append(run_id)
        self.say(f"run {run_id}")

    def state(self, run_id: str) -> str:
        try:
            return str(self.stack.state_of(run_id)["type"])
        except (httpx.HTTPError, AssertionError, ValueError, KeyError, TypeError):
            return "UNKNOWN"

    # Faults.

    def processes(self) -> list[tuple[str, psutil.Process]]:
        """(kind, process) of everything that lives in this home."""
        home, processes = str(self.stack.settings.home), []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get("TRAINYARD_HOME") == home and process.pid != os.getpid():
                    kind = classify_command(" ".join(process.cmdline()))
                    processes += [(kind, process)] if kind else []
        return processes

    def strike(self) -> None:
        action = self.chance.choice(ACTIONS if self.full else ACTIONS[:-1])
        if action == "disk":
            self.fill_disk()
            return
        alive = self.processes()
        if not alive:
            return
        kinds = sorted({kind for kind, _ in alive})
        kind = self.chance.choice(kinds)
        process = self.chance.choice([candidate for other, candidate in alive if other == kind])
        self.faults[f"{action} {kind}"] += 1
        self.say(f"{action} {kind} {process.pid}")
        with suppress(psutil.NoSuchProcess):
            if action == "stop":
                process.suspend()
                time.sleep(self.chance.uniform(2, 12))
                process.resume()
            else:
                process.send_signal(signal.SIGKILL if action == "kill" else signal.SIGTERM)

    def fill_disk(self) -> None:
        """No space for some seconds."""
        assert self.full is not None
        self.faults["disk full"] += 1
        self.say("disk full")
        with suppress(OSError), self.full.open("wb", buffering=0) as stream:
            while (free := psutil.disk_usage(str(self.full.parent)).free) > LEAVE_BYTES:
                stream.write(bytes(min(free - LEAVE_BYTES, 1 << 22)))
        time.sleep(self.chance.uniform(2, 8))
        self.full.unlink(missing_ok=True)

    # The storm and the calm after it.

    def rage(self, seconds: float) -> None:
        """Work and faults, until the time is over."""
        end = time.monotonic() + seconds
        next_fault = time.monotonic() + 10
        while time.monotonic() < end:
            if sum(self.state(run) not in ENDS for run in self.runs) < IN_FLIGHT:
                self.start_night() if self.chance.random() < 0.2 else self.start_chain()
            if time.monotonic() >= next_fault:
                self.strike()
                next_fault = time.monotonic() + self.chance.uniform(4, 20)
            time.sleep(1)

    def settle(self) -> None:
        """Everything up again, and every run to its end."""
        up = self.stack.command("up")
        if up.returncode:
            self.violated(f"`up` fails after the storm: {up.stderr[-300:]}")
            return
        for run_id in self.runs:
            self.bring_to_end(run_id)

    def bring_to_end(self, run_id: str) -> None:
        states = []
        for _ in range(RESUMES):
            with suppress(AssertionError):
                wait_until(lambda: self.state(run_id) in ENDS, RUN_S, run_id)
            states.append(self.state(run_id))
            if states[-1] == "COMPLETED":
                return
            self.stack.command("jobs", "resume", run_id)
        message = self.stack.state_of(run_id)["message"]
        self.violated(f"the run {run_id} does not complete: {states}, {str(message)[:300]}")

    def check(self) -> None:
        for rule in (self.check_orphans, self.check_slots, self.check_versions, self.check_database, self.check_files):
            try:
                rule()
            except (TrainyardError, OSError, AssertionError, httpx.HTTPError, sqlite3.Error) as error:
                self.violated(f"{rule.__name__}: {type(error).__name__}: {error}")

    def check_orphans(self) -> None:
        with suppress(AssertionError):
            wait_until(lambda: not self.stack.children(), CALM_S)
        for child in self.stack.children():
            self.violated(f"an orphan is left: {' '.join(child.cmdline())[:200]}")

    def check_slots(self) -> None:
        wait_until(self.stack.slot_is_free, CALM_S, "a free slot")

    def check_versions(self) -> None:
        registry = AdapterRegistry(self.stack.settings.adapters)
        versions = registry.list()
        for version in versions:
            registry.verify(version)
        for key, count in Counter(version.run_key for version in versions if version.run_key).items():
            if count > 1:
                self.violated(f"{key} was registered {count} times")
        for tenant, role in {(version.tenant, version.role) for version in versions}:
            live = registry.live(tenant, role).version
            if live is not None and f"{tenant}/{role}/v{live}" not in [version.name for version in versions]:
                self.violated(f"{tenant}/{role}/v{live} is live and not there")
        self.say(f"{len(versions)} adapter versions, all whole")

    def check_database(self) -> None:
        for path in self.stack.settings.prefect_home.glob("*.db"):
            with sqlite3.connect(path) as connection:
                (word,) = connection.execute("pragma integrity_check").fetchone()
            connection.close()
            if word != "ok":
                self.violated(f"{path.name}: {word}")

    def check_files(self) -> None:
        """No empty or temporary file where results lie."""
        home = self.stack.settings.home
        for folder in ("runs", "adapters", "artifacts", "jobs"):
            for path in (home / folder).rglob("*"):
                with suppress(FileNotFoundError):
                    odd = path.name.endswith(".tmp") or path.suffix == ".json"
                    if path.is_file() and odd and path.stat().st_size == 0:
                        self.violated(f"an empty file is left: {path.relative_to(home)}")


def classify_command(command: str) -> str:
    """What a process of the home is, by its command; empty for what the storm itself started."""
    kinds = {
        "trainyard.prefect_api.draining_worker": "drainer",
        "prefect worker start": "worker",
        "trainyard.prefect_api.watchdog": "watchdog",
        "trainyard.prefect_api.reviving": "",
        "trainyard.serve.server": "embedded",
        "trainyard.serve.extraction.server": "reader",
        "trainyard.prefect_api.gc_thread": "server",
        "trainyard.compute.launch": "trainer",
        "trainyard.compute.shim": "shim",
        "trainyard": "",
        "prefect deployment run": "",
        "prefect flow-run execute": "flow",
        "prefect.engine": "flow",
    }
    return next(
        (kind for fragment, kind in kinds.items() if fragment in command), "flow" if "prefect" in command else ""
    )


@contextmanager
def small_disk(path: Path) -> Iterator[Path | None]:
    """Mount a small disk at `path`, if we may; gives the name of the file that fills it."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(path)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    try:
        yield path / "fill" if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=False)


def run_storm(minutes: float, seed: int, folder: Path, build_model: Callable[[Path], Any]) -> Storm:
    """A storm in an empty folder; its findings."""
    model = folder / "model"
    build_model(model)
    with small_disk(folder / "disk") as full:
        stack = Stack(folder / "disk", model)
        stack.timeout_s = COMMAND_S
        stack.environment |= {"TRAINYARD_MIN_FREE_MB": "4"}
        stack.write_data()
        storm = Storm(stack, random.Random(seed), full)
        storm.say(f"seed {seed}, {minutes:g} minutes{'' if full else ', without disk-full windows (not root)'}")
        try:
            up = stack.command("up")
            assert up.returncode == 0, up.stderr
            storm.say("up")
            storm.rage(minutes * 60)
            storm.say("the storm is over")
            storm.settle()
            storm.check()
        finally:
            stack.command("down")
            for _, process in storm.processes():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
    return storm


def build_tiny(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "trainyard.testing.tiny", str(folder)], check=True, capture_output=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="storm-", ignore_cleanup_errors=True) as folder:
        storm = run_storm(args.minutes, args.seed, Path(folder), build_tiny)
    print(f"faults: {dict(sorted(storm.faults.items()))}; not started: {dict(storm.refused)}")
    print(f"{len(storm.runs)} runs, {storm.faults.total()} faults, {len(storm.violations)} violated")
    return 1 if storm.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
