"""`InferenceServer`: one server from its start to the proof that its device is free."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from trainyard.compute.gpus import GpuReadings, read_gpus
from trainyard.compute.lease import occupants, wait_until_empty
from trainyard.compute.services import ANSWER_S, HOST, SupervisedService, find_service, free_port, list_own_services
from trainyard.errors import Conflict, Unavailable
from trainyard.inherited import operator_environment
from trainyard.json_types import JsonObject
from trainyard.serve.client.client import ChatClient, Messages, api_key_from, api_url
from trainyard.serve.extraction.extraction import MAX_DOCUMENT_CHARS, Complete
from trainyard.serve.inference_server.commands import ON_GPU, RUNNING_GAUGES, choose_release, command, variables
from trainyard.serve.inference_server.profiles import Release, ServerProfile, VllmEngine
from trainyard.settings import Settings

POLL_S = 0.2
WARM_S, WARM_TOKENS = 600.0, 64
SLEEPING_MB, TOLERANCE_MB = 4_096, 512
"""Device memory that a sleeping vLLM keeps, and by how much a reading of an idle device varies."""

ADVICE = {"vllm": "; its arguments are in the profile, or in vllm_options of trainyard.toml"}
Probe = Callable[[], GpuReadings]


class InferenceServer:
    """A server in `folder` (log, events, record). `read` lists the GPUs, `index` is the one it uses.

    `thinking`: what the profile's `thinking_switch` is set to in each request.
    """

    def __init__(
        self,
        profile: ServerProfile,
        folder: Path,
        settings: Settings,
        *,
        index: int = 0,
        read: Probe = read_gpus,
        thinking: bool = False,
    ) -> None:
        switch = profile.thinking_switch
        self.template_options = {switch: thinking} if switch else None
        self.profile, self.folder, self.settings, self.index, self.read = profile, folder, settings, index, read
        self.release, self.drain_s = choose_release(profile), profile.drain_s
        self.window_chars = MAX_DOCUMENT_CHARS
        self.before_mb: int | None = None
        self.service = SupervisedService(folder, profile.stop_s)
        self.draining = False
        self.sleeping = False
        self.in_flight = 0
        self.started_at = time.monotonic()
        """When its start began, the boot of its machine included."""

    # addresses

    @property
    def url(self) -> str:
        """Where the server itself answers, without `/v1`."""
        if self.profile.url:
            return str(api_url(self.profile.url)).rstrip("/").removesuffix("/v1")
        assert self.service.port, "the server was not started"
        return f"http://{HOST}:{self.service.port}"

    @property
    def chat_url(self) -> str:
        """Where chat completions go: the operator's gateway, or the server."""
        return self.profile.gateway_url or f"{self.url}/v1"

    @property
    def model(self) -> str:
        """Return the model's name for requests."""
        engine = self.profile.engine
        served = engine.served_name if isinstance(engine, VllmEngine) else None
        return self.profile.gateway_model or served or engine.model

    # life

    def start(self) -> None:
        """Run the boot command, then start the server (not where the profile names a `url`). Returns before it answers.

        A server that an earlier process left in this folder is ended first. Raises `Conflict` (`E-DEVICE-OCCUPIED`)
        if another program computes on the device, `Unavailable` (`E-SERVER-START`, `R-PACKAGE-MISSING`).
        """
        self.started_at = time.monotonic()
        self.service.end_leftover()
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
        if program := occupants(self.index, self.read(), list_own_services(self.settings)):
            raise Conflict(
                f"The model server is not started: the device cuda:{self.index} is in use by {program}.",
                why="Its memory is too small for both.",
                do="End that program, or choose another device by CUDA_VISIBLE_DEVICES.",
                code="E-DEVICE-OCCUPIED",
            )

    def launch(self) -> None:
        port = free_port()
        argv = command(self.profile, port, self.settings)
        self.service.start(argv, variables(self.profile, argv), port)

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Return when it answers `/health`.

        Raises `Unavailable` (`E-SERVER-START`) when `ready_s` of the profile has passed since the start, or
        `timeout_s` from now.
        """
        allowed = max(0.0, self.started_at + self.profile.ready_s - time.monotonic())
        allowed = allowed if timeout_s is None else min(allowed, timeout_s)
        name = f"The model server ({self.profile.engine.type})"
        self.service.await_ready(name, self.url, allowed, ADVICE.get(self.profile.engine.type, ""))

    def warm(self, schema: Mapping[str, object]) -> None:
        """One short answer bound by the schema, so that its grammar is compiled.

        Raises `Unavailable` (`E-SERVER-START`) with the server's words.
        """
        form = {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": schema}}
        body: dict[str, object] = {
            "model": self.model, "messages": [{"role": "user", "content": "warm"}], "max_tokens": WARM_TOKENS,
            "temperature": 0, "response_format": form,
        }  # fmt: skip
        if self.template_options:
            body["chat_template_kwargs"] = self.template_options
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
                code="E-SERVER-START",
            )  # fmt: skip

    @asynccontextmanager
    async def completing(self, concurrency: int, *, timeout_s: float = 600.0) -> AsyncIterator[Complete]:
        """A `complete(messages, schema, max_tokens)` for `extraction.extract`; it refuses once `drain` was called."""
        key = api_key_from(self.profile.api_key_env)
        client = ChatClient(self.chat_url, self.model, key, concurrency=concurrency, timeout_s=timeout_s)
        client.template_options = self.template_options
        async with client:

            async def complete(messages: Messages, schema: JsonObject | None, max_tokens: int) -> str:
                if self.draining:
                    raise Unavailable(
                        "The model server takes no more requests.", why="Its phase is ending.",
                        do="Leave the document for the next night.", code="E-SERVER-STOP",
                    )  # fmt: skip
                self.in_flight += 1
                try:
                    answer = await client.complete(messages, schema, max_tokens=max_tokens, temperature=0.0)
                finally:
                    self.in_flight -= 1
                return answer.text

            yield complete

    def drain(self, timeout_s: float | None = None) -> int:
        """Admit nothing more, and wait until what is under way has ended; ours, and the server's own count. The wait
        ends after `drain_s` of the profile, or `timeout_s` where that is shorter. Returns how many are still under way.

        Call it from another thread than the one whose loop runs the requests, or after they were awaited.
        """
        self.draining = True
        started, allowed = time.monotonic(), self.drain_s
        allowed = allowed if timeout_s is None else min(allowed, timeout_s)
        while (left := max(self.in_flight, self.busy())) and time.monotonic() - started < allowed:
            time.sleep(POLL_S)
        return left

    def busy(self) -> int:
        """Requests that the server itself has, by its metrics; 0 where it has none or does not answer."""
        if self.service.running is None and self.profile.url is None:
            return 0
        try:
            text = httpx.get(f"{self.url}/metrics", timeout=ANSWER_S, trust_env=False).text
        except httpx.HTTPError:
            return 0
        names = "|".join(re.escape(name) for name in RUNNING_GAUGES[self.profile.engine.type])
        values = re.findall(rf"^(?:{names})(?:{{[^}}]*}})? ([\d.e+]+)$", text, re.MULTILINE)
        return int(sum(float(value) for value in values))

    def stop(self) -> Release:
        """Give the device back as the profile says; returns how. A server that cannot sleep is ended.

        Where this object started none, one that a killed process left in the same folder is ended.
        """
        if self.service.running is None and self.profile.url is None:
            self.service.end_leftover()
            return Release.STOP
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

        Raises `TrainyardError` (`E-SERVER-STOP`) if its port still answers, `Unavailable` (`E-SERVER-START`).
        """
        self.draining = True
        self.service.end()
        if self.profile.stop_command:
            run_command(self.profile.stop_command, self.profile.ready_s, "stop", self.folder)

    def memory_mb(self) -> int | None:
        gpu = next((gpu for gpu in self.read().gpus if gpu.index == self.index), None)
        return gpu.memory_used_mb if gpu is not None else None

    def prove_free(self, timeout_s: float = 120.0) -> None:
        """Return when the device is measured free of the server and of anybody else.

        Raises `Conflict` (`E-DEVICE-OCCUPIED`) after the deadline: nothing may be started then. Nobody else's process
        is ever ended.
        """
        started = time.monotonic()
        left = find_service(self.service.record)
        if left is not None and not self.sleeping:
            raise occupied_error(f"the model server's process {left.pid}")
        own_pids = left.pids() if left is not None else frozenset()
        wait_until_empty(self.index, read=self.read, own_pids=lambda: own_pids, wait_s=timeout_s)
        allowed = (self.before_mb or 0) + (SLEEPING_MB if self.sleeping else TOLERANCE_MB)
        while (now := self.memory_mb()) is not None and self.before_mb is not None and now > allowed:
            if time.monotonic() - started > timeout_s:
                raise occupied_error(
                    f"{now:,} MB of its memory, of which {self.before_mb:,} MB were in use before the start"
                )
            time.sleep(POLL_S)

    def __enter__(self) -> InferenceServer:
        return self

    def __exit__(self, *_details: object) -> None:
        self.end()


def occupied_error(by: str) -> Conflict:
    return Conflict(
        f"The device is not free: {by}.",
        why="Training next to it would run out of memory in the middle.",
        do="Wait for that process to end, or end it; then run the phase again.",
        code="E-DEVICE-OCCUPIED",
    )


def run_command(argv: tuple[str, ...], timeout_s: float, purpose: str, folder: Path) -> None:
    """Run an operator's command without a shell, output in `<purpose>.log`. Raises `Unavailable` (`E-SERVER-START`)."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{purpose}.log"
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
            f"The {purpose} command of the model server failed: {problem}.",
            why=f"It was: {' '.join(argv)[:200]}.",
            do=f"Read {log.name} in {folder}, or correct the profile.",
            code="E-SERVER-START",
        )
