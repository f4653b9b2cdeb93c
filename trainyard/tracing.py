"""Tracing: one correlation id from a request to the training that it started, and OpenTelemetry's spans.

A span is a piece of work: a request, a run, a node, a supervised child. Its `traceparent` (W3C Trace Context) goes to
what it starts: in a header over HTTP, in the variable `TRACEPARENT` to a process. Spans are sent when
`OTEL_EXPORTER_OTLP_ENDPOINT` names a collector and the extra `otel` is installed; the ids are passed on without both.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Tracer, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

VARIABLE = "TRACEPARENT"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SHAPE = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
EXPORT_TIMEOUT_S = 2.0
"""A collector that does not answer must not keep a run from ending."""
CURRENT: ContextVar[str] = ContextVar("traceparent", default="")


def current_traceparent() -> str:
    """That of the span that is open here, or that this process was started with; "" without one."""
    traceparent = CURRENT.get() or os.environ.get(VARIABLE, "")
    return traceparent if is_traceparent(traceparent) else ""


def is_traceparent(text: str) -> bool:
    return bool(trace_id(text))


@lru_cache(256)
def trace_id(traceparent: str) -> str:
    """The 32 hex digits that all spans of a trace share; "" for a text that is not a traceparent.

    Cached: each request asks several times about one.
    """
    match = SHAPE.fullmatch(traceparent)
    is_valid = match is not None and set(match[1]) != {"0"} and set(match[2]) != {"0"}
    return match[1] if match is not None and is_valid else ""


def new_traceparent(parent: str = "") -> str:
    """Of a span below `parent`, or of a trace of its own."""
    return f"00-{trace_id(parent) or secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


@contextmanager
def span(name: str, parent: str = "", **attributes: str | int | float | bool) -> Iterator[str]:
    """Open a span below `parent`, or below the current one; yields its traceparent. An exception marks it as failed."""
    parent = parent if is_traceparent(parent) else current_traceparent()
    tracer = open_tracer()
    if tracer is None:
        yield from open_span(new_traceparent(parent))
        return
    extracted = tracer.propagator.extract({"traceparent": parent})
    with tracer.tracer.start_as_current_span(name, context=extracted, attributes=attributes) as started:
        facts = started.get_span_context()
        yield from open_span(f"00-{facts.trace_id:032x}-{facts.span_id:016x}-01")


def open_span(traceparent: str) -> Iterator[str]:
    before = CURRENT.set(traceparent)
    try:
        yield traceparent
    finally:
        CURRENT.reset(before)


@dataclass(frozen=True)
class SpanSender:
    """A tracer with its provider and the propagator of its spans."""

    provider: TracerProvider
    tracer: Tracer
    propagator: TraceContextTextMapPropagator


@cache
def open_tracer() -> SpanSender | None:
    """Return the sender of spans; None where they are off, or the extra is missing."""
    if not any(os.environ.get(name) for name in ENDPOINTS) or os.environ.get("OTEL_SDK_DISABLED") == "true":
        return None
    try:
        return make_tracer(EXPORT_TIMEOUT_S)
    except ImportError as error:
        variable = next(name for name in ENDPOINTS if os.environ.get(name))
        print(f"{variable} is set, and spans are not sent: {error}. pip install 'trainyard[otel]'", file=sys.stderr)
        return None


def make_tracer(timeout_s: float) -> SpanSender:
    """Return the sender of spans over OTLP/HTTP: in batches, in a thread of its own, the last ones at the exit.

    Raises `ImportError` without the extra `otel`.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    provider = TracerProvider(resource=Resource.create({"service.name": "trainyard"}))
    exporter = OTLPSpanExporter(timeout=timeout_s)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    return SpanSender(provider, provider.get_tracer("trainyard"), TraceContextTextMapPropagator())  # type: ignore[arg-type]


def send_spans() -> None:
    """Send what was not sent yet: before a process leaves in a way that runs no exit handlers."""
    tracer = open_tracer()
    if tracer is not None:
        tracer.provider.force_flush(int(EXPORT_TIMEOUT_S * 1000))
