"""The bill of materials is the pins, and the list of advisories is kept with them."""

from __future__ import annotations

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tools import dependencies
from tools.dependencies import (
    BILL,
    Fixed,
    Known,
    accepted,
    audit,
    below,
    bill,
    fixed,
    holding,
    licence_of,
    pinned,
    stale,
    unlisted,
)  # fmt: skip

PINS = {"torch": "2.13.0", "starlette": "1.10.0"}


def advisory(name: str = "torch", **affected: Any) -> dict[str, Any]:
    package = {"ecosystem": "PyPI", "name": name}
    return {"id": "PYSEC-1", "aliases": ["CVE-1"], "affected": [{"package": package, **affected}]}


def affect_range(*events: dict[str, str]) -> dict[str, Any]:
    return {"ranges": [{"type": "ECOSYSTEM", "events": list(events)}]}


def test_the_bill_of_materials_is_the_pins() -> None:
    written = json.loads(BILL.read_text(encoding="utf-8"))
    assert {part["name"]: part["version"] for part in written["components"]} == pinned()
    document = bill(pinned())
    assert {key: document[key] for key in document if key != "components"} == {
        key: written[key] for key in written if key != "components"
    }
    for part in written["components"]:
        assert part["purl"] == part["bom-ref"] == f"pkg:pypi/{part['name']}@{part['version']}"


def test_the_bill_is_what_make_sbom_writes() -> None:
    """Licences are compared where the package is installed: a few pins belong to other systems."""
    written = {
        part["name"]: part.get("licenses") for part in json.loads(BILL.read_text(encoding="utf-8"))["components"]
    }
    licences = {part["name"]: part.get("licenses") for part in bill(pinned())["components"] if licence_of(part["name"])}
    assert {name: written[name] for name in licences} == licences
    assert len(licences) > 0.9 * len(written)


def test_the_tables_speak_of_pinned_versions() -> None:
    assert accepted()
    assert len(fixed()) >= 10
    assert stale(accepted(), pinned()) == []
    assert below(fixed(), pinned()) == []
    assert all(row.reason for row in accepted())


def test_a_row_for_another_version_is_stale_and_a_pin_below_a_fix_is_found() -> None:
    row = Known("CVE-1", "torch", "2.12.0", "because")
    assert stale([row, row._replace(version="2.13.0")], PINS) == [row]
    low = Fixed("CVE-1", "starlette", "1.11")
    assert below([low, low._replace(version="1.9"), low._replace(package="gone")], PINS) == [
        low, low._replace(package="gone"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("affected", "holds"),
    [
        ({"versions": ["2.12.0", "2.13.0"]}, True),
        ({"versions": ["2.12.0"]}, False),
        (affect_range({"introduced": "0"}), True),
        (affect_range({"introduced": "0"}, {"fixed": "2.13.0"}), False),
        (affect_range({"introduced": "0"}, {"fixed": "2.13.1"}), True),
        (affect_range({"introduced": "2.14"}), False),
        (affect_range({"introduced": "0"}, {"last_affected": "2.13.0"}), True),
        (affect_range({"introduced": "0"}, {"last_affected": "2.12.9"}), False),
        (affect_range({"introduced": "0"}, {"fixed": "1.0"}, {"introduced": "2.13.0"}), True),
        ({"ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}]}, False),
    ],
)
def test_whether_an_advisory_holds_for_a_version(affected: dict[str, Any], holds: bool) -> None:
    assert holding([advisory(**affected)], PINS) == ({"torch": {"PYSEC-1 CVE-1"}} if holds else {})


def test_withdrawn_advisories_and_other_packages_do_not_hold() -> None:
    every = affect_range({"introduced": "0"})
    assert (
        holding([advisory(**every) | {"withdrawn": "2026-01-01"}, advisory("flask", **every), {"id": "x"}], PINS) == {}
    )


def test_an_advisory_is_listed_under_any_of_its_names() -> None:
    advisories = {"torch": {"PYSEC-1 CVE-1"}}
    assert unlisted(advisories, [Known("CVE-1", "torch", "2.13.0", "because")]) == []
    assert unlisted(advisories, [Known("CVE-1", "starlette", "1.10.0", "because")]) == ["torch: PYSEC-1 CVE-1"]


def test_a_folder_of_advisories_is_audited_and_a_new_one_is_named(tmp_path: Path) -> None:
    assert audit(tmp_path) == []
    (tmp_path / "a.json").write_text(json.dumps(advisory(**affect_range({"introduced": "0"}))))
    (tmp_path / "b.yaml").write_text(
        "id: PYSEC-2\naffected:\n- package: {ecosystem: PyPI, name: Jinja2}\n  versions: ['1.0']\n"
    )
    assert audit(tmp_path) == ["torch: PYSEC-1 CVE-1: not in docs/dependencies.md"]
    done = subprocess.run(
        [sys.executable, "-m", "tools.dependencies", "audit", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.strip()) == (1, "torch: PYSEC-1 CVE-1: not in docs/dependencies.md")


def test_a_server_is_asked_about_every_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[dict[str, Any]] = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            body = (
                {"vulns": [advisory(**affect_range({"introduced": "0"}))]}
                if requests[-1]["package"]["name"] == "torch"
                else {}
            )
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(dependencies, "OSV", f"http://127.0.0.1:{server.server_port}/")
        problems = audit(None)
        server.shutdown()
        thread.join()
    assert problems == ["torch: PYSEC-1 CVE-1: not in docs/dependencies.md"]
    assert {request["package"]["name"]: request["version"] for request in requests} == pinned()
