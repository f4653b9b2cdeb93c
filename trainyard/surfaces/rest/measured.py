"""`/metrics` for Prometheus: requests by operation and status, their duration, and what the machine is doing.

Labels are names of the table and states, never what a client sent: their number is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
