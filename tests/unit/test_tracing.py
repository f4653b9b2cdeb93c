"""One correlation id through processes, and spans at a collector: a real one of a few lines, over OTLP/HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from trainyard import tracing
from trainyard.tracing import current_traceparent, is_traceparent, new_traceparent, span, trace_id

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Collector(HTTPServer):
    """Receives spans; `names` has the trace id and the parent's id of each by its name."""

    def __init__(self) -> None:
        self.names: dict[str, tuple[str, str, str]] = {}
        super().__init__(("127.0.0.1", 0), CollectorHandler)


class CollectorHandler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for row in (row for scope in resource.scope_spans for row in scope.spans):
                self.server.names[row.name] = (row.trace_id.hex(), row.span_id.hex(), row.parent_span_id.hex())
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_are_below_each_other_and_keep_the_trace() -> None:
    with span("request", PARENT) as request:
        assert trace_id(request) == trace_id(PARENT)
        assert request != PARENT
        with span("work") as work:
            assert (trace_id(work), current_traceparent()) == (trace_id(PARENT), work)
        assert current_traceparent() == request
    assert current_traceparent() == ""


def test_a_process_continues_the_trace_that_it_was_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tracing.VARIABLE, PARENT)
    with span("child") as child:
        assert trace_id(child) == trace_id(PARENT)


@pytest.mark.parametrize("text", ["", "00-zz-00f067aa0ba902b7-01", PARENT[:-1], f"00-{'0' * 32}-00f067aa0ba902b7-01"])
def test_what_is_not_a_traceparent_begins_a_trace(text: str) -> None:
    assert not is_traceparent(text)
    with span("request", text) as request:
        assert is_traceparent(request)
    assert trace_id(new_traceparent(text)) != trace_id(new_traceparent(text))


PROGRAM = """
from trainyard.tracing import send_spans, span
with span("outer"):
    with span("inner", node="trainer"):
        pass
send_spans()
"""


def test_spans_reach_a_collector(collector: Collector) -> None:
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, tracing.VARIABLE: PARENT}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=60)
    outer, inner = collector.names["outer"], collector.names["inner"]
    assert outer[0] == inner[0] == trace_id(PARENT)
    assert (outer[2], inner[2]) == ("00f067aa0ba902b7", outer[1])


def test_a_collector_that_is_away_costs_seconds_and_nothing_else() -> None:
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, check=False, timeout=60, capture_output=True
    )
    assert done.returncode == 0


def test_a_missing_extra_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = "import sys; sys.modules['opentelemetry.sdk.resources'] = None\n"
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    argv = [sys.executable, "-c", hidden + PROGRAM]
    done = subprocess.run(argv, env=environment, check=True, timeout=60, capture_output=True, text=True)
    assert done.stderr.count("pip install 'trainyard[otel]'") == 1
