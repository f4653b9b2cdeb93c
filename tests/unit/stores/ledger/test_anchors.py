"""Anchors of the ledger: real folders, git, a timestamp authority of openssl, a witness over HTTP, an EVM."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trainyard.app.artifacts.anchors import AnchoredLedger, anchor, anchor_due
from trainyard.app.artifacts.ledger import LedgerCheck, verify
from trainyard.app.context import Context
from trainyard.errors import InvalidInput
from trainyard.operations import ledger as requests
from trainyard.settings import Settings
from trainyard.stores.ledger.anchors.keeping import anchor_ledger, list_due
from trainyard.stores.ledger.log import Ledger
from trainyard.stores.ledger.notes import COSIGNATURE, SigningKey
from trainyard.testing.anchor_servers import EvmChain, evm_chain, make_authority, timestamp_authority, witness_of

PASSWORD = "canary-0123456789abcdef"


def append(home: Path, *keys: str) -> Ledger:
    ledger = Ledger.at_home(home)
    ledger.append(*({"kind": "trained", "key": key, "node": "nightly"} for key in keys))
    return ledger


def context_of(home: Path, **anchors: dict[str, Any]) -> Context:
    return Context(Settings(home=home, ledger_anchors=anchors))


def anchor_all(context: Context, *names: str) -> AnchoredLedger:
    return anchor(requests.LedgerAnchorInput(to=names), context)


def check(context: Context) -> LedgerCheck:
    return verify(requests.LedgerVerifyInput(anchor=True), context)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    with timestamp_authority(tmp_path_factory.mktemp("tsa")) as value:
        yield value


@pytest.fixture(scope="module")
def chain() -> Iterator[EvmChain]:
    with evm_chain() as value:
        yield value


@pytest.fixture(scope="module")
def contract(chain: EvmChain, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The setting of an anchor in a deployed contract."""
    key = tmp_path_factory.mktemp("key") / "sender"
    key.write_text(chain.keys[0])
    key.chmod(0o600)
    setting = {"kind": "evm", "url": chain.url, "key": str(key)}
    deploying = Context(Settings(home=key.parent, ledger_anchors={"chain": setting}))
    return {**setting, "contract": anchor(requests.LedgerAnchorInput(deploy=True), deploying).contract}


@pytest.fixture(params=["folder", "git", "timestamp", "witness", "evm"])
def setting(
    request: pytest.FixtureRequest, tmp_path: Path, authority: tuple[str, Path], contract: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The setting of an anchor of each kind, for the ledger of `tmp_path/home`."""
    append(tmp_path / "home", *"abcdefgh")
    if request.param == "folder":
        (tmp_path / "mount").mkdir()
        yield {"kind": "folder", "folder": tmp_path / "mount"}
    elif request.param == "git":
        subprocess.run(["git", "init", "--quiet", "--bare", tmp_path / "anchors.git"], check=True)
        yield {"kind": "git", "repository": tmp_path / "anchors.git"}
    elif request.param == "timestamp":
        yield {"kind": "timestamp", "url": authority[0], "roots": authority[1]}
    elif request.param == "witness":
        with witness_of(tmp_path / "witness", Ledger.at_home(tmp_path / "home")) as (url, key):
            yield {"kind": "witness", "url": url, "key": key}
    else:
        yield contract


def rewrite(home: Path, size: int) -> None:
    """Write another history with the same key, as who has the key and the disk can do."""
    ledger = Ledger.at_home(home)
    for path in ledger.folder.iterdir():
        if path.name != "anchors":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    append(home, *(f"rewritten {number}" for number in range(size)))


def test_a_checkpoint_is_anchored_once_and_checked(setting: dict[str, Any], tmp_path: Path) -> None:
    context = context_of(tmp_path / "home", place=setting)
    assert [(row.is_new, row.size, row.problem) for row in anchor_all(context).anchors] == [(True, 9, "")]
    assert [row.is_new for row in anchor_all(context).anchors] == [False]
    append(tmp_path / "home", "later")
    assert anchor_all(context).anchors[0].size == 11
    result = check(context)
    assert (result.exit_code, result.problems) == (0, ())
    assert (result.anchors[0].size, result.anchors[0].unreachable) == (11, "")
    assert result.anchors[0].proves
    assert verify(requests.LedgerVerifyInput(), context).anchored[0].startswith("11 entries by place")


def test_another_history_is_noticed(setting: dict[str, Any], tmp_path: Path) -> None:
    home = tmp_path / "home"
    context = context_of(home, place=setting)
    anchor_all(context)
    rewrite(home, 20)
    assert "not the first ones of this log" in check(context).problems[0].problem
    assert verify(requests.LedgerVerifyInput(), context).exit_code != 0
    result = anchor_all(context)
    assert result.anchors[0].code == "E-CORRUPT"
    assert result.exit_code != 0


def test_an_anchor_remembers_what_this_home_has_removed(setting: dict[str, Any], tmp_path: Path) -> None:
    """Only a timestamp is kept here alone: what it proves is lost with its token."""
    home = tmp_path / "home"
    context = context_of(home, place=setting)
    backup = tmp_path / "backup"
    shutil.copytree(home, backup)
    append(home, *(f"more {number}" for number in range(9)))
    anchor_all(context)
    shutil.rmtree(home)
    shutil.copytree(backup, home)
    problems = [problem.problem for problem in check(context).problems]
    assert ("was cut or put back" in " ".join(problems)) == (setting["kind"] != "timestamp")


def test_an_anchor_that_is_away_is_recorded_and_tried_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    append(home, "a")
    away = {"kind": "folder", "folder": tmp_path / "mount"}
    dead = f"http://user:{PASSWORD}@127.0.0.1:9/{PASSWORD}"
    roots = make_authority(tmp_path / "tsa")
    context = context_of(home, mount=away, stamp={"kind": "timestamp", "url": dead, "roots": roots})
    assert [row.code for row in anchor_all(context).anchors] == ["E-SERVER-UNREACHABLE"] * 2
    anchor_all(context)
    result = verify(requests.LedgerVerifyInput(anchor=True), context)
    assert (result.exit_code, len(result.notes), result.problems) == (7, 2, ())
    assert "failed 2 times since" in result.notes[0]
    (tmp_path / "mount").mkdir()
    anchor_all(context, "mount")
    head = Ledger.at_home(home).head()
    kinds = [(head.entry(seq)["kind"], head.entry(seq).get("anchor")) for seq in range(2, head.size)]
    assert kinds == [("anchor_failed", "mount"), ("anchor_failed", "stamp"), ("anchored", "mount")]
    files = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert PASSWORD not in result.model_dump_json()
    assert not any(PASSWORD.encode() in data for data in files)


def test_the_schedule_says_when_an_anchor_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, said = tmp_path / "home", list[str]()
    (tmp_path / "mount").mkdir()
    anchors = {"mount": {"kind": "folder", "folder": tmp_path / "mount"}}
    settings = Settings(home=home, ledger_anchors=anchors, ledger_anchor_every="night")
    anchor_due(settings, said.append)
    assert (said, home.exists()) == ([], False)
    ledger = Ledger.at_home(home)
    ledger.append({"kind": "trained", "key": "by day"})
    anchor_due(settings, said.append)
    assert said == []
    append(home, "by night")
    anchor_due(settings, said.append)
    anchor_due(settings, said.append)
    assert len(said) == 1
    assert said[0].startswith("3 entries of the ledger are anchored")
    shutil.rmtree(tmp_path / "mount")
    append(home, "next night")
    anchor_due(settings, said.append)
    anchor_due(settings, said.append)
    assert len(said) == 2
    assert "is not there" in said[1]


def test_a_checkpoint_that_was_removed_at_the_anchor_is_noticed(setting: dict[str, Any], tmp_path: Path) -> None:
    home = tmp_path / "home"
    context = context_of(home, place=setting)
    anchor_all(context)
    kind = setting["kind"]
    if kind == "folder":
        shutil.rmtree(next((tmp_path / "mount").iterdir()))
    elif kind == "git":
        subprocess.run(
            ["git", "-C", setting["repository"], "update-ref", "-d", "refs/heads/trainyard-ledger"], check=True
        )
    elif kind == "timestamp":
        next((home / "ledger" / "anchors").glob("*.token")).write_bytes(b"another")
    elif kind == "witness":
        next((home / "ledger" / "anchors").glob("*.checkpoint")).unlink()
    else:
        return  # nobody can
    assert check(context).problems


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": "env:NOT_SET_ANYWHERE"}, "no variable NOT_SET_ANYWHERE"),
        ({"contract": "0x" + "11" * 20}, "no contract at"),
        ({"contract": ""}, "names no contract"),
    ],
)
def test_a_wrong_setting_of_a_chain_is_refused(
    contract: dict[str, Any], tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    append(tmp_path, "a")
    result = anchor_all(context_of(tmp_path, chain={**contract, **changes})).anchors[0]
    assert message in result.problem


def test_the_sender_key_is_in_no_file_and_no_answer(
    contract: dict[str, Any], chain: EvmChain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path, "a")
    monkeypatch.setenv("ANCHOR_SENDER", chain.keys[1])
    monkeypatch.setenv("ANCHOR_NODE", chain.url)
    context = context_of(tmp_path, chain={**contract, "key": "env:ANCHOR_SENDER", "url": "env:ANCHOR_NODE"})
    chain.lost_replies = 1
    outcomes = [anchor_all(context).model_dump_json() for _ in range(2)]
    assert ("E-SERVER-UNREACHABLE" in outcomes[0], '"is_new":true' in outcomes[1]) == (True, True)
    assert check(context).anchors[0].checkpoints == 2, "the lost one of two entries, and that of three"
    texts = [*outcomes, *(path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file())]
    secret = chain.keys[1].removeprefix("0x")
    assert not [text for text in texts if secret in text or chain.url in text]
    other = context_of(tmp_path, chain={**contract, "key": "env:NOT_A_KEY"})
    monkeypatch.setenv("NOT_A_KEY", PASSWORD)
    assert PASSWORD not in check(other).model_dump_json()


def test_an_unknown_anchor_is_refused(tmp_path: Path) -> None:
    append(tmp_path, "a")
    with pytest.raises(InvalidInput, match="has no ledger_anchors"):
        anchor_all(context_of(tmp_path))
    with pytest.raises(InvalidInput, match="has no anchor 'x'"):
        anchor_all(context_of(tmp_path, office={"kind": "folder", "folder": tmp_path}), "x")


def test_git_pushes_the_branch_and_notices_another_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    append(home, "a")
    for name in ("remote.git", "local"):
        subprocess.run(["git", "init", "--quiet", *(["--bare"] if "." in name else []), tmp_path / name], check=True)
    local = tmp_path / "local"
    subprocess.run(["git", "-C", local, "remote", "add", "far", tmp_path / "remote.git"], check=True)
    context = context_of(home, repo={"kind": "git", "repository": local, "push": "far"})
    assert anchor_all(context).exit_code == 0
    log = subprocess.run(
        ["git", "-C", tmp_path / "remote.git", "log", "--format=%s", "trainyard-ledger"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert log.stdout.endswith(": 2 entries\n")
    assert list(local.iterdir()) == [local / ".git"], "no working tree is touched"
    shutil.rmtree(tmp_path / "remote.git")
    append(home, "b")
    result = anchor_all(context).anchors[0]
    assert (result.code, str(tmp_path / "remote.git") in result.problem) == ("E-SERVER-UNREACHABLE", False)


def test_a_commit_that_removes_the_checkpoint_takes_no_other_away(tmp_path: Path) -> None:
    home, repository, copy = tmp_path / "home", tmp_path / "anchors.git", tmp_path / "copy"
    append(home, "a")
    subprocess.run(["git", "init", "--quiet", "--bare", repository], check=True)
    context = context_of(home, repo={"kind": "git", "repository": repository})
    assert anchor_all(context).exit_code == 0
    author = ("-c", "user.name=x", "-c", "user.email=x@example.com")
    subprocess.run(["git", "clone", "--quiet", "-b", "trainyard-ledger", repository, copy], check=True)
    for command in (["rm", "--quiet", "-r", "."], [*author, "commit", "--quiet", "-m", "gone"], ["push", "--quiet"]):
        subprocess.run(["git", "-C", copy, *command], check=True)
    result = check(context)
    assert (result.problems, [anchor.checkpoints for anchor in result.anchors]) == ((), [1])
    append(home, "b")
    assert anchor_all(context).exit_code == 0


@pytest.mark.parametrize("lost", ["where", "record"])
def test_a_record_that_is_not_the_one_of_its_entry_is_noticed(tmp_path: Path, lost: str) -> None:
    """Who removes a checkpoint at the anchor and the record of it here leaves the entry."""
    home, mount = tmp_path / "home", tmp_path / "mount"
    append(home, "a")
    mount.mkdir()
    context = context_of(home, office={"kind": "folder", "folder": mount})
    anchor_all(context)
    assert check(context).problems == ()
    record = next((home / "ledger" / "anchors").glob("*.json"))
    if lost == "where":
        record.write_text(record.read_text().replace(str(mount), "/elsewhere"))
    else:
        for path in (*record.parent.glob("0*"), *mount.rglob("*.checkpoint")):
            path.unlink()
    (problem,) = check(context).problems
    assert f"The record {record.name}" in problem.problem
    assert "entry 2 names" in problem.problem


def test_an_old_anchor_of_a_long_line_is_not_missing(
    contract: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard.stores.ledger.anchors.evm.MOST_SEEN", 2)
    context = context_of(tmp_path, chain=contract)
    for key in "abc":
        append(tmp_path, key)
        assert anchor_all(context).exit_code == 0
    result = check(context)
    assert (result.problems, result.anchors[0].checkpoints) == ((), 2)


def test_an_anchor_is_due_after_the_clock_was_set_back(tmp_path: Path) -> None:
    home, year_s = tmp_path / "home", 365 * 86_400.0
    ledger, now = append(home, "a"), time.time()
    anchors = context_of(home, away={"kind": "folder", "folder": tmp_path / "away"}).settings.ledger_anchors
    anchor_ledger(ledger, anchors, now=lambda: now + year_s)
    assert list_due(ledger, anchors, "hour", now) == ["away"]
    (tmp_path / "away").mkdir()
    anchor_ledger(ledger, anchors, now=lambda: now + year_s)
    append(home, "b")
    assert list_due(ledger, anchors, "hour", now) == ["away"]


@pytest.mark.parametrize("kind", ["witness", "timestamp"])
@pytest.mark.parametrize("fault", ["endless", "slow", "size"])
def test_a_hostile_answer_hinders_no_other_anchor(
    kind: str, fault: str, tmp_path: Path, authority: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard.stores.ledger.anchors.contract.REQUEST_S", 1.0)
    home = tmp_path / "home"
    ledger = append(home, "a")
    (tmp_path / "mount").mkdir()
    key = SigningKey("witness.example.com", bytes(32), COSIGNATURE).public.vkey
    with serving_faults(fault) as url:
        setting = {"url": url, "kind": kind, **({"key": key} if kind == "witness" else {"roots": authority[1]})}
        context = context_of(home, bad=setting, office={"kind": "folder", "folder": tmp_path / "mount"})
        started = time.monotonic()
        bad, office = anchor_all(context).anchors
    assert (bool(bad.problem), office.is_new, time.monotonic() - started < 10) == (True, True, True)
    assert ledger.head().size == 4


@contextmanager
def serving_faults(fault: str) -> Iterator[str]:
    """Answer without end, in drops, or with a size that is not one."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Write nothing."""

        def do_GET(self) -> None:
            self.send_response(404)
            self.end_headers()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(409 if fault == "size" else 200)
            self.send_header("content-type", "text/x.tlog.size")
            self.end_headers()
            with suppress(OSError):
                if fault == "size":
                    self.wfile.write(b"9" * 5000)
                for _ in range(4000 if fault == "endless" else 40 if fault == "slow" else 0):
                    self.wfile.write(b"x" * (1 << 16) if fault == "endless" else b"x")
                    time.sleep(0.3 if fault == "slow" else 0)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
