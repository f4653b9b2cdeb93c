"""Addresses, paths and specs that are made to slip past a check, or to end in something else than one coded line."""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from trainyard.data import paths
from trainyard.data.paths import open_inside, resolve_inside
from trainyard.data.remote.addresses import check_url
from trainyard.data.remote.http import fetch
from trainyard.errors import NotFound, Refused, TrainyardError
from trainyard.spec.graph import check
from trainyard.spec.load.files import load_chain
from trainyard.spec.load.text import MAX_KEYS, MAX_REASONS
from trainyard.testing.loopback import LoopbackServer, serving

ODD = [
    "http://\uff11\uff12\uff17.0.0.1/", "http://\uff4cocalhost/", "http://a#@b", "http://a?@b/", "http://a\\@b/",
    "http://ex\u200bample.org/", "http://\ud800.org/", "http://[::1", "http://a:99999/", "http://:80/",
    "http://ex\u2100mple.org/", "//a/b", "http:a", "http:///a", "http://[fe80::1%25eth0]/", "mailto:a@b", "", "http://[x]/",
]  # fmt: skip


@pytest.mark.parametrize("url", ODD)
def test_an_odd_address_ends_in_one_coded_line(url: str, tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        fetch(url, tmp_path)
    (reason,) = refused.value.reasons
    assert reason.code == "R-URL"
    assert "\n" not in reason.line()


class Site(BaseHTTPRequestHandler):
    """Answers with the requested path, or redirects to what stands in `where`."""

    where = ""

    def do_GET(self) -> None:
        content = self.path.encode()
        self.send_response(302 if self.where else 200)
        if self.where:
            self.send_header("location", self.where)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


def test_an_address_is_asked_for_in_ascii(tmp_path: Path) -> None:
    """Letters in the path are escaped, and a fragment is not sent."""
    with serving(LoopbackServer(Site)) as server:
        fetched = fetch(f"{server.url}/caf\u00e9.jsonl?q=\u00fc x#\u00e4", tmp_path, allowed=["127.0.0.1"])
    assert fetched.path.read_bytes() == b"/caf%C3%A9.jsonl?q=%C3%BC%20x"


@pytest.mark.parametrize("where", ["http://[", "//[", "http://a#@b/", "/" + "a" * 5000])
def test_a_redirect_to_no_address_ends_in_one_coded_line(where: str, tmp_path: Path) -> None:
    handler = type("Redirect", (Site,), {"where": where})
    with serving(LoopbackServer(handler)) as server, pytest.raises(TrainyardError) as failed:
        fetch(f"{server.url}/a", tmp_path, allowed=["127.0.0.1"])
    assert failed.value.code.startswith(("R-URL", "E-URL"))
    assert len(str(failed.value)) < 2000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "round").symlink_to("about")
    (tmp_path / "about").symlink_to("round")
    return tmp_path


@pytest.mark.parametrize(
    "path", ["a" * 5000, "a/" * 2500, "a" * 300, "round", "round/rows.jsonl", "./about", "\ud800", "x/\udcff/y"]
)
def test_a_path_that_nobody_can_follow_ends_in_one_coded_line(path: str, root: Path) -> None:
    started = time.process_time()
    with pytest.raises((Refused, NotFound)) as refused:
        resolve_inside(path, [root])
    assert refused.value.code in ("R-PATH-ROOT", "E-DATA-NOT-FOUND")
    assert len(str(refused.value)) < 1500
    assert time.process_time() - started < 1


def test_a_circle_of_links_in_a_folder_of_documents_is_refused(root: Path) -> None:
    with pytest.raises(Refused, match="R-PATH-ROOT"):
        open_inside(root / "round", [root])


def test_a_name_of_a_spec_that_is_too_long_is_a_text(tmp_path: Path) -> None:
    with pytest.raises(TrainyardError, match="E-SPEC"):
        load_chain("a" * 3000)


def with_keys(count: int) -> dict[str, Any]:
    return {"nodes": [{"type": "trainer", "config": {f"key{number}": 1 for number in range(count)}}]}


@pytest.mark.parametrize("form", ["value", "file"])
def test_ninety_thousand_keys_end_in_one_coded_line(form: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(with_keys(90_000)), encoding="utf-8")
    started = time.process_time()
    if form == "value":
        reasons = check(with_keys(90_000))
    else:
        with pytest.raises(Refused) as refused:
            load_chain(path)
        reasons = list(refused.value.reasons)
    assert time.process_time() - started < 1
    assert [reason.code for reason in reasons] == ["E-SPEC-SYNTAX"]
    assert "90,000 keys" in reasons[0].because


def test_a_long_list_of_reasons_is_cut_and_counted() -> None:
    reasons = check(with_keys(MAX_KEYS))
    assert len(reasons) == MAX_REASONS + 1
    assert reasons[-1].because == f"And {MAX_KEYS - MAX_REASONS:,} more are wrong."


@pytest.mark.parametrize("body", [{"template": "qa-pipeline"}, {"dataset": {"path": "a.jsonl"}}])
def test_a_job_or_a_template_with_too_many_keys_is_one_line_too(body: dict[str, Any]) -> None:
    chain = {**body, "parameters" if "template" in body else "lora": {f"key{number}": 1 for number in range(90_000)}}
    (reason,) = check(chain)
    assert reason.code == "E-SPEC-SYNTAX"


def test_check_url_knows_its_neighbours() -> None:
    assert check_url("https://example.org/data.jsonl?x=a@b") == ("example.org", 443)
    assert check_url("https://xn--bcher-kva.example/a@b") == ("xn--bcher-kva.example", 443)


@pytest.mark.parametrize(("switch", "mode", "is_read"), [
    ("1", 0o777, True), ("0", 0o700, True), ("0", 0o755, True), ("0", 0o770, False), ("0", 0o777, False),
    ("", 0o777, False), (None, 0o777, False),
])  # fmt: skip
def test_a_hard_link_that_somebody_else_could_have_made_is_refused(
    switch: str | None, mode: int, is_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`switch` is what Linux says of its protection of hard links; None where there is no such file."""
    monkeypatch.setattr(paths, "PROTECTED_LINKS", tmp_path / "switch")
    if switch is not None:
        (tmp_path / "switch").write_text(f"{switch}\n")
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.jsonl").write_text("secret")
    (root / "hard.jsonl").hardlink_to(tmp_path / "secret.jsonl")
    (root / "own.jsonl").write_text("own")
    root.chmod(mode)
    with open_inside(resolve_inside("own.jsonl", [root]), [root]) as stream:
        assert stream.read() == b"own"
    if is_read:
        with open_inside(resolve_inside("hard.jsonl", [root]), [root]) as stream:
            assert stream.read() == b"secret"
        return
    with pytest.raises(Refused, match=r"R-PATH-ROOT.*second name"):
        open_inside(resolve_inside("hard.jsonl", [root]), [root])
