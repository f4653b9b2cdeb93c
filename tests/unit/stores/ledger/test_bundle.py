"""An exported bundle: the script that comes with it checks it without the package, and notices every change."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.app.artifacts.anchors import anchor
from trainyard.app.artifacts.ledger import SCRIPT, export, witness
from trainyard.app.context import Context
from trainyard.operations import ledger as requests
from trainyard.settings import Settings
from trainyard.stores.ledger import verify_ledger as script
from trainyard.stores.ledger.log import Ledger
from trainyard.testing.anchor_servers import timestamp_authority, witness_of

MOST_CODE_LINES = 100


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A bundle of 262 entries with two proofs, two witnesses and two anchors; and the keys of log and one witness."""
    folder = tmp_path_factory.mktemp("bundle")
    home, ledger = folder / "home", Ledger.at_home(folder / "home")
    ledger.append(*({"kind": "trained", "key": f"key {number}", "run": f"run-{number}"} for number in range(254)))
    ledger.append({"kind": "trained", "key": "ü"})
    (folder / "mount").mkdir()
    with timestamp_authority(folder / "tsa") as (url, roots), witness_of(folder / "other", ledger) as (address, key):
        anchors = {
            "stamp": {"kind": "timestamp", "url": url, "roots": roots},
            "mount": {"kind": "folder", "folder": folder / "mount"},
            "peer": {"kind": "witness", "url": address, "key": key},
        }
        context = Context(Settings(home=home, ledger_anchors=anchors))
        assert anchor(requests.LedgerAnchorInput(), context).exit_code == 0
    other = Context(Settings(home=folder / "friend"))
    second = witness(requests.LedgerWitnessInput(source=ledger.folder, out=folder / "cosigned"), other).key
    witness(requests.LedgerWitnessInput(source=folder / "cosigned"), context)
    ledger.append(*({"kind": "trained", "key": f"more {number}"} for number in range(3)))
    export(requests.LedgerExportInput(target=folder / "out", entries=("3", "257")), context)
    return folder / "out", (folder / "out" / "key").read_text().strip(), second


def run(folder: Path, *keys: str) -> tuple[int, str]:
    """Run the bundle's own script without any package; -O takes away what is only asserted."""
    command = [sys.executable, "-I", "-S", "-O", str(folder / SCRIPT.name), str(folder), *keys]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_bundle_is_checked_without_the_package(bundle: tuple[Path, str, str]) -> None:
    folder, log, witness_key = bundle
    status, text = run(folder, log, witness_key)
    assert (status, text.count("is in the log"), text.count("are the first ones")) == (0, 2, 4), text
    assert "ask stamp (timestamp) for timestamp of CN=Test TSA" in text
    assert run(folder)[0] == 0, "by the key in the bundle"


def test_a_foreign_key_and_an_unknown_witness_are_refused(bundle: tuple[Path, str, str], tmp_path: Path) -> None:
    folder, log, witness_key = bundle
    other = Ledger.at_home(tmp_path)
    other.append({"kind": "trained", "key": "a"})
    key = other.private_key()
    assert key is not None
    assert run(folder, key.public.vkey)[0] == 1
    name = witness_key.split("+")[0]
    forged = f"{name}+00000000+{key.public.vkey.split('+', 2)[2].replace('A', 'B', 1)}"
    assert run(folder, log, forged)[0] == 1
    assert run(folder, log, forged.replace(name, "nobody"))[0] == 1


def test_every_changed_file_is_noticed(bundle: tuple[Path, str, str], tmp_path: Path) -> None:
    original, log, witness_key = bundle
    folder = tmp_path / "copy"
    shutil.copytree(original, folder)
    script.check(folder, log, {witness_key})
    # The tiles of hashes are for servers of the log; what is not proved by the entries is named in the docs.
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("key", SCRIPT.name)]
    files = [path for path in files if path.relative_to(folder).parts[:2] not in (("tile", "0"), ("tile", "1"))]
    assert len(files) == 13
    missed = []
    for path in files:
        data = path.read_bytes()
        # Of a note its text counts: lines of signers that nobody has named are not compared.
        at = data.rindex(b"\n\n") - 9 if b"\n\n" in data and path.suffix != ".token" else len(data) // 2
        for changed in (data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]):
            path.write_bytes(changed)
            try:
                script.check(folder, log, {witness_key})
                missed.append(path.name)
            except (LookupError, OSError, ValueError):
                continue
            finally:
                path.write_bytes(data)
    assert [name for name in missed if not name.endswith(".json")] == [], "the rest of a record says where to ask"


@pytest.mark.parametrize(
    ("line", "changed"),
    [("index 257", "index 300"), ("index 257", "index -1"), ("index 257", "entry 257"), ("index 257", "index 0_257"),
     ("index 257", "index ٢57"), ("index 257\n", "index 257\n!")],
)  # fmt: skip
def test_a_proof_of_another_number_or_form_is_refused(
    bundle: tuple[Path, str, str], tmp_path: Path, line: str, changed: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(bundle[0], folder)
    proof = folder / "entry-257.tlog-proof"
    proof.write_text(proof.read_text("utf-8").replace(line, changed), "utf-8")
    status, text = run(folder)
    assert (status, "NOT VALID" in text) == (1, True), text


def test_a_second_key_of_a_log_and_a_record_of_another_form_are_refused(
    bundle: tuple[Path, str, str], tmp_path: Path
) -> None:
    folder, other = tmp_path / "copy", Ledger.at_home(tmp_path / "home")
    shutil.copytree(bundle[0], folder)
    other.append({"kind": "trained", "key": "a"})
    key = other.private_key()
    assert key is not None
    assert "one log" in run(folder, bundle[1], key.public.vkey)[1]
    (folder / "anchors" / "000000001-x.json").write_text("[]")
    assert "NOT VALID" in run(folder, bundle[1])[1]


def test_an_own_earlier_checkpoint_has_to_be_the_beginning(bundle: tuple[Path, str, str], tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(bundle[0], folder)
    kept = (folder / "anchors").glob("*-mount.checkpoint")
    shutil.copy(next(kept), folder / "mine.checkpoint")
    assert "mine.checkpoint: its 256 entries are the first ones" in run(folder)[1]
    text = (folder / "mine.checkpoint").read_text()
    (folder / "mine.checkpoint").write_text(text.replace("\n256\n", "\n255\n"))
    assert run(folder)[1].endswith("\nNOT VALID: mine.checkpoint is not its beginning\n")


def test_the_script_is_short() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    documented = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node):
            documented |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    code = [line for number, line in enumerate(text.splitlines(), 1) if line.strip() and number not in documented]
    assert len(code) <= MOST_CODE_LINES
