"""`InferenceServer`: one server from its start to the proof that its device is free."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from trainyard.compute.child import LOG_FILE
from trainyard.compute.gpus import GpuReadings, read_gpus
from trainyard.compute.lease import occupants, wait_until_empty
from trainyard.compute.supervise import Outcome, ProcessTree, Wanted, last_log_line, supervise
from trainyard.errors import Conflict, Unavailable
from trainyard.inherited import operator_environment
from trainyard.serve.client.client import ChatClient, Messages, api_key_from, api_url
from trainyard.serve.extraction.extraction import Complete
from trainyard.serve.inference_server.commands import HOST, ON_GPU, RUNNING_GAUGES, command, release_of, variables
from trainyard.serve.inference_server.profiles import Release, ServerProfile
from trainyard.serve.vllm import ANSWER_S, confirm_closed, free_port, healthy, why_ended
from trainyard.settings import Settings
from trainyard.stores.artifacts import write_json_durably
from trainyard.stores.processes import Start, find_process, process_start

RECORD_FILE = "server.json"
POLL_S = 0.2
KILL_S = 15.0
"""What the shim has, beyond the program's grace, for ending the tree."""
WARM_S, WARM_TOKENS = 600.0, 64
SLEEPING_MB, TOLERANCE_MB = 4_096, 512
"""Device memory that a sleeping vLLM keeps, and by how much a reading of an idle device varies."""

Probe = Callable[[], GpuReadings]


@dataclass(frozen=True)
class Drained:
    """How the last requests ended: seconds waited, and how many were still under way at the deadline."""

    seconds: float
    left: int


@dataclass(frozen=True)
class Freed:
    """The proof: device memory in MB before the start and now; None on a machine without a GPU."""

    device: str
    before_mb: int | None
    after_mb: int | None
    seconds: float


@dataclass(frozen=True)
class ServerRecord:
    """The process of a server, for whoever comes after a crash."""

    pid: int
    create_time: Start
    port: int

    def process(self) -> psutil.Process | None:
        return find_process(self.pid, self.create_time)


class InferenceServer:
    """One server in `folder` (log, events, record). `read` tells the GPUs, `index` is the one it uses."""

    def __init__(
        self, profile: ServerProfile, folder: Path, settings: Settings, *, index: int = 0, read: Probe = read_gpus
    ) -> None:
        self.profile, self.folder, self.settings, self.index, self.read = profile, folder, settings, index, read
        self.release = release_of(profile)
        self.before_mb: int | None = None
        self.port: int | None = None
        self.running: Future[Outcome] | None = None
        self.ending = threading.Event()
        self.draining = False
        self.sleeping = False
        self.in_flight = 0
        self.begun = time.monotonic()
        """When its start began, the boot of its machine included."""

    # addresses

    @property
    def url(self) -> str:
        """Where the server itself answers, without `/v1`."""
        if self.profile.url:
            return str(api_url(self.profile.url)).rstrip("/").removesuffix("/v1")
        assert self.port is not None, "the server was not started"
        return f"http://{HOST}:{self.port}"

    @property
    def chat_url(self) -> str:
        """Where chat completions go: the operator's gateway, or the server."""
        return self.profile.gateway_url or f"{self.url}/v1"

    @property
    def model(self) -> str:
        """The model's name for whoever takes the completions."""
        return self.profile.gateway_model or self.profile.engine.model

    # life

    def start(self) -> None:
        """Run the boot command, then start the server (not where the profile names a `url`). Returns before it answers.

        A server that an earlier process left in this folder is ended first. Raises `Conflict` (`E-DEVICE-OCCUPIED`)
        if somebody else computes on the device, `Unavailable` (`E-SERVER-BOOT`, `R-VLLM-MISSING`, `R-LLAMA-MISSING`).
        """
        self.begun = time.monotonic()
        self.end_leftover()
        if self.uses_gpu:
            self.refuse_strangers()
            self.before_mb = self.memory_mb()
        if self.profile.boot_command:
            run_command(self.profile.boot_command, self.profile.ready_s, "boot", self.folder)
        self.draining = self.sleeping = False
        if self.profile.url is None:
            self.launch()

    @property
    def uses_gpu(self) -> bool:
        return self.profile.url is None and self.profile.engine.type in ON_GPU

    def refuse_strangers(self) -> None:
        if found := occupants(self.index, self.read(), frozenset()):
            raise Conflict(
                f"The model server is not started: the device cuda:{self.index} is in use by {found}.",
                why="Its memory would not suffice for both.",
                do="End that program, or choose another device by CUDA_VISIBLE_DEVICES.",
                code="E-DEVICE-OCCUPIED",
            )

    def launch(self) -> None:
        self.port = free_port()
        argv = command(self.profile, self.port, self.settings)
        shim = [sys.executable, "-m", "trainyard.compute.shim", str(self.folder), "--grace", str(self.profile.stop_s)]
        self.ending.clear()
        # The kernel ends the child when the thread that started it ends; this one waits for the child.
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inference-server")
        self.running = thread.submit(
            supervise,
            [*shim, "--", *argv],
            self.folder,
            env=variables(self.profile, argv),
            wanted=lambda: Wanted.CANCEL if self.ending.is_set() else Wanted.RUN,
            on_event=self.note,
            grace_s=self.profile.stop_s + KILL_S,
            poll_s=POLL_S,
        )
        thread.shutdown(wait=False)

    def note(self, event: dict[str, Any]) -> None:
        """Keep the supervised process's identity where a later process finds it."""
        if event["event"] == "started" and self.port is not None:
            try:
                created = process_start(event["pid"])
            except psutil.NoSuchProcess:
                return  # it ended already, and the outcome says why
            write_json_durably(self.folder / RECORD_FILE, asdict(ServerRecord(event["pid"], created, self.port)))

    def leftover(self) -> ServerRecord | None:
        """The living server that an earlier process started in this folder."""
        path = self.folder / RECORD_FILE
        if not path.is_file():
            return None
        try:
            record = ServerRecord(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            return None
        return record if record.process() is not None else None

    def end_leftover(self) -> None:
        if (record := self.leftover()) is not None:
            ProcessTree(record.pid).end()
        (self.folder / RECORD_FILE).unlink(missing_ok=True)

    def wait_ready(self, deadline_s: float | None = None) -> float:
        """Return, after how many seconds, when it answers `/health`.

        Raises `Unavailable` (`E-INFERENCE-START`) when `ready_s` of the profile has passed since the start, or
        `deadline_s` from now.
        """
        started = time.monotonic()
        allowed = max(0.0, self.begun + self.profile.ready_s - started)
        allowed = allowed if deadline_s is None else min(allowed, deadline_s)
        with httpx.Client(base_url=self.url, trust_env=False, timeout=ANSWER_S) as http:
            while True:
                if self.running is not None and self.running.done():
                    raise self.not_started("ended before it was ready", why_ended(self.running.result()))
                if healthy(http):
                    return time.monotonic() - started
                if time.monotonic() - started > allowed:
                    raise self.not_started(f"was not ready within {round(allowed, 1):g} s", last_log_line(self.folder))
                if self.running is not None:
                    wait([self.running], timeout=POLL_S)
                else:
                    time.sleep(POLL_S)

    def not_started(self, how: str, why: str) -> Unavailable:
        return Unavailable(
            f"The model server ({self.profile.engine.type}) {how}.",
            why=why or "Its log is empty.",
            do=f"Read {LOG_FILE} in {self.folder}, then correct the profile.",
            code="E-INFERENCE-START",
        )

    def warm(self, schema: dict[str, Any] | None = None) -> float:
        """One short answer bound by the schema, so that its grammar is compiled; returns the seconds it took.

        Raises `Unavailable` (`E-INFERENCE-WARM`) with the server's words.
        """
        started = time.monotonic()
        body: dict[str, Any] = {
            "model": self.model, "messages": [{"role": "user", "content": "warm"}], "max_tokens": WARM_TOKENS,
            "temperature": 0,
        }  # fmt: skip
        if schema is not None:
            form = {"name": "reply", "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        key = api_key_from(self.profile.api_key_env)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            reply = httpx.post(
                f"{self.chat_url.rstrip('/')}/chat/completions", json=body, headers=headers, timeout=WARM_S,
                trust_env=bool(self.profile.gateway_url),
            )  # fmt: skip
            problem = "" if reply.is_success else f"{reply.status_code}: {reply.text[:300]}"
        except httpx.HTTPError as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            raise Unavailable(
                "The model server does not answer a first request.", why=problem,
                do="Look at its log; the extraction schema needs a server that enforces JSON Schema.",
                code="E-INFERENCE-WARM",
            )  # fmt: skip
        return time.monotonic() - started

    @asynccontextmanager
    async def completing(
        self, concurrency: int, *, timeout_s: float = 600.0, retries: int = 4
    ) -> AsyncIterator[Complete]:
        """A `complete(messages, schema, max_tokens)` for `extraction.extract`; it refuses once `drain` was called."""
        key = api_key_from(self.profile.api_key_env)
        async with ChatClient(
            self.chat_url, self.model, key, concurrency=concurrency, retries=retries, timeout_s=timeout_s
        ) as client:

            async def complete(messages: Messages, schema: dict[str, Any] | None, max_tokens: int) -> str:
                if self.draining:
                    raise Unavailable(
                        "The model server takes no more requests.", why="Its phase is ending.",
                        do="Leave the document for the next night.", code="E-SERVER-DRAINING",
                    )  # fmt: skip
                self.in_flight += 1
                try:
                    answer = await client.complete(messages, schema, max_tokens=max_tokens, temperature=0.0)
                finally:
                    self.in_flight -= 1
                return answer.text

            yield complete

    def drain(self, deadline_s: float | None = None) -> Drained:
        """Admit nothing more, and wait until what is under way has ended; ours, and the server's own count. The wait
        ends after `drain_s` of the profile, or `deadline_s` where that is shorter.

        Call it from another thread than the one whose loop runs the requests, or after they were awaited.
        """
        self.draining = True
        started, allowed = time.monotonic(), self.profile.drain_s
        allowed = allowed if deadline_s is None else min(allowed, deadline_s)
        while (left := max(self.in_flight, self.busy())) and time.monotonic() - started < allowed:
            time.sleep(POLL_S)
        return Drained(time.monotonic() - started, left)

    def busy(self) -> int:
        """Requests that the server itself has, by its metrics; 0 where it has none or does not answer."""
        if self.running is None and self.profile.url is None:
            return 0
        try:
            text = httpx.get(f"{self.url}/metrics", timeout=ANSWER_S, trust_env=False).text
        except httpx.HTTPError:
            return 0
        names = "|".join(re.escape(name) for name in RUNNING_GAUGES[self.profile.engine.type])
        found = re.findall(rf"^(?:{names})(?:{{[^}}]*}})? ([\d.e+]+)$", text, re.MULTILINE)
        return int(sum(float(value) for value in found))

    def stop(self) -> Release:
        """Give the device back as the profile says; returns how. A server that cannot sleep is ended."""
        if self.release in (Release.SLEEP_WEIGHTS_IN_RAM, Release.SLEEP_WITHOUT_WEIGHTS) and self.put_to_sleep():
            return self.release
        self.end()
        return Release.STOP

    def put_to_sleep(self) -> bool:
        level = 1 if self.release is Release.SLEEP_WEIGHTS_IN_RAM else 2
        try:
            reply = httpx.post(f"{self.url}/sleep", params={"level": level}, timeout=WARM_S, trust_env=False)
        except httpx.HTTPError:
            return False
        self.sleeping = reply.is_success
        return self.sleeping

    def end(self) -> None:
        """End our process tree and run the stop command; what was not started is left alone. May be called twice.

        Raises `TrainyardError` (`E-VLLM-STOP`) if its port still answers, `Unavailable` (`E-SERVER-BOOT`).
        """
        self.draining = True
        self.ending.set()
        if self.running is not None:
            self.running.result()
            self.running = None
            assert self.port is not None
            confirm_closed(self.port)
            (self.folder / RECORD_FILE).unlink(missing_ok=True)
        if self.profile.stop_command:
            run_command(self.profile.stop_command, self.profile.ready_s, "stop", self.folder)

    def memory_mb(self) -> int | None:
        gpu = next((gpu for gpu in self.read().gpus if gpu.index == self.index), None)
        return gpu.memory_used_mb if gpu is not None else None

    def prove_free(self, deadline_s: float = 120.0) -> Freed:
        """Return when the device is measured free of the server and of anybody else.

        Raises `Conflict` (`E-DEVICE-OCCUPIED`) after the deadline: nothing may be started then. Nobody else's process
        is ever ended.
        """
        started = time.monotonic()
        if (record := self.leftover()) is not None and not self.sleeping:
            raise occupied(f"the model server's process {record.pid}")
        ours = self.own_pids() if self.sleeping else frozenset()
        wait_until_empty(self.index, read=self.read, ours=lambda: ours, wait_s=deadline_s)
        allowed = (self.before_mb or 0) + (SLEEPING_MB if self.sleeping else TOLERANCE_MB)
        while (now := self.memory_mb()) is not None and self.before_mb is not None and now > allowed:
            if time.monotonic() - started > deadline_s:
                raise occupied(f"{now:,} MB of its memory, of which {self.before_mb:,} MB were in use before the start")
            time.sleep(POLL_S)
        device = f"cuda:{self.index}" if now is not None else "cpu"
        return Freed(device, self.before_mb, now, time.monotonic() - started)

    def own_pids(self) -> frozenset[int]:
        record = self.leftover()
        process = record.process() if record is not None else None
        if process is None:
            return frozenset()
        return frozenset(one.pid for one in (process, *process.children(recursive=True)))

    def __enter__(self) -> InferenceServer:
        return self

    def __exit__(self, *_details: object) -> None:
        self.end()


def occupied(by: str) -> Conflict:
    return Conflict(
        f"The device is not free: {by}.",
        why="Training beside it would run out of memory in the middle.",
        do="Wait for that process to end, or end it; then run the phase again.",
        code="E-DEVICE-OCCUPIED",
    )


def run_command(argv: tuple[str, ...], timeout_s: float, what: str, folder: Path) -> None:
    """Run an operator's command without a shell, output in `<what>.log`. Raises `Unavailable` (`E-SERVER-BOOT`)."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{what}.log"
    try:
        with log.open("ab") as stream:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, timeout=timeout_s, check=False,
                env=operator_environment(),
            )  # fmt: skip
        problem = f"it ended with status {done.returncode}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"it did not end within {timeout_s:g} s"
    except OSError as error:
        problem = f"{argv[0]}: {error.strerror}"
    if problem:
        raise Unavailable(
            f"The {what} command of the model server failed: {problem}.",
            why=f"It was: {' '.join(argv)[:200]}.",
            do=f"Read {log.name} in {folder}, or correct the profile.",
            code="E-SERVER-BOOT",
        )
