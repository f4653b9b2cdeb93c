"""`/metrics` for Prometheus: requests by operation and status, their duration, and the state of the machine.

Labels are names of the table and states, never what a client sent: their number is bounded.

Gauges of `/metrics` that are read when Prometheus asks: jobs, running trainings and GPUs.

Labels are words of the axes and states, and never a job: their number is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainyard.app.gpus import MONITOR
from trainyard.app.live.jobs import open_index
from trainyard.app.live.trainings import TrainingSpeed, read_speeds
from trainyard.settings import Settings
from trainyard.spec.states import JobState

OPERATION = "operation"
"""Attribute of an endpoint: the name of what it carries out."""
OTHER = "other"
"""The label of requests that reach no operation."""
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)
Reading = Callable[[], Iterable[tuple[str, str, dict[str, str], float]]]
"""Returns (name, help, labels, value) of gauges that are read when Prometheus asks."""


class ReadGauges(Collector):
    """Gauges that are read when they are requested."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self.readings = tuple(readings)

    def collect(self) -> Iterable[Metric]:
        families: dict[str, GaugeMetricFamily] = {}
        for name, help_text, labels, value in (row for read in self.readings for row in read()):
            if name not in families:
                families[name] = GaugeMetricFamily(name, help_text, labels=sorted(labels))
            families[name].add_metric([labels[key] for key in sorted(labels)], value)
        return families.values()


class ApiMetrics:
    """The counters of one service."""

    def __init__(self, readings: Iterable[Reading] = ()) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "trainyard_requests", "Requests answered.", ("operation", "method", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "trainyard_request_seconds", "Time to the first byte of an answer.", ("operation",),
            buckets=BUCKETS_S, registry=self.registry,
        )  # fmt: skip
        self.working = Gauge(
            "trainyard_requests_in_progress", "Requests that are answered now.", registry=self.registry
        )
        self.registry.register(ReadGauges(readings))
        self.seconds_of, self.requests_of = cache(self.seconds.labels), cache(self.requests.labels)

    def text(self) -> bytes:
        """In Prometheus' exposition format."""
        return generate_latest(self.registry)


class MeasuredRequests:
    """Counts and times what goes through it: an ASGI application around the API."""

    def __init__(self, app: ASGIApp, metrics: ApiMetrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began = time.perf_counter()
        first: tuple[int, float] | None = None

        def count() -> None:
            nonlocal first
            if first is not None:
                (status, seconds), first = first, None
                operation = find_operation_name(scope)
                self.metrics.seconds_of(operation).observe(seconds)
                self.metrics.requests_of(operation, read_method(scope), status).inc()

        async def sending(message: Message) -> None:
            nonlocal first
            if message["type"] == "http.response.start":
                first = message["status"], time.perf_counter() - began
                await send(message)
            else:
                await send(message)
                count()  # once the first bytes are sent: they need not wait for it

        with self.metrics.working.track_inprogress():
            try:
                await self.app(scope, receive, sending)
            finally:
                count()


def find_operation_name(scope: Scope) -> str:
    """Return the operation of a request that has found its route."""
    return str(getattr(scope.get("endpoint"), OPERATION, OTHER))


def read_method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in ("GET", "POST", "PUT", "DELETE") else OTHER


GaugeSample = tuple[str, str, dict[str, str], float]
"""Name, help, labels, value."""
MIB = 1 << 20
STEP_S = ("trainyard_training_step_seconds", "Seconds of a step of the running trainings, their mean.")
TOKENS = ("trainyard_training_tokens_per_second", "Tokens per second of the running trainings, their sum.")
CHECKPOINT_S = ("trainyard_checkpoint_seconds", "Seconds of the newest checkpoint of a running training, the most.")
CHECKPOINT_BYTES = (
    "trainyard_checkpoint_bytes",
    "Bytes of the newest checkpoint of each running training, their sum.",
)
PENDING_S = (
    "trainyard_oldest_pending_job_age_seconds",
    "Seconds since the oldest pending job was created; 0: none is.",
)


def read_jobs(settings: Settings) -> Iterator[GaugeSample]:
    """Jobs of the index by state, zeros for states that none is in; and how long the first of the queue has waited."""
    index = open_index(settings)
    counts = index.count_by_state()
    for state in JobState:
        yield "trainyard_jobs", "Jobs by state.", {"state": state.value}, counts.get(state.value, 0)
    created = index.oldest_created(JobState.PENDING)
    yield *PENDING_S, {}, max(0.0, time.time() - created) if created else 0.0


def read_trainings(settings: Settings) -> Iterator[GaugeSample]:
    """Speed and checkpoints of the trainings that run, by backend, stage and method."""
    index = open_index(settings)
    if not index.is_kept(time.time()):
        return  # what it calls running may have ended long ago
    groups: dict[tuple[str, str, str], list[TrainingSpeed]] = {}
    for speed in read_speeds(index):
        groups.setdefault((speed.backend, speed.stage, speed.method), []).append(speed)
    for (backend, stage, method), speeds in groups.items():
        labels = {"backend": backend, "stage": stage, "method": method}
        if steps := [speed.step_s for speed in speeds if speed.step_s is not None]:
            yield *STEP_S, labels, sum(steps) / len(steps)
        if tokens := [speed.tokens_per_s for speed in speeds if speed.tokens_per_s is not None]:
            yield *TOKENS, labels, sum(tokens)
        if seconds := [speed.checkpoint_s for speed in speeds if speed.checkpoint_s is not None]:
            yield *CHECKPOINT_S, labels, max(seconds)
        if sizes := [speed.checkpoint_bytes for speed in speeds if speed.checkpoint_bytes is not None]:
            yield *CHECKPOINT_BYTES, labels, sum(sizes)


def read_gpus() -> Iterator[GaugeSample]:
    """Memory, load, temperature and power of each GPU, as far as it says them."""
    for gpu in MONITOR.read().gpus:
        labels = {"gpu": str(gpu.index)}
        for kind, used_mb in (("used", gpu.memory_used_mb), ("free", gpu.memory_free_mb)):
            yield "trainyard_gpu_memory_bytes", "Memory of each GPU.", {**labels, "kind": kind}, used_mb * MIB
        if gpu.utilization_gpu is not None:
            yield "trainyard_gpu_utilization_ratio", "Time in which a kernel ran.", labels, gpu.utilization_gpu / 100
        if gpu.temperature_c is not None:
            yield "trainyard_gpu_temperature_celsius", "Temperature of each GPU.", labels, gpu.temperature_c
        if gpu.power_draw_w is not None:
            yield "trainyard_gpu_power_watts", "Power of each GPU.", labels, gpu.power_draw_w
