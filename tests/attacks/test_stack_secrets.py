"""A shell full of secrets starts the stack: who has them, read in /proc while real chains run, and in every file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.flows.real_stack import Stack, wait_until
from trainyard.testing.scripted_server import ScriptedServer

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

PLANTED = {
    "AWS_SECRET_ACCESS_KEY": "planted-cloud-key",
    "OPENAI_API_KEY": "planted-endpoint-key",
    "HF_TOKEN": "planted-hub-token",
}
SHORT_LIVED = {"git of prefect deploy": "git ", "file of an import of Prefect": "file -b "}
KINDS = {
    "script": "train.py",
    "training": "trainyard.backends.",
    "evaluating": "trainyard.evals",
    "reading": "trainyard.data.prompts",
    "embedded": "trainyard.serve.server",
    "graph server": "serve --role graph",
    "api": "serve --role training",
    "graph writer": "trainyard.stores.graph.writer",
    "server": "trainyard.prefect_api.gc_thread",
    "watchdog": "trainyard.prefect_api.watchdog",
    "worker": "prefect worker start",
    "flow": "prefect",
    **SHORT_LIVED,
}
"""Kind -> what stands in its command line; the first that does."""
PREFECTS = {"PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"}
HOLDERS = {
    "api": {"PREFECT_API_AUTH_STRING"},
    "server": PREFECTS, "watchdog": PREFECTS | {"OPENAI_API_KEY"}, "worker": PREFECTS | {"OPENAI_API_KEY"},
    "flow": PREFECTS | {"OPENAI_API_KEY"}, "git of prefect deploy": PREFECTS,
    "file of an import of Prefect": PREFECTS | {"OPENAI_API_KEY"},
}  # fmt: skip
"""Who asks the endpoints, and who speaks with Prefect. Nobody has anything else that was planted.

`prefect deploy` notes the commit of the checkout that it deploys; the git that it starts has its environment. Whoever
imports Prefect imports croniter, which calls `platform.architecture`, and that the `file` of this machine.
"""
DOCUMENT = "# Node {n}\n\nNode {n} reads documents and writes {m} pairs for each of them.\n"
NODE = "  - {{type: {type}, config: {config}}}\n"


class Watch:
    """Every process of a home, with what it was started with: looked at from its first to its third second."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.seen: dict[tuple[int, bytes], dict[str, str]] = {}
        self.first: dict[int, float] = {}
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            for pid in psutil.pids():
                if time.monotonic() - self.first.setdefault(pid, time.monotonic()) < 3:
                    self.look_at(Path(f"/proc/{pid}"))

    def look_at(self, process: Path) -> None:
        try:
            command_line, environment = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
            # Between fork and exec a child still has what its parent has.
            if (
                f"TRAINYARD_HOME={self.home}\0".encode() in environment
                and (process / "cmdline").read_bytes() == command_line
            ):
                entries = (entry.partition("=") for entry in environment.decode(errors="replace").split("\0"))
                self.seen[int(process.name), command_line] = {name: value for name, _, value in entries}
        except OSError:  # it has ended, or is somebody else's
            return

    def kinds(self) -> dict[str, list[dict[str, str]]]:
        environments: dict[str, list[dict[str, str]]] = {}
        for (_, command_line), environment in self.seen.items():
            line = command_line.replace(b"\0", b" ").decode(errors="replace")
            if "-m trainyard " in line and " serve " not in line:
                continue  # what a person calls in that shell
            environments.setdefault(next((kind for kind, part in KINDS.items() if part in line), line), []).append(
                environment
            )
        return environments


@contextmanager
def watching(home: Path) -> Iterator[Watch]:
    watch = Watch(home)
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        yield watch
    finally:
        watch.ended.set()
        thread.join()


def chain(stack: Stack, name: str, *nodes: tuple[str, dict[str, object]]) -> Path:
    lines = [NODE.format(type=kind, config=json.dumps(config)) for kind, config in nodes]
    path = stack.work / f"{name}.yaml"
    path.write_text(f"name: {name}\nnodes:\n{''.join(lines)}", encoding="utf-8")
    return path


def run_chain_file(stack: Stack, path: Path) -> None:
    done = stack.command("run", str(path), "--watch")
    assert done.returncode == 0, done.stdout + done.stderr


def serve_graph(stack: Stack, watch: Watch) -> None:
    """As a person does in a terminal; ended when it has been seen."""
    argv = [sys.executable, "-m", "trainyard", "serve", "--role", "graph", "--port", "0"]
    with subprocess.Popen(argv, cwd=stack.work, env=stack.environment, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: "graph writer" in watch.kinds(), 120, "the graph server")
            watch.look_at(Path(f"/proc/{process.pid}"))  # by now it has become the same command without the secrets
        finally:
            process.terminate()


def open_to_others(home: Path) -> list[str]:
    paths = [home, *home.rglob("*")]
    return [str(path) for path in paths if not path.is_symlink() and path.exists() and path.stat().st_mode & 0o077]


def test_who_has_which_secret(tmp_path: Path, tiny_model: Path) -> None:
    stack = Stack(tmp_path, tiny_model)
    stack.write_data()
    (stack.work / "docs").mkdir()
    for n in range(4):
        (stack.work / "docs" / f"{n}.md").write_text(DOCUMENT.format(n=n, m=n + 2), encoding="utf-8")
    with ScriptedServer(api_key=PLANTED["OPENAI_API_KEY"]) as house, ScriptedServer() as stranger:
        endpoint = {"base_url": house.url, "api_key_env": "OPENAI_API_KEY"}
        stack.environment |= {**PLANTED, "TRAINYARD_ALLOW_SCRIPTS": "true"}
        stack.environment["TRAINYARD_ENDPOINTS"] = json.dumps({"gpt": endpoint})
        old_umask = os.umask(0o022)
        try:
            with watching(stack.settings.home) as watch:
                up = stack.command("up")
                assert up.returncode == 0, up.stderr
                try:
                    training: dict[str, object] = {"hyperparameters": {"max_steps": 2, "batch_size": 2}}
                    rows = ("data_source", {"path": "data.jsonl"})
                    docs = ("data_source", {"path": "docs"})
                    writer = {"model": "gpt", "count": 4, "prompt": "Write about {{ document }}."}
                    run_chain_file(stack, chain(stack, "asks", docs, ("ai_generator", writer)))
                    generator = {"model": "gpt", "base_url": stranger.url, "count": 4}
                    run_chain_file(stack, chain(stack, "steals", docs, ("ai_generator", generator)))
                    six = (rows, ("validator", {}), ("trainer", training), ("evaluator", {"samples": 1}))
                    run_chain_file(stack, chain(stack, "trains", *six))
                    run_chain_file(stack, chain(stack, "scripts", rows, ("trainer", {**training, "backend": "script"})))
                    serve_graph(stack, watch)
                finally:
                    stack.command("down")
        finally:
            os.umask(old_umask)
        assert {each["authorization"] for each in house.headers} == {f"Bearer {PLANTED['OPENAI_API_KEY']}"}
        assert stranger.headers
        assert not any("authorization" in each for each in stranger.headers)
    kinds = watch.kinds()
    assert set(KINDS) - set(SHORT_LIVED) <= set(kinds), sorted(kinds)
    leaks = [
        (kind, name)
        for kind, all_given in kinds.items()
        for environment in all_given
        for name in {*PREFECTS, *PLANTED} - HOLDERS.get(kind, set())
        if name in environment or PLANTED.get(name, name) in environment.values()
    ]
    assert leaks == []
    home = stack.settings.home
    held = [
        (str(path), name)
        for path in home.rglob("*")
        if path.is_file()
        for name, value in PLANTED.items()
        if value.encode() in path.read_bytes()
    ]
    assert held == []
    assert open_to_others(home) == []
