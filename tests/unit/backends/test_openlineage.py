"""OpenLineage events: as its own classes validate them, over its own transports; a catalog that fails stops nothing."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from openlineage.client.event_v2 import RunEvent
from openlineage.client.serde import Serde

from trainyard.backends.openlineage_events import LineageStep, build_events, emit_step
from trainyard.settings import Settings, load_settings

STEP = LineageStep(
    "k1", "trained", "chain", "trainer", "acme", 100.0, 160.0, [("sft", "a" * 64)], {"adapter": "b" * 64}
)


def settings(tmp_path: Path, target: str) -> Settings:
    return load_settings(home=tmp_path).model_copy(update={"openlineage": target})


def test_a_step_is_a_run_with_its_begin_and_its_end() -> None:
    events = build_events(STEP)
    assert all(isinstance(event, RunEvent) for event in events)
    begin, end = (json.loads(Serde.to_json(event)) for event in events)
    assert (begin["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert begin["run"]["runId"] == end["run"]["runId"] == build_events(STEP)[0].run.runId
    assert end["outputs"] == [
        {"namespace": "trainyard", "name": f"adapter:{'b' * 64}", "facets": {}, "outputFacets": {}}
    ]


def test_nothing_is_sent_by_default(tmp_path: Path) -> None:
    assert load_settings(home=tmp_path).openlineage == ""
    assert emit_step(STEP, load_settings(home=tmp_path)) == ""


def test_a_catalog_gets_the_events_over_http(tmp_path: Path) -> None:
    received: list[dict[str, object]] = []

    class Catalog(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Catalog)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert emit_step(STEP, settings(tmp_path, f"http://127.0.0.1:{server.server_port}")) == ""
    finally:
        server.shutdown()
        server.server_close()
    assert [event["eventType"] for event in received] == ["START", "COMPLETE"]


@pytest.mark.parametrize("target", ["/proc/none/events.jsonl", "http://127.0.0.1:9"])
def test_a_target_that_fails_is_a_warning(tmp_path: Path, target: str) -> None:
    assert emit_step(STEP, settings(tmp_path, target)).startswith(f"No OpenLineage event was sent to {target}")


def test_a_failure_shows_no_login_of_the_catalog(tmp_path: Path) -> None:
    target = "http://user:canary-0123@127.0.0.1:9/lineage?key=canary-4567"
    text = emit_step(STEP, settings(tmp_path, target))
    assert ("sent to http://127.0.0.1:9/lineage" in text, "canary" in text) == (True, False), text
