"""OpenTelemetry's SDK put together; imported where spans are wanted alone."""

from __future__ import annotations

from dataclasses import dataclass

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Tracer, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator


@dataclass(frozen=True)
class SpanSender:
    """A tracer with what it needs."""

    provider: TracerProvider
    tracer: Tracer
    propagator: TraceContextTextMapPropagator


def make_tracer(timeout_s: float) -> SpanSender:
    """Return what sends spans over OTLP/HTTP in batches, in a thread of its own, and what is left at the exit."""
    provider = TracerProvider(resource=Resource.create({"service.name": "trainyard"}))
    exporter = OTLPSpanExporter(timeout=timeout_s)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    return SpanSender(provider, provider.get_tracer("trainyard"), TraceContextTextMapPropagator())  # type: ignore[arg-type]
